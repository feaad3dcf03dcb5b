"""Who computes what: the loops of the fused quaternion kernel shared out over threads.

With at least as many items (image, eight heads) as threads each thread takes whole items, their tables stay in its
cache; with fewer, all threads work on the chunks of one item. Chunks have a fixed size and write to places of their
own, so the result does not depend on which of the two happened, nor on the number of threads.
"""

from typing import Any

from quatsphere.kernels.numba_attention import Inputs, Sizes, Tables, attend_targets, lift_sources
from quatsphere.kernels.numba_attention_backward import Gradients, source_gradients, target_gradients
from quatsphere.kernels.numba_neighbours import reverse_graph
from quatsphere.kernels.numba_rows import Told
from quatsphere.kernels.numba_threads import Part, Room, compiled, rooms, share_out, worthwhile
from quatsphere.kernels.numba_transport import TILE
from quatsphere.kernels.numba_vector import LANES

CHUNK = 32
"""Vertices per piece of work; part of the result (β's gradient is summed chunk by chunk), so not to be tuned."""


@compiled
def lift_and_attend(items, source_chunks, target_chunks, inputs, sizes, tables, scratch, out):  # type: ignore[no-untyped-def]
    """For each item lift these chunks of its sources, then attend from these chunks of its targets."""
    for item in range(*items):
        start, stop = source_chunks[0] * CHUNK, min(source_chunks[1] * CHUNK, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        start, stop = target_chunks[0] * CHUNK, min(target_chunks[1] * CHUNK, sizes.targets)
        attend_targets(inputs, sizes, item, start, stop, tables, scratch, out)


@compiled
def lift_and_differentiate(items, pieces, inputs, sizes, outputs, graph, told, gradients, tables, scratch):  # type: ignore[no-untyped-def]
    """For each item lift the first of these chunks, of its sources, then the gradients of the second and third, of its
    targets and sources."""
    lifts, targets, sources = pieces
    chunks, source_chunks = (sizes.targets + CHUNK - 1) // CHUNK, (sizes.sources + CHUNK - 1) // CHUNK
    for item in range(*items):
        start, stop = lifts[0] * CHUNK, min(lifts[1] * CHUNK, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        for chunk in range(*targets):
            start, stop, number = chunk * CHUNK, min((chunk + 1) * CHUNK, sizes.targets), item * chunks + chunk
            target_gradients(inputs, sizes, item, start, stop, number, outputs, tables, scratch, gradients)
        for chunk in range(*sources):
            start, stop, number = chunk * CHUNK, min((chunk + 1) * CHUNK, sizes.sources), item * source_chunks + chunk
            source_gradients(inputs, sizes, item, start, stop, number, graph, told, tables, scratch, gradients)


def attend(inputs: Inputs, sizes: Sizes, out: Any) -> None:
    """The kernel: out (B, T, H, Q, 4)."""
    items, chunks = sizes.images * sizes.blocks, (_chunks(sizes.sources), _chunks(sizes.targets))

    def whole(part: Part, tables: Tables, scratch: Any) -> None:
        lift_and_attend(part, (0, chunks[0]), (0, chunks[1]), inputs, sizes, tables, scratch, out)

    def phase(part: Part, number: int, item: int, tables: Tables, scratch: Any) -> None:
        pieces = [part if other == number else (0, 0) for other in range(2)]
        lift_and_attend((item, item + 1), *pieces, inputs, sizes, tables, scratch, out)

    if items >= worthwhile(out.size):
        share_out(whole, items, out.size, room=Room(make_room, (sizes, out.dtype, False)))
        return
    tables = make_tables(sizes, out.dtype, False)
    for item in range(items):
        for number in range(2):
            room = Room(make_scratch, (sizes, out.dtype))
            share_out(phase, chunks[number], out.size // items, number, item, tables, room=room)


def attend_backward(inputs: Inputs, sizes: Sizes, outputs: tuple[Any, Any], told: Told, gradients: Gradients) -> None:
    """All gradients from outputs = (output, its gradient); what a residual tells back is added to the features'."""
    items, size, dtype = sizes.images * sizes.blocks, outputs[0].size, outputs[0].dtype
    chunks = (_chunks(sizes.sources), _chunks(sizes.targets), _chunks(sizes.sources))
    graph = reverse_graph(inputs.neighbours, sizes.neighbours, sizes.sources)

    def run(part: Part, pieces: tuple[Part, ...], tables: Tables, scratch: Any) -> None:
        lift_and_differentiate(part, pieces, inputs, sizes, outputs, graph, told, gradients, tables, scratch)

    def whole(part: Part, tables: Tables, scratch: Any) -> None:
        run(part, tuple((0, count) for count in chunks), tables, scratch)

    def phase(part: Part, number: int, item: int, tables: Tables, scratch: Any) -> None:
        run((item, item + 1), tuple(part if other == number else (0, 0) for other in range(3)), tables, scratch)

    if items >= worthwhile(size):
        share_out(whole, items, size, room=Room(make_room, (sizes, dtype, True)))
        return
    tables = make_tables(sizes, dtype, True)
    for item in range(items):
        for number in range(3):
            room = Room(make_scratch, (sizes, dtype))
            share_out(phase, chunks[number], size // items, number, item, tables, room=room)


def _chunks(vertices: int) -> int:
    return -(-vertices // CHUNK)


def make_room(sizes: Sizes, dtype: Any, gradients: bool, shares: int = 1) -> tuple[Tables, Any]:
    """Tables for one item, and scratch."""
    return make_tables(sizes, dtype, gradients, shares), *make_scratch(sizes, dtype, shares)


def make_scratch(sizes: Sizes, dtype: Any, shares: int = 1) -> tuple[tuple[Any, ...]]:
    """One target's scores, weights and their gradients, each (k, 8), and a vertex's sums (Q, 4, 8)."""
    k, Q = sizes.neighbours * LANES, sizes.channels * TILE
    return (tuple(rooms((k, k, k, Q), dtype, shares)),)


def make_tables(sizes: Sizes, dtype: Any, gradients: bool, shares: int = 1) -> Tables:
    """Room for one item."""
    S, T, edges = sizes.sources * TILE, sizes.targets * TILE, sizes.targets * sizes.neighbours * LANES
    counts = (S * sizes.channels, S, T, *((T * sizes.channels, edges, edges) if gradients else (0, 0, 0)))
    return Tables(*rooms(counts, dtype, shares))
