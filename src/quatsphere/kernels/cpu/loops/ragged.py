"""Forward loops of the fused attention over a sorted edge list: any number of neighbours, and rotations of edges.

Lane tables and keys are those of `attention`. The edges of a target are cut into *parts* of at most PART_EDGES, and
parts of about equal total cost form chunks, so that one target with most of the edges is shared by all threads. A part
that is a whole target writes its result. The others write partial sums (largest logit, total weight, weighted sum),
which a second pass adds in their order. Parts and chunks depend on the graph alone: the result is the same for any
number of threads.

An edge rotation u acts in the shared frame: on a lifted source as `lift` does, and on its routing key from the left
(geometric keys do not depend on it). Gradients: `ragged_backward`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.attention import (
    ABSOLUTE,
    CHUNK_VERTICES,
    GEOMETRIC,
    UNIFORM,
    chunk_count,
    feature_offset,
    item_heads,
    item_images,
    lift_sources,
    load_field,
    prefetch_features,
    prefetch_field,
    target_key,
)
from quatsphere.kernels.cpu.loops.elementwise import exp_nonpositive
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import edge_dots, gather_sum_tiles
from quatsphere.kernels.cpu.loops.partial_vectors import mask_lanes
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    conj,
    dot,
    hamilton_product,
    lift,
    load_quaternions,
    load_tile,
    rotation_matrix,
    store_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import fma, load, load_scalar, select_less, splat, store
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, Span, allocate, parallel_for, thread_count

PART_EDGES, CHUNK_COST, VERTEX_COST = 256, 512, 8
"""Largest number of edges of a part, and least cost of a chunk: its edges plus VERTEX_COST per part. All three affect
the order of sums, so they are not tunable."""


class RaggedSizes(NamedTuple):
    """Sizes and modes. `transport` lifts the sources, `target_transport` the targets, `edge_transport` is that of the
    rotations; `rotations` is the number of rotations per edge: 0, 1 or the number of heads."""

    images: int
    targets: int
    sources: int
    edges: int
    heads: int
    channels: int
    routing: int
    transport: int
    target_transport: int
    edge_transport: int
    rotations: int
    dropped: bool
    keep_scale: float


class RaggedArrays(NamedTuple):
    """Input tensors as flat arrays; absent ones are empty. `beta` is padded to whole blocks."""

    target_field: Any
    source_field: Any
    features: Any
    source: Any
    rotation: Any
    beta: Any
    keep: Any
    target_directions: Any
    source_directions: Any


class Parts(NamedTuple):
    """Edges offsets[p] : offsets[p + 1] of vertex[p], a part. Chunk c is chunks[c] : chunks[c + 1] of the parts.
    partial[p] is the row of its partial sums, -1 for a part that is a whole vertex; the parts of the s-th vertex with
    several are split[s] : split[s + 1] among the partial rows, and its number is split_vertex[s]."""

    offsets: Any
    vertex: Any
    chunks: Any
    partial: Any
    split: Any
    split_vertex: Any


class RaggedTables(NamedTuple):
    """Lane tables of an item: as `AttentionTables`, with the edges instead of (T, k), and rows of partial sums."""

    lifted: Any
    keys: Any
    target_keys: Any
    gradient: Any
    kept: Any
    score_gradient: Any
    partial: Any


def cut_rows(rows: Any) -> Parts:
    """Parts of the rows of a sorted edge list, rows[i] : rows[i + 1]."""
    degrees = np.diff(rows)
    counts = np.maximum(1, -(-degrees // PART_EDGES))
    first = np.concatenate(([0], np.cumsum(counts)))
    vertex = np.repeat(np.arange(len(degrees)), counts)
    within = np.arange(first[-1]) - first[vertex]
    offsets = np.append(rows[vertex] + within * PART_EDGES, rows[-1])
    cost = np.concatenate(([0], np.cumsum(np.diff(offsets) + VERTEX_COST)))[:-1] // CHUNK_COST
    chunks = np.searchsorted(cost, np.arange(cost[-1] + 2 if len(cost) else 1))
    is_split = counts > 1
    partial = np.where(is_split[vertex], np.cumsum(is_split[vertex]) - 1, -1)
    split = np.concatenate(([0], np.cumsum(counts[is_split])))
    return Parts(offsets, vertex, chunks, partial, split, np.flatnonzero(is_split))


def partial_row(sizes: Any) -> int:
    """Elements of a row of partial sums: two vectors and Q + 1 tiles."""
    return 2 * LANES + (sizes.channels + 1) * TILE_SIZE


@inlined
def load_rotation(inputs, sizes, item, edge):
    """The item's rotations of one edge; heads that share one have it in every lane."""
    _, first, count = item_heads(sizes, item)
    if sizes.rotations == 1:
        return load_quaternions(inputs.rotation, edge * 4, 0, LANES)
    return load_quaternions(inputs.rotation, (edge * sizes.heads + first) * 4, 4, count)


@inlined
def turned_key(sizes, u, key):
    """Key of a source as seen along an edge with rotation u."""
    if sizes.routing == GEOMETRIC:
        return key
    return hamilton_product(u, key)


@inlined
def part_scores(inputs, sizes, item, start, stop, key, tables, scratch):
    """Scores (n, 8) of the edges start..stop of a target with this key -> scratch[0]."""
    scores, _, tile = scratch[0], scratch[1], scratch[2]
    if sizes.rotations == 0:
        store_tile(tile, start - start, key)
        edge_dots(inputs.source[start:stop], stop - start, 1, start - start, tile, tables.keys, scores)
        return
    for edge in range(start, stop):
        other = load_tile(tables.keys, load_scalar(inputs.source, edge) * TILE_SIZE)
        turned = turned_key(sizes, load_rotation(inputs, sizes, item, edge), other)
        store(scores, (edge - start) * LANES, dot(key, turned))


@inlined
def part_logits(sizes, beta, count, scratch):
    """Replace the scores (n, 8) in scratch[0] by logits; return the largest."""
    zero, top = splat(beta, 0.0), splat(beta, -float("inf"))
    for slot in range(count):
        score = load(scratch[0], slot * LANES)
        if sizes.routing == ABSOLUTE:
            score = select_less(score, zero, zero - score, score)
        logit = beta * score
        top = select_less(top, logit, logit, top)
        store(scratch[0], slot * LANES, logit)
    return top


@inlined
def part_weights(inputs, sizes, item, start, stop, top, scratch):
    """Unnormalised weights (n, 8) after dropout -> scratch[1], from the logits in scratch[0]; return their sum before
    dropout."""
    image, first, count = item_heads(sizes, item)
    total = splat(top, 0.0)
    for edge in range(start, stop):
        at = (edge - start) * LANES
        weight = splat(top, 1.0)
        if sizes.routing != UNIFORM:
            weight = exp_nonpositive(load(scratch[0], at) - top)
        total = total + weight
        if sizes.dropped:
            where = (image * sizes.edges + edge) * sizes.heads + first
            weight = mask_lanes(inputs.keep, where, count, weight) * sizes.keep_scale
        store(scratch[1], at, weight)
    return total


@inlined
def part_sum(inputs, sizes, item, start, stop, tables, scratch, out, at):
    """Σ w_e lift(u_e, y_j(e)) of the edges start..stop with the weights in scratch[1] -> out[at:], (Q, 4, 8)."""
    zero, Q = splat(out, 0.0), sizes.channels
    if sizes.rotations == 0:
        first, neighbours = start - start, inputs.source[start:stop]
        gather_sum_tiles(neighbours, stop - start, Q, first, tables.lifted, scratch[1], first, out[at:])
        return
    for channel in range(Q):
        store_tile(out, at + channel * TILE_SIZE, (zero, zero, zero, zero))
    for edge in range(start, stop):
        weight = load(scratch[1], (edge - start) * LANES)
        u = load_rotation(inputs, sizes, item, edge)
        matrix = rotation_matrix(u)
        row = load_scalar(inputs.source, edge) * Q * TILE_SIZE
        for channel in range(Q):
            y = lift(sizes.edge_transport, u, matrix, load_tile(tables.lifted, row + channel * TILE_SIZE))
            add_tile(out, at + channel * TILE_SIZE, weight, y)


@inlined
def add_tile(table, at, weight, tile):
    """Add weight times a tile to the one at `at`."""
    sums = load_tile(table, at)
    w, x, y, z = (
        fma(weight, tile[0], sums[0]),
        fma(weight, tile[1], sums[1]),
        fma(weight, tile[2], sums[2]),
        fma(weight, tile[3], sums[3]),
    )
    store_tile(table, at, (w, x, y, z))


@inlined
def finish_target(sizes, item, vertex, q, scale, sums, at, out):
    """Multiply a target's sums (Q, 4, 8) by `scale`, lower them, and write them to out (B, T, H, Q, 4)."""
    offset, stride, count = feature_offset(sizes, sizes.targets, item, vertex)
    inverse = conj(q)
    matrix = rotation_matrix(inverse)
    for channel in range(sizes.channels):
        w, x, y, z = load_tile(sums, at + channel * TILE_SIZE)
        lowered = lift(sizes.target_transport, inverse, matrix, (w * scale, x * scale, y * scale, z * scale))
        store_quaternions(out, offset + 4 * channel, stride, count, lowered)


@inlined
def store_state(sizes, state, item, vertex, top, scale):
    """Write what the gradient needs of a target's softmax: its largest logit and one over its total weight."""
    at = (item * sizes.targets + vertex) * 2 * LANES
    store(state, at, top)
    store(state, at + LANES, scale)


@inlined
def attend_parts(inputs, sizes, item, parts, span, tables, scratch, out, state):
    """Parts span[0]..span[1]: the output and softmax state of whole targets, partial sums of the others."""
    place = item_images(sizes, item)
    beta, row = load(inputs.beta, place[2]), 2 * LANES + (sizes.channels + 1) * TILE_SIZE
    zero, one = splat(beta, 0.0), splat(beta, 1.0)
    for part in range(*span):
        vertex, start, stop = parts.vertex[part], parts.offsets[part], parts.offsets[part + 1]
        prefetch_field(inputs.target_field, sizes, sizes.targets, place, vertex)
        prefetch_features(out, sizes, sizes.targets, place, vertex)
        q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        top = zero
        if sizes.routing != UNIFORM:
            part_scores(inputs, sizes, item, start, stop, target_key(inputs, sizes, q, vertex), tables, scratch)
            top = part_logits(sizes, beta, stop - start, scratch)
        total = part_weights(inputs, sizes, item, start, stop, top, scratch)
        at = parts.partial[part] * row
        if at < 0:
            scale = zero if start == stop else one / total
            part_sum(inputs, sizes, item, start, stop, tables, scratch, scratch[2], start - start)
            finish_target(sizes, item, vertex, q, scale, scratch[2], start - start, out)
            store_state(sizes, state, item, vertex, top, scale)
        else:
            part_sum(inputs, sizes, item, start, stop, tables, scratch, tables.partial, at + 2 * LANES)
            store(tables.partial, at, top)
            store(tables.partial, at + LANES, total)


@inlined
def join_parts(inputs, sizes, item, parts, span, tables, scratch, out, state):
    """The output and softmax state of targets split_vertex[span[0] : span[1]], whose parts are done."""
    row, sums = 2 * LANES + (sizes.channels + 1) * TILE_SIZE, scratch[2]
    zero, one = splat(inputs.beta, 0.0), splat(inputs.beta, 1.0)
    for index in range(*span):
        vertex = parts.split_vertex[index]
        rows = range(parts.split[index], parts.split[index + 1])
        top, total = splat(zero, -float("inf")), zero
        for part in rows:
            other = load(tables.partial, part * row)
            top = select_less(top, other, other, top)
        for channel in range(sizes.channels):
            store_tile(sums, channel * TILE_SIZE, (zero, zero, zero, zero))
        for part in rows:
            factor = exp_nonpositive(load(tables.partial, part * row) - top)
            total = fma(factor, load(tables.partial, part * row + LANES), total)
            for channel in range(sizes.channels):
                tile = load_tile(tables.partial, part * row + 2 * LANES + channel * TILE_SIZE)
                add_tile(sums, channel * TILE_SIZE, factor, tile)
        q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        finish_target(sizes, item, vertex, q, one / total, sums, vertex - vertex, out)
        store_state(sizes, state, item, vertex, top, one / total)


@compiled
def attend_ragged_items(items, spans, inputs, sizes, parts, out, state, tables, scratch):
    """For each item lift the chunks of sources spans[0], attend for the chunks of parts spans[1], and join the parts of
    the targets spans[2]."""
    lifts, chunks, joins = spans
    for item in range(*items):
        start, stop = lifts[0] * CHUNK_VERTICES, min(lifts[1] * CHUNK_VERTICES, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        span = parts.chunks[chunks[0]], parts.chunks[chunks[1]]
        attend_parts(inputs, sizes, item, parts, span, tables, scratch, out, state)
        join_parts(inputs, sizes, item, parts, joins, tables, scratch, out, state)


def run_ragged_attention(inputs: RaggedArrays, sizes: RaggedSizes, parts: Parts, out: Any, state: Any) -> None:
    """Attention of all items -> out (B, T, H, Q, 4), and the state of the softmax (items, T, 2, 8)."""

    def run(items: Span, spans: tuple[Span, ...], tables: RaggedTables, scratch: Any) -> None:
        attend_ragged_items(items, spans, inputs, sizes, parts, out, state, tables, scratch)

    counts = chunk_count(sizes.sources), len(parts.chunks) - 1, len(parts.split_vertex)
    run_ragged_phases(run, sizes, counts, int(parts.split[-1]), out.dtype, gradients=False)


def run_ragged_phases(
    run: Callable[..., None],
    sizes: RaggedSizes,
    counts: tuple[int, ...],
    partial_rows: int,
    dtype: Any,
    *,
    gradients: bool,
    one_item_at_a_time: bool = False,
) -> None:
    """Run loops in phases with counts[phase] units of work: run(items, one range of units per phase, tables, scratch).

    Each thread takes whole items if there are enough, else all threads share the units of each phase of one item.
    """
    items = sizes.images * -(-sizes.heads // LANES)
    outputs = sizes.images * sizes.heads * sizes.channels * 4
    size = outputs * max(sizes.targets, sizes.edges // 16)  # edges, at 16 per output
    key = _table_counts(sizes, partial_rows, gradients), sizes.channels, dtype

    def run_items(span: Span, tables: RaggedTables, scratch: Any) -> None:
        run(span, tuple((0, count) for count in counts), tables, scratch)

    def run_units(span: Span, phase: int, item: int, tables: RaggedTables, scratch: Any) -> None:
        run((item, item + 1), tuple(span if p == phase else (0, 0) for p in range(len(counts))), tables, scratch)

    if items >= thread_count(size) and not one_item_at_a_time:
        parallel_for(run_items, items, size, scratch=ScratchSpec(_allocate_item, key))
        return
    tables, spec = RaggedTables(*allocate(key[0], dtype)), ScratchSpec(_allocate_part, key[1:])
    for item in range(items):
        for phase, count in enumerate(counts):
            if count:
                parallel_for(run_units, count, size // items, phase, item, tables, scratch=spec)


def _table_counts(sizes: RaggedSizes, partial_rows: int, gradients: bool) -> tuple[int, ...]:
    """Elements of the tables of an item, rounded up so that graphs of about the same size share cached scratch."""
    S, T, edges = sizes.sources * TILE_SIZE, sizes.targets * TILE_SIZE, sizes.edges * LANES
    counts = (S * sizes.channels, S, *((T, T * sizes.channels, edges, edges) if gradients else (0, 0, 0, 0)))
    return tuple(map(_round_up, (*counts, partial_rows * partial_row(sizes))))


def _round_up(count: int) -> int:
    """Next multiple of a quarter of the largest power of two up to `count`."""
    step = max(1, (1 << max(0, count.bit_length() - 1)) // 4)
    return -(-count // step) * step


def _allocate_item(counts: tuple[int, ...], channels: int, dtype: Any) -> tuple[RaggedTables, Any]:
    """Tables of an item and scratch of a part."""
    return RaggedTables(*allocate(counts, dtype)), *_allocate_part(channels, dtype)


def _allocate_part(channels: int, dtype: Any) -> tuple[tuple[Any, ...]]:
    """Scores and weights (PART_EDGES, 8) of a part, sums (Q, 4, 8), and a lifted gradient (Q, 4, 8)."""
    edges, row = PART_EDGES * LANES, channels * TILE_SIZE
    return (tuple(allocate((edges, edges, max(row, TILE_SIZE), row), dtype)),)
