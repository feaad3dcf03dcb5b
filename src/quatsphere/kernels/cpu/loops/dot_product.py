"""Loops of the fused dot-product attention, on the same lane tables and sums as the quaternion attention.

Heads are lanes, channels come in tiles of four; there is no transport, and queries and keys have all channels:

    s_ij = ⟨query_i, key_j⟩ / √C,  w = softmax_j(s),  z_i = Σ_j keep_ij w_ij value_j
    dw_ij = ⟨g_i, value_j⟩,  dquery_i = Σ_j ds_ij key_j,  dkey_j = Σ_i ds_ij query_i,  dvalue_j = Σ_i keep_ij w_ij g_i
"""

from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.attention import (
    AttentionSizes,
    allocate_target_scratch,
    apply_keep,
    feature_offset,
    item_images,
    mask_lanes_of,
    prefetch_features,
    softmax,
)
from quatsphere.kernels.cpu.loops.attention_backward import score_gradients
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import edge_dots, gather_sum_tiles, reverse_graph, scatter_sum_tiles
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    load_quaternions,
    load_tile,
    store_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import splat
from quatsphere.kernels.cpu.loops.threads import ScratchSpec, allocate, parallel_for


class DotInputs(NamedTuple):
    """Flat arrays of queries (B, T, H, C), keys and values (B, S, H, C), neighbours (T, k), keep (B, T, k, H)."""

    queries: Any
    keys: Any
    values: Any
    neighbours: Any
    keep: Any


class DotTables(NamedTuple):
    """Lane tables of an item; per edge (T, k, 8) kept weights and score gradients."""

    queries: Any
    keys: Any
    values: Any
    gradient: Any
    kept: Any
    score_gradient: Any


@inlined
def to_lanes(sizes, tensor, vertices, item, table):
    """(B, V, H, C) -> (V, C/4, 4, 8) of one item."""
    place = item_images(sizes, item)
    for vertex in range(vertices):
        prefetch_features(tensor, sizes, vertices, place, vertex)
        offset, stride, count = feature_offset(sizes, vertices, item, vertex)
        for channel in range(sizes.channels):
            at = (vertex * sizes.channels + channel) * TILE_SIZE
            store_tile(table, at, load_quaternions(tensor, offset + 4 * channel, stride, count))


@inlined
def from_lanes(sizes, vertices, item, vertex, row, out):
    """One vertex's sums (C/4, 4, 8) -> out (B, V, H, C)."""
    prefetch_features(out, sizes, vertices, item_images(sizes, item), vertex)
    offset, stride, count = feature_offset(sizes, vertices, item, vertex)
    for channel in range(sizes.channels):
        store_quaternions(out, offset + 4 * channel, stride, count, load_tile(row, channel * TILE_SIZE))


@inlined
def dot_weights(inputs, sizes, mask, vertex, tables, scratch, scale):
    """Scores, weights and kept weights of one target."""
    scores, weights, _, _ = scratch
    k = sizes.neighbours
    edge_dots(inputs.neighbours, k, sizes.channels, vertex, tables.queries, tables.keys, scores)
    normaliser = softmax(sizes, scale, scores, weights)
    apply_keep(inputs, sizes, mask, vertex, normaliser, weights, vertex * k * LANES, tables.kept)


@inlined
def gather_sum_into(neighbours, sizes, item, vertex, sources, weights, row, out):
    """Σ_s w_is b_n(i,s) of all channels of one target -> out (B, T, H, C)."""
    k = sizes.neighbours
    gather_sum_tiles(neighbours, k, sizes.channels, vertex, sources, weights, vertex * k * LANES, row)
    from_lanes(sizes, sizes.targets, item, vertex, row, out)


@inlined
def scatter_sum_into(graph, sizes, item, vertex, targets, weights, row, out):
    """Σ over the edges into one source of w_is a_i, all channels -> out (B, S, H, C)."""
    scatter_sum_tiles(graph, sizes.channels, vertex, targets, weights, row)
    from_lanes(sizes, sizes.sources, item, vertex, row, out)


@compiled
def dot_attend_items(items, inputs, sizes, tables, scratch, scale, out):
    """Attention for a range of items."""
    for item in range(*items):
        to_lanes(sizes, inputs.queries, sizes.targets, item, tables.queries)
        to_lanes(sizes, inputs.keys, sizes.sources, item, tables.keys)
        to_lanes(sizes, inputs.values, sizes.sources, item, tables.values)
        mask = mask_lanes_of(sizes, item)
        for vertex in range(sizes.targets):
            dot_weights(inputs, sizes, mask, vertex, tables, scratch, splat(out, scale))
            gather_sum_into(inputs.neighbours, sizes, item, vertex, tables.values, tables.kept, scratch[3], out)


@compiled
def dot_attend_backward_items(items, inputs, sizes, tables, scratch, scale, graph, gradient, into):
    """Gradients of queries, keys and values for a range of items; sources gather over the reversed graph."""
    neighbours, sums = inputs.neighbours, scratch[3]
    beta = splat(gradient, scale)
    for item in range(*items):
        to_lanes(sizes, inputs.queries, sizes.targets, item, tables.queries)
        to_lanes(sizes, gradient, sizes.targets, item, tables.gradient)
        to_lanes(sizes, inputs.keys, sizes.sources, item, tables.keys)
        to_lanes(sizes, inputs.values, sizes.sources, item, tables.values)
        mask = mask_lanes_of(sizes, item)
        for vertex in range(sizes.targets):
            dot_weights(inputs, sizes, mask, vertex, tables, scratch, beta)
            edge_dots(neighbours, sizes.neighbours, sizes.channels, vertex, tables.gradient, tables.values, scratch[2])
            score_gradients(sizes, vertex, tables, beta, scratch)
            gather_sum_into(neighbours, sizes, item, vertex, tables.keys, tables.score_gradient, sums, into[0])
        for vertex in range(sizes.sources):
            scatter_sum_into(graph, sizes, item, vertex, tables.queries, tables.score_gradient, sums, into[1])
            scatter_sum_into(graph, sizes, item, vertex, tables.gradient, tables.kept, sums, into[2])


def run_dot_attention(inputs: DotInputs, sizes: AttentionSizes, scale: float, out: Any) -> None:
    """Attention of all items -> out (B, T, H, C)."""
    parallel_for(
        lambda items, *scratch: dot_attend_items(items, inputs, sizes, *scratch, scale, out),
        sizes.images * sizes.blocks,
        out.size,
        scratch=ScratchSpec(_allocate, (sizes, out.dtype)),
    )


def run_dot_attention_backward(
    inputs: DotInputs, sizes: AttentionSizes, scale: float, gradient: Any, into: tuple[Any, Any, Any]
) -> None:
    """Gradients of queries, keys and values."""
    graph = reverse_graph(inputs.neighbours, sizes.neighbours, sizes.sources)
    parallel_for(
        lambda items, *scratch: dot_attend_backward_items(items, inputs, sizes, *scratch, scale, graph, gradient, into),
        sizes.images * sizes.blocks,
        gradient.size,
        scratch=ScratchSpec(_allocate, (sizes, gradient.dtype)),
    )


def _allocate(sizes: AttentionSizes, dtype: Any) -> tuple[DotTables, Any]:
    S, T = sizes.sources * sizes.channels * TILE_SIZE, sizes.targets * sizes.channels * TILE_SIZE
    edges = sizes.targets * sizes.neighbours * LANES
    return DotTables(*allocate((T, S, S, T, edges, edges), dtype)), *allocate_target_scratch(sizes, dtype)
