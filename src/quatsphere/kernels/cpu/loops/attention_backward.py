"""Gradient loops of the fused quaternion attention: weights are recomputed, sources gather over the reversed graph.

Per item, with g the output gradient lifted by the target and y the lifted sources:

    targets   dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - Σ_j w_ij keep_ij dw_ij),  dβ += ds_ij s_ij
              dkey_i = Σ_j β ds_ij key_j,  dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

A source sums over its incoming edges in their order, in registers: no atomics, bit-identical for any number of threads.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.attention import (
    ABSOLUTE,
    CHUNK_VERTICES,
    GEOMETRIC,
    PREFETCH_DISTANCE,
    UNIFORM,
    AttentionArrays,
    AttentionSizes,
    AttentionTables,
    direction,
    item_images,
    item_lanes,
    lift_sources,
    mask_lanes_of,
    prefetch_features,
    prefetch_field,
    prefetch_keep,
    route,
    run_phases,
    target_key,
)
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import (
    ResidualGrad,
    ReversedGraph,
    add_residual_grad,
    edge_dots,
    gather_sum_tiles,
    prefetch_residual_grad,
    scatter_sum_tiles,
)
from quatsphere.kernels.cpu.loops.quaternions import (
    IDENTITY,
    SANDWICH,
    TILE_SIZE,
    add_torque,
    apply_rotation,
    conj,
    dot,
    gather_quaternions,
    hamilton_product,
    lift,
    load_tile,
    rotation_matrix,
    scatter_quaternions,
    store_tile,
)
from quatsphere.kernels.cpu.loops.simd import (
    WIDE_LANES,
    extract,
    fma,
    load,
    load_wide,
    pointers,
    select_less,
    splat,
    store,
)
from quatsphere.kernels.cpu.loops.threads import Span


class AttentionGrads(NamedTuple):
    """Flat output arrays. Partial sums: beta per (item, chunk, lane), directions per (item, vertex, 3), the residual's
    gate per (image, block, chunk of sources, 16), zero at first."""

    target_field: Any
    source_field: Any
    features: Any
    beta: Any
    target_directions: Any
    source_directions: Any
    gate: Any


@inlined
def score_gradients(sizes, vertex, tables, beta, scratch):
    """Score gradients of one target from its scores, weights and weight gradients (k, 8); return its part of dβ."""
    k, zero, one = sizes.neighbours, splat(beta, 0.0), splat(beta, 1.0)
    scores, weights, dots, _ = scratch
    mean = zero
    for slot in range(k):
        mean = fma(load(tables.kept, (vertex * k + slot) * LANES), load(dots, slot * LANES), mean)
    beta_gradient = zero
    for slot in range(k):
        edge = (vertex * k + slot) * LANES
        score = load(scores, slot * LANES)
        logit = fma(load(tables.kept, edge), load(dots, slot * LANES), zero - load(weights, slot * LANES) * mean)
        sign = one
        if sizes.routing == ABSOLUTE:
            sign = select_less(score, zero, zero - one, select_less(zero, score, one, zero))
        signed = logit * sign
        beta_gradient = fma(signed, score, beta_gradient)
        store(tables.score_gradient, edge, signed * beta)
    return beta_gradient


@inlined
def lift_gradient(sizes, q, index, lanes, outputs, tables, vertex):
    """Lift the output gradient of one target into its lane table; return the torque of lowering, summed over channels.

    Rotations preserve products, so the torque t = Σ z g* + z* g (one_sided: Σ z g*) is computed in the target's frame
    and rotated once into the shared one: q t q* / |q|².
    """
    out, gradient = outputs
    matrix, zero = rotation_matrix(q), splat(q[0], 0.0)
    torque = (zero, zero, zero, zero)
    for channel in range(sizes.channels):
        g = gather_quaternions(gradient, index + 4 * channel, lanes)
        at = (vertex * sizes.channels + channel) * TILE_SIZE
        store_tile(tables.gradient, at, lift(sizes.transport, q, matrix, g))
        if sizes.transport != IDENTITY:
            z = gather_quaternions(out, index + 4 * channel, lanes)
            torque = add_torque(sizes.transport, torque, z, g)
    t, scale = apply_rotation(matrix, torque), splat(zero, 1.0) / dot(q, q)
    return t[0] * scale, t[1] * scale, t[2] * scale, t[3] * scale


@inlined
def field_gradient(torque, q, through_key):
    """torque ⊗ q / |q|² + the gradient through the routing key."""
    product = hamilton_product(torque, q)
    scale = splat(q[0], 1.0) / dot(q, q)
    return (
        fma(product[0], scale, through_key[0]),
        fma(product[1], scale, through_key[1]),
        fma(product[2], scale, through_key[2]),
        fma(product[3], scale, through_key[3]),
    )


@inlined
def sum_lanes(vector, count):
    """Sum of the first `count` lanes, in order."""
    total = extract(vector, 0)
    for lane in range(1, count):
        total += extract(vector, lane)
    return total


@inlined
def store_direction(vectors, count, out, at):
    """(x, y, z) summed over heads, which share the directions -> out[at:at+3]."""
    out[at] = sum_lanes(vectors[0], count)
    out[at + 1] = sum_lanes(vectors[1], count)
    out[at + 2] = sum_lanes(vectors[2], count)


@inlined
def target_direction_gradient(inputs, q, key_gradient, vertex, count, out, at):
    """Gradients through the key (-|q|⁴, 2 q* p q): that of p, summed over heads, to out[at:at+3]; return that of q."""
    p = direction(inputs.target_directions, q[0], vertex)
    double = (splat(q[0], 0.0), 2.0 * key_gradient[1], 2.0 * key_gradient[2], 2.0 * key_gradient[3])
    g = apply_rotation(rotation_matrix(q), double)
    store_direction((g[1], g[2], g[3]), count, out, at)
    zero = splat(q[0], 0.0)
    torque = add_torque(SANDWICH, (zero, zero, zero, zero), p, g)
    radial = -4.0 * (key_gradient[0] * dot(q, q))
    return field_gradient(torque, q, (radial * q[0], radial * q[1], radial * q[2], radial * q[3]))


@inlined
def target_gradients(inputs, sizes, item, start, stop, chunk, outputs, tables, scratch, gradients):
    """Targets start..stop: fill the targets' tables, write dq_i and dp_i, and the chunk's part of dβ."""
    out, output_gradient = outputs
    place, mask = item_images(sizes, item), mask_lanes_of(sizes, item)
    k, Q, count = sizes.neighbours, sizes.channels, place[1] * place[3]
    at, step, lanes = item_lanes(sizes, sizes.targets, item, 4)
    out_at, width, out_lanes = item_lanes(sizes, sizes.targets, item, 4 * Q)
    beta = load(inputs.beta, place[2])
    zero = splat(beta, 0.0)
    beta_gradient = zero
    for vertex in range(start, stop):
        prefetch_field(inputs.target_field, sizes, sizes.targets, place, vertex)
        prefetch_field(gradients.target_field, sizes, sizes.targets, place, vertex)
        prefetch_features(output_gradient, sizes, sizes.targets, place, vertex)
        prefetch_features(out, sizes, sizes.targets, place, vertex)
        prefetch_keep(inputs.keep, sizes, place, vertex)
        q = gather_quaternions(inputs.target_field, at + vertex * step, lanes)
        torque = lift_gradient(sizes, q, out_at + vertex * width, out_lanes, outputs, tables, vertex)
        key = target_key(inputs, sizes, q, vertex)
        route(inputs, sizes, beta, mask, vertex, tables, key, scratch, vertex * k * LANES, tables.kept)
        through_key = (zero, zero, zero, zero)
        if sizes.routing != UNIFORM:
            edge_dots(inputs.neighbours, k, Q, vertex, tables.gradient, tables.lifted, scratch[2])
            beta_gradient = beta_gradient + score_gradients(sizes, vertex, tables, beta, scratch)
            slots = vertex * k * LANES
            gather_sum_tiles(inputs.neighbours, k, 1, vertex, tables.keys, tables.score_gradient, slots, scratch[3])
            through_key = load_tile(scratch[3], 0)
        if sizes.routing == GEOMETRIC:
            into, into_at = gradients.target_directions, (item * sizes.targets + vertex) * 3
            through_key = target_direction_gradient(inputs, q, through_key, vertex, count, into, into_at)
        gradient = field_gradient(torque, q, through_key)
        scatter_quaternions(gradients.target_field, at + vertex * step, lanes, gradient)
    store(gradients.beta, chunk * LANES, beta_gradient)


@inlined
def source_direction_gradient(inputs, vertex, key_gradient, count, out, at):
    """Gradient of p through the key (|p|², p), summed over heads, to out[at:at+3]."""
    _, x, y, z = direction(inputs.source_directions, key_gradient[0], vertex)
    dx = fma(x + x, key_gradient[0], key_gradient[1])
    dy = fma(y + y, key_gradient[0], key_gradient[2])
    dz = fma(z + z, key_gradient[0], key_gradient[3])
    store_direction((dx, dy, dz), count, out, at)


@inlined
def residual_gradients(sizes, place, vertex, chunk, residual, gradients):
    """Add the residual's gradient to the features' of one source in every image of an item, and to the gate's."""
    image, images, first, heads = place
    stride, blocks = 4 * sizes.channels, (sizes.heads + LANES - 1) // LANES
    chunks = (sizes.sources + CHUNK_VERTICES - 1) // CHUNK_VERTICES
    for other in range(image, image + images):
        at = ((other * sizes.sources + vertex) * sizes.heads + first) * stride
        gate = add_residual_grad(residual, other, vertex, first * stride, heads * stride, gradients.features, at)
        part = ((other * blocks + first // LANES) * chunks + chunk) * WIDE_LANES
        store(gradients.gate, part, load_wide(gradients.gate, part) + gate)


@inlined
def source_gradients(inputs, sizes, item, start, stop, chunk, graph, residual, tables, scratch, gradients):
    """Sources start..stop: dx_j, dq_j and dp_j from the targets' tables; dx_j includes the residual's gradient."""
    image, images, first, heads = place = item_images(sizes, item)
    zero, count = splat(tables.kept, 0.0), images * heads
    at, step, lanes = item_lanes(sizes, sizes.sources, item, 4)
    features_at, width, feature_lanes = item_lanes(sizes, sizes.sources, item, 4 * sizes.channels)
    for vertex in range(start, stop):
        prefetch_field(inputs.source_field, sizes, sizes.sources, place, vertex)
        prefetch_field(gradients.source_field, sizes, sizes.sources, place, vertex)
        prefetch_features(gradients.features, sizes, sizes.sources, place, vertex)
        if residual.targets > 0:
            stride, later = 4 * sizes.channels, vertex + PREFETCH_DISTANCE
            for other in range(image, image + images):
                prefetch_residual_grad(residual, other, later, sizes.sources, first * stride, heads * stride)
        q = gather_quaternions(inputs.source_field, at + vertex * step, lanes)
        inverse = conj(q)
        matrix = rotation_matrix(inverse)
        torque, through_key = (zero, zero, zero, zero), (zero, zero, zero, zero)
        scatter_sum_tiles(graph, sizes.channels, vertex, tables.gradient, tables.kept, scratch[3])
        for channel in range(sizes.channels):
            g = load_tile(scratch[3], channel * TILE_SIZE)
            y = load_tile(tables.lifted, (vertex * sizes.channels + channel) * TILE_SIZE)
            torque = add_torque(sizes.transport, torque, g, y)
            lowered = lift(sizes.transport, inverse, matrix, g)
            index = features_at + vertex * width + 4 * channel
            scatter_quaternions(gradients.features, index, feature_lanes, lowered)
        if sizes.routing != UNIFORM:
            scatter_sum_tiles(graph, 1, vertex, tables.target_keys, tables.score_gradient, scratch[3])
            through_key = load_tile(scratch[3], 0)
        if sizes.routing == GEOMETRIC:
            into_at = (item * sizes.sources + vertex) * 3
            source_direction_gradient(inputs, vertex, through_key, count, gradients.source_directions, into_at)
            through_key = (zero, zero, zero, zero)
        gradient = field_gradient(torque, q, through_key)
        scatter_quaternions(gradients.source_field, at + vertex * step, lanes, gradient)
        if residual.targets > 0:
            residual_gradients(sizes, place, vertex, chunk, residual, gradients)


@compiled
def attend_backward_items(items, chunks, inputs, sizes, outputs, graph, residual, gradients, tables, scratch):
    """For each item lift the chunks of sources chunks[0], then compute the gradients of the chunks of targets chunks[1]
    and of sources chunks[2]."""
    lifts, targets, sources = chunks
    inputs, outputs, graph, residual = pointers((inputs, outputs, graph, residual))
    gradients, tables, scratch = pointers((gradients, tables, scratch))
    target_chunks = (sizes.targets + CHUNK_VERTICES - 1) // CHUNK_VERTICES
    for item in range(*items):
        start, stop = lifts[0] * CHUNK_VERTICES, min(lifts[1] * CHUNK_VERTICES, sizes.sources)
        lift_sources(inputs, sizes, item, start, stop, tables)
        for chunk in range(*targets):
            start, stop = chunk * CHUNK_VERTICES, min((chunk + 1) * CHUNK_VERTICES, sizes.targets)
            index = item * target_chunks + chunk
            target_gradients(inputs, sizes, item, start, stop, index, outputs, tables, scratch, gradients)
        for chunk in range(*sources):
            start, stop = chunk * CHUNK_VERTICES, min((chunk + 1) * CHUNK_VERTICES, sizes.sources)
            source_gradients(inputs, sizes, item, start, stop, chunk, graph, residual, tables, scratch, gradients)


def run_attention_backward(
    inputs: AttentionArrays,
    sizes: AttentionSizes,
    outputs: tuple[Any, Any],
    residual: ResidualGrad,
    gradients: AttentionGrads,
    graph: ReversedGraph,
) -> None:
    """All gradients from outputs = (output, its gradient), that of the residual added to the features'."""

    def run(items: Span, chunks: tuple[Span, ...], tables: AttentionTables, scratch: Any) -> None:
        attend_backward_items(items, chunks, inputs, sizes, outputs, graph, residual, gradients, tables, scratch)

    vertices = (sizes.sources, sizes.targets, sizes.sources)
    run_phases(run, sizes, vertices, outputs[0].size, inputs.features.dtype, True)
