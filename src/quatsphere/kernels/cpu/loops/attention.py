"""Forward loops of the fused quaternion attention: eight heads at a time, only weights stored per edge.

An item is a block of eight heads of one image or, with at most four heads, all heads of several images: they share the
graph, so all lanes of a vector have the same neighbours. Lanes without a head repeat the last one. The lane tables
hold lifted features (S, Q, 4, 8) and routing keys (S, 4, 8).
The score of every routing is an inner product of 4-vectors, target key with source key:

    alignment, absolute   q_i                              q_j
    geometric             (-|q_i|⁴, 2 q_i* p_i q_i)        (|p_j|², p_j)      = -‖p_i - q_i p_j q_i*‖² + |p_i|²

(the last term is the same for all neighbours of i and cancels in the softmax). Gradients: `attention_backward`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.elementwise import exp_nonpositive
from quatsphere.kernels.cpu.loops.jit import chosen_by_type, compiled, inlined
from quatsphere.kernels.cpu.loops.long_vectors import repeat
from quatsphere.kernels.cpu.loops.neighbour_sums import edge_dots, gather_sum_tiles
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    apply_rotation,
    conj,
    dot,
    gather_quaternions,
    lane_offsets,
    lift,
    load_quaternions,
    load_tile,
    rotation_matrix,
    scatter_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import (
    load,
    load_wide,
    mask_gathered,
    mask_vector,
    pointers,
    prefetch,
    prefetch_range,
    select_less,
    splat,
    split_halves,
    store,
)
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, Span, allocate, parallel_for, thread_count

ALIGNMENT, ABSOLUTE, UNIFORM, GEOMETRIC = 0, 1, 2, 3
CHUNK_VERTICES = 32
"""Vertices per unit of work. It affects the result (β's gradient is summed chunk by chunk), so it is not tunable."""
PREFETCH_DISTANCE = 6
"""Vertices between prefetch and use: an item reads parts of rows, a pattern that hardware prefetchers miss."""


class AttentionSizes(NamedTuple):
    """Sizes and modes of an attention problem."""

    images: int
    targets: int
    sources: int
    neighbours: int
    heads: int
    channels: int
    routing: int
    transport: int
    dropped: bool
    keep_scale: float
    packed: int = 1
    """Images per item."""

    @property
    def blocks(self) -> int:
        """Number of blocks of eight heads; the last one may be partial."""
        return -(-self.heads // LANES)

    @property
    def items(self) -> int:
        """Number of items."""
        return -(-self.images // self.packed) * self.blocks


class AttentionArrays(NamedTuple):
    """Input tensors as flat arrays; absent ones are empty. `beta` has one element per lane."""

    target_field: Any
    source_field: Any
    features: Any
    neighbours: Any
    beta: Any
    keep: Any
    target_directions: Any
    source_directions: Any


class AttentionTables(NamedTuple):
    """Lane tables of an item: the sources' features (S, Q, 4, 8) and keys (S, 4, 8), the targets' keys (T, 4, 8); for
    gradients the lifted output gradient (T, Q, 4, 8) and, per edge (T, k, 8), kept weights and score gradients."""

    lifted: Any
    keys: Any
    target_keys: Any
    gradient: Any
    kept: Any
    score_gradient: Any


def images_per_item(sizes: Any) -> int:
    """`sizes.packed`, 1 for sizes without it."""
    raise NotImplementedError("compiled code only")


@chosen_by_type(images_per_item)
def _(sizes: Any) -> Any:
    return (lambda sizes: sizes.packed) if "packed" in sizes.fields else (lambda sizes: 1)


@inlined
def item_images(sizes, item):
    """(first image, number of images, first head, number of heads of each image) of an item."""
    blocks, packed = (sizes.heads + LANES - 1) // LANES, images_per_item(sizes)
    image, first = item // blocks * packed, (item % blocks) * LANES
    return image, min(packed, sizes.images - image), first, min(LANES, sizes.heads - first)


@inlined
def item_lanes(sizes, rows, item, size):
    """(offset of the first row, elements per row, offsets of the lanes) of an item in a tensor (B, rows, H, size)."""
    image, images, first, heads = item_images(sizes, item)
    row = sizes.heads * size
    return image * rows * row + first * size, row, lane_offsets(images * heads, heads, size, rows * row)


@inlined
def item_heads(sizes, item):
    """(image, first head, number of heads) of an item of one image."""
    blocks = (sizes.heads + LANES - 1) // LANES
    first = (item % blocks) * LANES
    return item // blocks, first, min(LANES, sizes.heads - first)


@inlined
def load_field(field, sizes, vertices, item, vertex):
    """The quaternions of one vertex from a field (B, V, H, 4), for an item of one image."""
    image, first, count = item_heads(sizes, item)
    return load_quaternions(field, ((image * vertices + vertex) * sizes.heads + first) * 4, 4, count)


@inlined
def feature_offset(sizes, vertices, item, vertex):
    """(offset, stride between heads, number of heads) of the features of one vertex in (B, V, H, Q, 4), for an item of
    one image."""
    image, first, count = item_heads(sizes, item)
    stride = 4 * sizes.channels
    return ((image * vertices + vertex) * sizes.heads + first) * stride, stride, count


@inlined
def prefetch_field(field, sizes, vertices, place, vertex):
    """Prefetch the quaternions of a later vertex; place = item_images(...), divided once and not per vertex."""
    image, images, first, heads = place
    for other in range(image, image + images):
        row = (other * vertices + vertex + PREFETCH_DISTANCE) * sizes.heads + first
        prefetch_range(field, 4 * row, 4 * heads)


@inlined
def prefetch_features(tensor, sizes, vertices, place, vertex):
    """Prefetch the features of a later vertex, to read or to write."""
    image, images, first, heads = place
    for other in range(image, image + images):
        row = (other * vertices + vertex + PREFETCH_DISTANCE) * sizes.heads + first
        prefetch_range(tensor, 4 * sizes.channels * row, 4 * sizes.channels * heads)


@inlined
def prefetch_keep(keep, sizes, place, vertex):
    """Prefetch the dropout mask (bytes, all heads) of a later target."""
    if sizes.dropped:
        image, images, _, _ = place
        row = sizes.neighbours * sizes.heads
        for other in range(image, image + images):
            for offset in range(0, row, 64):
                prefetch(keep, (other * sizes.targets + vertex + PREFETCH_DISTANCE) * row + offset)


@inlined
def direction(directions, like, vertex):
    """(0, p) with the vertex's direction in every lane."""
    x, y, z = directions[3 * vertex], directions[3 * vertex + 1], directions[3 * vertex + 2]
    return splat(like, 0.0), splat(like, x), splat(like, y), splat(like, z)


@inlined
def target_key(inputs, sizes, q, vertex):
    """Routing key of a target."""
    if sizes.routing != GEOMETRIC:
        return q
    p = direction(inputs.target_directions, q[0], vertex)
    _, x, y, z = apply_rotation(rotation_matrix(conj(q)), p)
    square = dot(q, q)
    return splat(square, 0.0) - square * square, x + x, y + y, z + z


@inlined
def source_key(inputs, sizes, q, vertex):
    """Routing key of a source."""
    if sizes.routing != GEOMETRIC:
        return q
    p = direction(inputs.source_directions, q[0], vertex)
    return dot(p, p), p[1], p[2], p[3]


@inlined
def lift_vertex(sizes, q, tensor, index, lanes, table, at):
    """Lift one vertex's features at index + lanes of (B, V, H, Q, 4) into a lane table."""
    matrix = rotation_matrix(q)
    for channel in range(sizes.channels):
        x = gather_quaternions(tensor, index + 4 * channel, lanes)
        store_tile(table, at + channel * TILE_SIZE, lift(sizes.transport, q, matrix, x))


@inlined
def lift_sources(inputs, sizes, item, start, stop, tables):
    """Lift the features of sources start..stop once, and write their keys."""
    row = sizes.channels * TILE_SIZE
    at, step, lanes = item_lanes(sizes, sizes.sources, item, 4)
    features_at, width, feature_lanes = item_lanes(sizes, sizes.sources, item, 4 * sizes.channels)
    place = item_images(sizes, item)
    for vertex in range(start, stop):
        prefetch_field(inputs.source_field, sizes, sizes.sources, place, vertex)
        prefetch_features(inputs.features, sizes, sizes.sources, place, vertex)
        q = gather_quaternions(inputs.source_field, at + vertex * step, lanes)
        store_tile(tables.keys, vertex * TILE_SIZE, source_key(inputs, sizes, q, vertex))
        index = features_at + vertex * width
        lift_vertex(sizes, q, inputs.features, index, feature_lanes, tables.lifted, vertex * row)


@inlined
def softmax(sizes, beta, scores, weights):
    """Unnormalised softmax weights (k, 8) of β score (β |score| for absolute routing, 1 for uniform); return the
    factor that normalises them."""
    k, zero = sizes.neighbours, splat(beta, 0.0)
    if sizes.routing == UNIFORM:
        for slot in range(k):
            store(weights, slot * LANES, splat(beta, 1.0))
        return splat(beta, 1.0 / k)
    top = splat(beta, -float("inf"))
    for slot in range(k):
        score = load(scores, slot * LANES)
        if sizes.routing == ABSOLUTE:
            score = select_less(score, zero, zero - score, score)
        logit = beta * score
        top = select_less(top, logit, logit, top)
        store(weights, slot * LANES, logit)
    total, wide_top = zero, repeat(load_wide(weights, k - k), top)
    for slot in range(0, k, 2):  # a register of AVX-512 holds two slots; that behind an odd number is not used
        pair = exp_nonpositive(load_wide(weights, slot * LANES) - wide_top)
        store(weights, slot * LANES, pair)
        weight, next_weight = split_halves(pair)
        total = total + weight
        if slot + 1 < k:
            total = total + next_weight
    return splat(beta, 1.0) / total


@inlined
def mask_lanes_of(sizes, item):
    """(offset of the first row, elements per row, offsets of the lanes, whether these are adjacent) of an item in the
    dropout mask (B, T k, H)."""
    _, _, _, heads = item_images(sizes, item)
    first, step, lanes = item_lanes(sizes, sizes.targets * sizes.neighbours, item, 1)
    return first, step, lanes, heads == LANES


@inlined
def apply_keep(inputs, sizes, mask, vertex, scale, weights, at, kept):
    """Multiply the weights (k, 8) by `scale`, and write them after dropout, mask = mask_lanes_of(...), to kept[at:]."""
    (first, step, lanes, adjacent), k = mask, sizes.neighbours
    for slot in range(k):
        weight, edge = load(weights, slot * LANES) * scale, first + (vertex * k + slot) * step
        store(weights, slot * LANES, weight)
        if sizes.dropped:
            if adjacent:
                weight = mask_vector(inputs.keep, edge, weight)
            else:
                weight = mask_gathered(inputs.keep, edge, lanes, weight)
            weight = weight * sizes.keep_scale
        store(kept, at + slot * LANES, weight)


@inlined
def route(inputs, sizes, beta, mask, vertex, tables, key, scratch, at, kept):
    """Scores and weights (k, 8) of one target into the scratch, its weights after dropout into kept[at:]."""
    scores, weights, _, _ = scratch
    store_tile(tables.target_keys, vertex * TILE_SIZE, key)
    if sizes.routing != UNIFORM:
        edge_dots(inputs.neighbours, sizes.neighbours, 1, vertex, tables.target_keys, tables.keys, scores)
    scale = softmax(sizes, beta, scores, weights)
    apply_keep(inputs, sizes, mask, vertex, scale, weights, at, kept)


@inlined
def attend_targets(inputs, sizes, item, start, stop, tables, scratch, out):
    """Targets start..stop: weights, weighted sum in the shared frame, lowered once -> out (B, T, H, Q, 4)."""
    weights, aggregated, zero = scratch[1], scratch[3], start - start
    k, Q = sizes.neighbours, sizes.channels
    at, step, lanes = item_lanes(sizes, sizes.targets, item, 4)
    out_at, width, out_lanes = item_lanes(sizes, sizes.targets, item, 4 * Q)
    place, mask = item_images(sizes, item), mask_lanes_of(sizes, item)
    beta = load(inputs.beta, place[2])
    for vertex in range(start, stop):
        prefetch_field(inputs.target_field, sizes, sizes.targets, place, vertex)
        prefetch_features(out, sizes, sizes.targets, place, vertex)
        prefetch_keep(inputs.keep, sizes, place, vertex)
        q = gather_quaternions(inputs.target_field, at + vertex * step, lanes)
        key = target_key(inputs, sizes, q, vertex)
        route(inputs, sizes, beta, mask, vertex, tables, key, scratch, zero, weights)
        inverse = conj(q)
        matrix = rotation_matrix(inverse)
        gather_sum_tiles(inputs.neighbours, k, Q, vertex, tables.lifted, weights, zero, aggregated)
        for channel in range(Q):
            lowered = lift(sizes.transport, inverse, matrix, load_tile(aggregated, channel * TILE_SIZE))
            scatter_quaternions(out, out_at + vertex * width + 4 * channel, out_lanes, lowered)


@compiled
def attend_items(items, chunks, inputs, sizes, out, tables, scratch):
    """Lift the chunks of sources chunks[0], then attend for the chunks of targets chunks[1], for each item."""
    sources, targets = chunks
    inputs, out, tables, scratch = pointers((inputs, out, tables, scratch))
    for item in range(*items):
        start, stop = sources[0] * CHUNK_VERTICES, min(sources[1] * CHUNK_VERTICES, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        start, stop = targets[0] * CHUNK_VERTICES, min(targets[1] * CHUNK_VERTICES, sizes.targets)
        attend_targets(inputs, sizes, item, start, stop, tables, scratch, out)


def run_attention(inputs: AttentionArrays, sizes: AttentionSizes, out: Any) -> None:
    """Attention of all items -> out (B, T, H, Q, 4)."""

    def run(items: Span, chunks: tuple[Span, ...], tables: AttentionTables, scratch: Any) -> None:
        attend_items(items, chunks, inputs, sizes, out, tables, scratch)

    run_phases(run, sizes, (sizes.sources, sizes.targets), out.size, inputs.features.dtype, False)


def run_phases(
    run: Callable[..., None], sizes: AttentionSizes, vertices: tuple[int, ...], size: int, dtype: Any, gradients: bool
) -> None:
    """Run loops in phases, one per entry of `vertices`: run(items, one range of chunks per phase, tables, scratch).

    If there are at least as many items as threads, each thread takes whole items, whose tables stay in its cache. If
    there are fewer, all threads share the chunks of each phase of one item. Chunks have a fixed size and write to
    disjoint places, so both ways give the same result for any number of threads.
    """
    items, chunks = sizes.items, [chunk_count(count) for count in vertices]

    def run_items(span: Span, tables: AttentionTables, scratch: Any) -> None:
        run(span, tuple((0, count) for count in chunks), tables, scratch)

    def run_chunks(span: Span, phase: int, item: int, tables: AttentionTables, scratch: Any) -> None:
        run((item, item + 1), tuple(span if p == phase else (0, 0) for p in range(len(chunks))), tables, scratch)

    if items >= thread_count(size):
        parallel_for(run_items, items, size, scratch=ScratchSpec(allocate_attention, (sizes, dtype, gradients)))
        return
    tables, spec = allocate_tables(sizes, dtype, gradients), ScratchSpec(allocate_target_scratch, (sizes, dtype))
    for item in range(items):
        for phase, count in enumerate(chunks):
            parallel_for(run_chunks, count, size // items, phase, item, tables, scratch=spec)


def chunk_count(vertices: int) -> int:
    """Number of chunks of vertices."""
    return -(-vertices // CHUNK_VERTICES)


def allocate_attention(
    sizes: AttentionSizes, dtype: Any, gradients: bool, threads: int = 1
) -> tuple[AttentionTables, Any]:
    """Tables of an item and scratch of a target."""
    return allocate_tables(sizes, dtype, gradients, threads), *allocate_target_scratch(sizes, dtype, threads)


def allocate_target_scratch(sizes: AttentionSizes, dtype: Any, threads: int = 1) -> tuple[tuple[Any, ...]]:
    """Scores, weights and weight gradients of a target, each (k, 8), and a vertex's sums (Q, 4, 8); k is even here."""
    k, Q = (sizes.neighbours + sizes.neighbours % 2) * LANES, sizes.channels * TILE_SIZE
    return (tuple(allocate((k, k, k, Q), dtype, threads)),)


def allocate_tables(sizes: AttentionSizes, dtype: Any, gradients: bool, threads: int = 1) -> AttentionTables:
    """Tables of an item."""
    S, T, edges = sizes.sources * TILE_SIZE, sizes.targets * TILE_SIZE, sizes.targets * sizes.neighbours * LANES
    counts = (S * sizes.channels, S, T, *((T * sizes.channels, edges, edges) if gradients else (0, 0, 0)))
    return AttentionTables(*allocate(counts, dtype, threads))
