"""The loops of the dot-product kernel, with the same care as the quaternion kernel: same tables, same sums.

Heads lie in lanes, channels in tiles of four; there is no transport, and queries and keys have all channels:

    s_ij = ⟨query_i, key_j⟩ / √C,  w = softmax_j(s),  z_i = Σ_j keep_ij w_ij value_j
    dw_ij = ⟨g_i, value_j⟩,  dquery_i = Σ_j ds_ij key_j,  dkey_j = Σ_i ds_ij query_i,  dvalue_j = Σ_i keep_ij w_ij g_i
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_attention import Sizes, apply_keep, feature_place, fetch_features, softmax
from quatsphere.kernels.numba_attention_backward import score_gradients
from quatsphere.kernels.numba_neighbours import edge_dots, hear, listen, reverse_graph
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_threads import Room, compiled, rooms, share_out
from quatsphere.kernels.numba_transport import TILE, load_tile, store_tile
from quatsphere.kernels.numba_vector import LANES, inner, splat


class DotInputs(NamedTuple):
    """Flat arrays of queries (B, T, H, C), keys and values (B, S, H, C), neighbours (T, k), keep (B, T, k, H)."""

    queries: Any
    keys: Any
    values: Any
    neighbours: Any
    keep: Any


class DotTables(NamedTuple):
    """One item's lane tables; per edge (T, k, 8) the kept weights and the gradient of the score."""

    queries: Any
    keys: Any
    values: Any
    gradient: Any
    kept: Any
    score_gradient: Any


@inner
def to_lanes(sizes, tensor, vertices, item, table):  # type: ignore[no-untyped-def]
    """(B, V, H, C) -> (V, C/4, 4, 8) of one item."""
    for vertex in range(vertices):
        fetch_features(tensor, sizes, vertices, item, vertex)
        offset, stride, count = feature_place(sizes, vertices, item, vertex)
        for channel in range(sizes.channels):
            at = (vertex * sizes.channels + channel) * TILE
            store_tile(table, at, load_quaternions(tensor, offset + 4 * channel, stride, count))


@inner
def weigh(inputs, sizes, item, vertex, tables, scratch, scale):  # type: ignore[no-untyped-def]
    """Scores, weights and kept weights of one target."""
    scores, weights, _, _ = scratch
    k = sizes.neighbours
    edge_dots(inputs.neighbours, k, sizes.channels, vertex, tables.queries, tables.keys, scores)
    share = softmax(sizes, scale, scores, weights)
    apply_keep(inputs, sizes, item, vertex, share, weights, vertex * k * LANES, tables.kept)


@inner
def from_lanes(sizes, vertices, item, vertex, row, out):  # type: ignore[no-untyped-def]
    """One vertex's sums (C/4, 4, 8) -> out (B, V, H, C)."""
    fetch_features(out, sizes, vertices, item, vertex)
    offset, stride, count = feature_place(sizes, vertices, item, vertex)
    for channel in range(sizes.channels):
        store_quaternions(out, offset + 4 * channel, stride, count, load_tile(row, channel * TILE))


@inner
def hear_into(neighbours, sizes, item, vertex, sources, weights, row, out):  # type: ignore[no-untyped-def]
    """Σ_s w_is b_n(i,s) of all channels of one target -> out (B, T, H, C)."""
    k = sizes.neighbours
    hear(neighbours, k, sizes.channels, vertex, sources, weights, vertex * k * LANES, row)
    from_lanes(sizes, sizes.targets, item, vertex, row, out)


@inner
def listen_into(graph, sizes, item, vertex, targets, weights, row, out):  # type: ignore[no-untyped-def]
    """Σ over the edges into one source of w_is a_i, all channels -> out (B, S, H, C)."""
    listen(graph, sizes.channels, vertex, targets, weights, row)
    from_lanes(sizes, sizes.sources, item, vertex, row, out)


@compiled
def attend_items(items, inputs, sizes, tables, scratch, scale, out):  # type: ignore[no-untyped-def]
    """The kernel for whole items (image, eight heads)."""
    for item in range(*items):
        to_lanes(sizes, inputs.queries, sizes.targets, item, tables.queries)
        to_lanes(sizes, inputs.keys, sizes.sources, item, tables.keys)
        to_lanes(sizes, inputs.values, sizes.sources, item, tables.values)
        for vertex in range(sizes.targets):
            weigh(inputs, sizes, item, vertex, tables, scratch, splat(out, scale))
            hear_into(inputs.neighbours, sizes, item, vertex, tables.values, tables.kept, scratch[3], out)


@compiled
def differentiate_items(items, inputs, sizes, tables, scratch, scale, graph, gradient, into):  # type: ignore[no-untyped-def]
    """Gradients of queries, keys and values for whole items; sources gather over the reversed graph."""
    k, Q = sizes.neighbours, sizes.channels
    beta = splat(gradient, scale)
    for item in range(*items):
        to_lanes(sizes, inputs.queries, sizes.targets, item, tables.queries)
        to_lanes(sizes, gradient, sizes.targets, item, tables.gradient)
        to_lanes(sizes, inputs.keys, sizes.sources, item, tables.keys)
        to_lanes(sizes, inputs.values, sizes.sources, item, tables.values)
        for vertex in range(sizes.targets):
            weigh(inputs, sizes, item, vertex, tables, scratch, beta)
            edge_dots(inputs.neighbours, k, Q, vertex, tables.gradient, tables.values, scratch[2])
            score_gradients(sizes, vertex, tables, beta, scratch)
            hear_into(inputs.neighbours, sizes, item, vertex, tables.keys, tables.score_gradient, scratch[3], into[0])
        for vertex in range(sizes.sources):
            listen_into(graph, sizes, item, vertex, tables.queries, tables.score_gradient, scratch[3], into[1])
            listen_into(graph, sizes, item, vertex, tables.gradient, tables.kept, scratch[3], into[2])


def attend(inputs: DotInputs, sizes: Sizes, scale: float, out: Any) -> None:
    """The kernel: out (B, T, H, C)."""
    share_out(
        lambda items, *room: attend_items(items, inputs, sizes, *room, scale, out),
        sizes.images * sizes.blocks,
        out.size,
        room=Room(_make_room, (sizes, out.dtype)),
    )


def attend_backward(inputs: DotInputs, sizes: Sizes, scale: float, gradient: Any, into: tuple[Any, Any, Any]) -> None:
    """Gradients of queries, keys and values."""
    graph = reverse_graph(inputs.neighbours, sizes.neighbours, sizes.sources)
    share_out(
        lambda items, *room: differentiate_items(items, inputs, sizes, *room, scale, graph, gradient, into),
        sizes.images * sizes.blocks,
        gradient.size,
        room=Room(_make_room, (sizes, gradient.dtype)),
    )


def _make_room(sizes: Sizes, dtype: Any) -> tuple[DotTables, tuple[Any, ...]]:
    """Tables for one item, and scratch for one target's scores, weights and their gradients, and a vertex's sums."""
    S, T = sizes.sources * sizes.channels * TILE, sizes.targets * sizes.channels * TILE
    slots = sizes.neighbours * LANES
    tables = DotTables(*rooms((T, S, S, T, sizes.targets * slots, sizes.targets * slots), dtype))
    return tables, tuple(rooms((slots, slots, slots, sizes.channels * TILE), dtype))
