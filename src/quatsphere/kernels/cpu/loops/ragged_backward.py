"""Gradient loops of the fused attention over a sorted edge list; the notation is that of `attention_backward`.

The forward pass left the largest logit t_i and one over the total weight n_i of each target, so that an edge needs no
other edge of its target:

    w_ij = exp(β s_ij - t_i) n_i     ds_ij = w_ij (keep_ij dw_ij - m_i)     m_i = Σ_j keep_ij w_ij dw_ij = ⟨z_i, g_i⟩

with the output z_i and its gradient g_i. Targets and sources are cut into parts as in `ragged`; partial sums of a
vertex are added in their order. An edge rotation u has y'_ij = lift(u_ij, y_j) and the key u_ij key_j; its gradient is

    du_ij = keep_ij w_ij torque(g_i, y'_ij) ⊗ u_ij / |u_ij|² + β ds_ij key_i ⊗ key_j*
"""

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
from quatsphere.kernels.cpu.loops.attention_backward import (
    AttentionGrads,
    field_gradient,
    source_direction_gradient,
    sum_lanes,
    target_direction_gradient,
)
from quatsphere.kernels.cpu.loops.elementwise import exp_nonpositive
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import ReversedGraph, reverse_graph, scatter_sum_tiles
from quatsphere.kernels.cpu.loops.partial_vectors import mask_lanes
from quatsphere.kernels.cpu.loops.quaternions import (
    TILE_SIZE,
    add_torque,
    apply_rotation,
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
from quatsphere.kernels.cpu.loops.ragged import (
    Parts,
    RaggedArrays,
    RaggedSizes,
    RaggedTables,
    add_tile,
    cut_rows,
    load_rotation,
    run_ragged_phases,
    turned_key,
)
from quatsphere.kernels.cpu.loops.simd import fma, load, load_scalar, select_less, splat, store
from quatsphere.kernels.cpu.loops.threads import Span


class TargetState(NamedTuple):
    """Output (B, T, H, Q, 4), its gradient, and the state of the softmax (items, T, 2, 8)."""

    out: Any
    gradient: Any
    state: Any


@inlined
def lift_target_gradient(sizes, item, vertex, q, outputs, table, at):
    """Lift the output gradient of a target to table[at:]; return the torque of lowering, as `lift_gradient` does, and
    ⟨z, g⟩."""
    offset, stride, count = feature_offset(sizes, sizes.targets, item, vertex)
    matrix, zero = rotation_matrix(q), splat(q[0], 0.0)
    torque, product = (zero, zero, zero, zero), zero
    for channel in range(sizes.channels):
        g = load_quaternions(outputs.gradient, offset + 4 * channel, stride, count)
        z = load_quaternions(outputs.out, offset + 4 * channel, stride, count)
        store_tile(table, at + channel * TILE_SIZE, lift(sizes.target_transport, q, matrix, g))
        torque = add_torque(sizes.target_transport, torque, z, g)
        product = product + dot(z, g)
    t, scale = apply_rotation(matrix, torque), splat(zero, 1.0) / dot(q, q)
    return (t[0] * scale, t[1] * scale, t[2] * scale, t[3] * scale), product


@inlined
def edge_message_gradient(inputs, sizes, item, edge, u, lifted_gradient, at, tables):
    """(dw, torque of u) of one edge: Σ over the channels of ⟨g, y'⟩ and of the torque of rotating y to y'."""
    zero = splat(tables.lifted, 0.0)
    row = load_scalar(inputs.source, edge) * sizes.channels * TILE_SIZE
    product, torque = zero, (zero, zero, zero, zero)
    matrix = rotation_matrix(u)
    for channel in range(sizes.channels):
        g = load_tile(lifted_gradient, at + channel * TILE_SIZE)
        y = load_tile(tables.lifted, row + channel * TILE_SIZE)
        if sizes.rotations > 0:
            y = lift(sizes.edge_transport, u, matrix, y)
            torque = add_torque(sizes.edge_transport, torque, g, y)
        product = product + dot(g, y)
    return product, torque


@inlined
def add_rotation_gradient(inputs, sizes, item, edge, u, torque, kept, through_key, out):
    """Add an edge's gradient to that of its rotation: (E, 4) summed over the heads, or (E, H, 4)."""
    _, first, count = item_heads(sizes, item)
    by_message = hamilton_product(torque, u)
    scale = kept / dot(u, u)
    w, x, y, z = (
        fma(by_message[0], scale, through_key[0]),
        fma(by_message[1], scale, through_key[1]),
        fma(by_message[2], scale, through_key[2]),
        fma(by_message[3], scale, through_key[3]),
    )
    if sizes.rotations == 1:
        out[4 * edge] += sum_lanes(w, count)
        out[4 * edge + 1] += sum_lanes(x, count)
        out[4 * edge + 2] += sum_lanes(y, count)
        out[4 * edge + 3] += sum_lanes(z, count)
    else:
        at = (edge * sizes.heads + first) * 4
        before = load_quaternions(out, at, 4, count)
        store_quaternions(out, at, 4, count, (before[0] + w, before[1] + x, before[2] + y, before[3] + z))


@inlined
def part_gradients(inputs, sizes, item, start, stop, key, top, scale, mean, lifted_gradient, at, tables, rotation_grad):
    """Kept weights and score gradients of the edges start..stop of a target -> tables; the gradients of rotations are
    added up. Returns the gradient of the target's key and the contribution to dβ."""
    image, first, count = item_heads(sizes, item)
    beta = load(inputs.beta, first)
    zero, one = splat(beta, 0.0), splat(beta, 1.0)
    key_sum, beta_gradient = (zero, zero, zero, zero), zero
    for edge in range(start, stop):
        u = (one, zero, zero, zero)
        if sizes.rotations > 0:
            u = load_rotation(inputs, sizes, item, edge)
        other = load_tile(tables.keys, load_scalar(inputs.source, edge) * TILE_SIZE)
        turned = other
        if sizes.rotations > 0:
            turned = turned_key(sizes, u, other)
        weight, score, sign = scale, zero, one
        if sizes.routing != UNIFORM:
            score = dot(key, turned)
            if sizes.routing == ABSOLUTE:
                sign = select_less(score, zero, zero - one, select_less(zero, score, one, zero))
            weight = exp_nonpositive(beta * (sign * score) - top) * scale
        kept = weight
        if sizes.dropped:
            where = (image * sizes.edges + edge) * sizes.heads + first
            kept = mask_lanes(inputs.keep, where, count, weight) * sizes.keep_scale
        store(tables.kept, edge * LANES, kept)
        if sizes.routing != UNIFORM or len(rotation_grad) > 0:
            product, torque = edge_message_gradient(inputs, sizes, item, edge, u, lifted_gradient, at, tables)
            signed = zero
            if sizes.routing != UNIFORM:
                signed = fma(kept, product, zero - weight * mean) * sign
                beta_gradient = fma(signed, score, beta_gradient)
            ds = signed * beta
            store(tables.score_gradient, edge * LANES, ds)
            key_sum = (
                fma(ds, turned[0], key_sum[0]),
                fma(ds, turned[1], key_sum[1]),
                fma(ds, turned[2], key_sum[2]),
                fma(ds, turned[3], key_sum[3]),
            )
            if len(rotation_grad) > 0:
                through_key = (zero, zero, zero, zero)
                if sizes.routing != GEOMETRIC:
                    pair = hamilton_product(key, conj(other))
                    through_key = (ds * pair[0], ds * pair[1], ds * pair[2], ds * pair[3])
                add_rotation_gradient(inputs, sizes, item, edge, u, torque, kept, through_key, rotation_grad)
    return key_sum, beta_gradient


@inlined
def finish_target_gradient(inputs, sizes, item, vertex, q, torque, key_sum, gradients):
    """Write dq_i and dp_i from the torque of lowering and the gradient of the target's key."""
    image, first, count = item_heads(sizes, item)
    through_key = key_sum
    if sizes.routing == GEOMETRIC:
        at, into = (item * sizes.targets + vertex) * 3, gradients.target_directions
        through_key = target_direction_gradient(inputs, q, key_sum, vertex, count, into, at)
    at = ((image * sizes.targets + vertex) * sizes.heads + first) * 4
    store_quaternions(gradients.target_field, at, 4, count, field_gradient(torque, q, through_key))


@inlined
def target_parts(inputs, sizes, item, parts, chunks, outputs, tables, scratch, gradients, rotation_grad):
    """Chunks of parts of targets: the tables of edges, the gradients of whole targets, each chunk's part of dβ."""
    row, zero, place = sizes.channels * TILE_SIZE, splat(inputs.beta, 0.0), item_images(sizes, item)
    for chunk in range(*chunks):
        beta_gradient = zero
        for part in range(parts.chunks[chunk], parts.chunks[chunk + 1]):
            vertex, start, stop = parts.vertex[part], parts.offsets[part], parts.offsets[part + 1]
            prefetch_field(inputs.target_field, sizes, sizes.targets, place, vertex)
            prefetch_features(outputs.gradient, sizes, sizes.targets, place, vertex)
            prefetch_features(outputs.out, sizes, sizes.targets, place, vertex)
            q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
            key = target_key(inputs, sizes, q, vertex)
            whole = parts.partial[part] < 0
            table, at = scratch[3], vertex - vertex
            if whole:  # the other parts of a target use their own copy, while joining them writes the table
                table, at = tables.gradient, vertex * row
                store_tile(tables.target_keys, vertex * TILE_SIZE, key)
            torque, mean = lift_target_gradient(sizes, item, vertex, q, outputs, table, at)
            state = (item * sizes.targets + vertex) * 2 * LANES
            top, scale = load(outputs.state, state), load(outputs.state, state + LANES)
            key_sum, part_of_beta = part_gradients(
                inputs, sizes, item, start, stop, key, top, scale, mean, table, at, tables, rotation_grad
            )
            beta_gradient = beta_gradient + part_of_beta
            if whole:
                finish_target_gradient(inputs, sizes, item, vertex, q, torque, key_sum, gradients)
            else:
                store_tile(tables.partial, parts.partial[part] * TILE_SIZE, key_sum)
        store(gradients.beta, (item * (len(parts.chunks) - 1) + chunk) * LANES, beta_gradient)


@inlined
def join_targets(inputs, sizes, item, parts, span, outputs, tables, gradients):
    """Gradients of the targets split_vertex[span[0] : span[1]], whose parts are done."""
    zero = splat(inputs.beta, 0.0)
    for index in range(*span):
        vertex, key_sum = parts.split_vertex[index], (zero, zero, zero, zero)
        for part in range(parts.split[index], parts.split[index + 1]):
            other = load_tile(tables.partial, part * TILE_SIZE)
            key_sum = (key_sum[0] + other[0], key_sum[1] + other[1], key_sum[2] + other[2], key_sum[3] + other[3])
        q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        store_tile(tables.target_keys, vertex * TILE_SIZE, target_key(inputs, sizes, q, vertex))
        at = vertex * sizes.channels * TILE_SIZE
        torque, _ = lift_target_gradient(sizes, item, vertex, q, outputs, tables.gradient, at)
        finish_target_gradient(inputs, sizes, item, vertex, q, torque, key_sum, gradients)


@inlined
def source_sums(inputs, sizes, item, parts, part, graph, tables, out, at):
    """Σ over a part of the edges into a source: kept weight times the gradient turned back -> out[at:], (Q, 4, 8),
    and score gradient times the target's key turned back -> the tile after it."""
    zero, Q = splat(out, 0.0), sizes.channels
    sums, key_at = out[at:], at + sizes.channels * TILE_SIZE
    if sizes.rotations == 0:
        parted = ReversedGraph(parts.offsets, graph.edges, graph.targets)
        scatter_sum_tiles(parted, Q, part, tables.gradient, tables.kept, sums)
        if sizes.routing != UNIFORM:
            scatter_sum_tiles(parted, 1, part, tables.target_keys, tables.score_gradient, out[key_at:])
        return
    for channel in range(Q + 1):
        store_tile(out, at + channel * TILE_SIZE, (zero, zero, zero, zero))
    for index in range(parts.offsets[part], parts.offsets[part + 1]):
        edge, target = load_scalar(graph.edges, index), load_scalar(graph.targets, index)
        kept = load(tables.kept, edge * LANES)
        inverse = conj(load_rotation(inputs, sizes, item, edge))
        matrix = rotation_matrix(inverse)
        for channel in range(Q):
            g = load_tile(tables.gradient, (target * Q + channel) * TILE_SIZE)
            add_tile(out, at + channel * TILE_SIZE, kept, lift(sizes.edge_transport, inverse, matrix, g))
        if sizes.routing != UNIFORM:
            key = turned_key(sizes, inverse, load_tile(tables.target_keys, target * TILE_SIZE))
            add_tile(out, key_at, load(tables.score_gradient, edge * LANES), key)


@inlined
def finish_source_gradient(inputs, sizes, item, vertex, tables, sums, gradients):
    """dx_j, dq_j and dp_j from a source's sums (Q + 1, 4, 8)."""
    image, first, count = item_heads(sizes, item)
    zero, Q = splat(sums, 0.0), sizes.channels
    q = load_field(inputs.source_field, sizes, sizes.sources, item, vertex)
    inverse = conj(q)
    matrix = rotation_matrix(inverse)
    torque, through_key = (zero, zero, zero, zero), (zero, zero, zero, zero)
    offset, stride, _ = feature_offset(sizes, sizes.sources, item, vertex)
    for channel in range(Q):
        g = load_tile(sums, channel * TILE_SIZE)
        y = load_tile(tables.lifted, (vertex * Q + channel) * TILE_SIZE)
        torque = add_torque(sizes.transport, torque, g, y)
        lowered = lift(sizes.transport, inverse, matrix, g)
        store_quaternions(gradients.features, offset + 4 * channel, stride, count, lowered)
    if sizes.routing != UNIFORM:
        through_key = load_tile(sums, Q * TILE_SIZE)
    if sizes.routing == GEOMETRIC:
        at = (item * sizes.sources + vertex) * 3
        source_direction_gradient(inputs, vertex, through_key, count, gradients.source_directions, at)
        through_key = (zero, zero, zero, zero)
    at = ((image * sizes.sources + vertex) * sizes.heads + first) * 4
    store_quaternions(gradients.source_field, at, 4, count, field_gradient(torque, q, through_key))


@inlined
def source_parts(inputs, sizes, item, parts, span, graph, tables, scratch, gradients):
    """Parts of sources: the gradients of whole sources, partial sums of the others."""
    row, place = (sizes.channels + 1) * TILE_SIZE, item_images(sizes, item)
    for part in range(*span):
        vertex, at = parts.vertex[part], parts.partial[part] * row
        prefetch_field(inputs.source_field, sizes, sizes.sources, place, vertex)
        prefetch_field(gradients.source_field, sizes, sizes.sources, place, vertex)
        prefetch_features(gradients.features, sizes, sizes.sources, place, vertex)
        if at < 0:
            source_sums(inputs, sizes, item, parts, part, graph, tables, scratch[2], vertex - vertex)
            finish_source_gradient(inputs, sizes, item, vertex, tables, scratch[2], gradients)
        else:
            source_sums(inputs, sizes, item, parts, part, graph, tables, tables.partial, at)


@inlined
def join_sources(inputs, sizes, item, parts, span, tables, scratch, gradients):
    """Gradients of the sources split_vertex[span[0] : span[1]], whose parts are done."""
    sums, tiles = scratch[2], sizes.channels + 1
    zero, one = splat(inputs.beta, 0.0), splat(inputs.beta, 1.0)
    for index in range(*span):
        for channel in range(tiles):
            store_tile(sums, channel * TILE_SIZE, (zero, zero, zero, zero))
        for part in range(parts.split[index], parts.split[index + 1]):
            for channel in range(tiles):
                tile = load_tile(tables.partial, (part * tiles + channel) * TILE_SIZE)
                add_tile(sums, channel * TILE_SIZE, one, tile)
        finish_source_gradient(inputs, sizes, item, parts.split_vertex[index], tables, sums, gradients)


@compiled
def attend_ragged_backward_items(
    items, spans, inputs, sizes, graph, cuts, outputs, gradients, rotation_grad, tables, scratch
):
    """For each item: lift the chunks of sources spans[0]; gradients of the chunks of targets' parts spans[1]; join
    targets spans[2]; gradients of the chunks of sources' parts spans[3]; join sources spans[4]."""
    lifts, chunks, joins, source_chunks, source_joins = spans
    targets, sources = cuts
    for item in range(*items):
        start, stop = lifts[0] * CHUNK_VERTICES, min(lifts[1] * CHUNK_VERTICES, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        target_parts(inputs, sizes, item, targets, chunks, outputs, tables, scratch, gradients, rotation_grad)
        join_targets(inputs, sizes, item, targets, joins, outputs, tables, gradients)
        span = sources.chunks[source_chunks[0]], sources.chunks[source_chunks[1]]
        source_parts(inputs, sizes, item, sources, span, graph, tables, scratch, gradients)
        join_sources(inputs, sizes, item, sources, source_joins, tables, scratch, gradients)


class BackwardPlan(NamedTuple):
    """Parts of the targets, parts of the sources, and the edges into each source."""

    targets: Parts
    sources: Parts
    graph: ReversedGraph


def plan_backward(rows: Any, source: Any, sources: int, targets: Parts) -> BackwardPlan:
    """Plan of the gradients of a sorted edge list; it depends on the graph alone."""
    reverse = reverse_graph(source, 1, sources)
    target = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    return BackwardPlan(targets, cut_rows(reverse.offsets), reverse._replace(targets=target[reverse.edges]))


def run_ragged_backward(
    inputs: RaggedArrays,
    sizes: RaggedSizes,
    plan: BackwardPlan,
    outputs: TargetState,
    gradients: AttentionGrads,
    rotation: Any,
) -> None:
    """All gradients. `gradients.beta` is (items, chunks of the targets, 8); that of the rotations, zero on entry or
    empty if it is not wanted, is added up one item after the other."""
    cuts = plan.targets, plan.sources

    def run(items: Span, spans: tuple[Span, ...], tables: RaggedTables, scratch: Any) -> None:
        attend_ragged_backward_items(
            items, spans, inputs, sizes, plan.graph, cuts, outputs, gradients, rotation, tables, scratch
        )

    counts = [chunk_count(sizes.sources)]
    for parts in cuts:
        counts += [len(parts.chunks) - 1, len(parts.split_vertex)]
    partial_rows = max(int(parts.split[-1]) for parts in cuts)
    exclusive, dtype = len(rotation) > 0, outputs.out.dtype
    run_ragged_phases(run, sizes, tuple(counts), partial_rows, dtype, gradients=True, one_item_at_a_time=exclusive)
