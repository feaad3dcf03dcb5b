"""Triton kernels of the quaternion attention's gradients, one vertex with all heads per program as in the forward pass.

With g the output gradient lifted by the target, y the lifted sources and z the output, weights are recomputed from the
saved log-sums, w_ij = exp(β s_ij - log_sum_i), and Σ_j w_ij keep_ij ⟨g_i, y_j⟩ = ⟨dz_i, z_i⟩ needs no second pass:

    edges     dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - ⟨dz_i, z_i⟩)
    targets   a_i = Σ_j keep_ij w_ij y_j,  dβ += ds_ij s_ij,  dkey_i = Σ_j β ds_ij key_j
              dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

A source sums over its edges in their order: no atomics, bit-identical results. Both ends of an edge compute its weight
and ds_ij for themselves, from rows that they read anyway: nothing with an edge axis is in memory. Targets and sources
are programs of one launch, so that one image's rows of g and y serve both while they are in the cache.
"""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.attention import (
    ABSOLUTE,
    GEOMETRIC,
    UNIFORM,
    feature_offsets,
    head_quaternions,
    key_of_target,
    load_direction,
    load_features,
    load_keys,
    load_rows,
    scores,
)
from quatsphere.kernels.gpu.kernels.masks import NO_MASK, edge_mask
from quatsphere.kernels.gpu.kernels.mixing import INTERPOLATED, SAME_ROW, adjoint_row
from quatsphere.kernels.gpu.kernels.quaternions import (
    SANDWICH,
    add,
    components,
    conjugate,
    inner_product,
    inverse_lift,
    jit,
    lift,
    multiply,
    rotate,
    scale,
    together,
    torque,
    total,
)


@jit
def store_heads(table, row, q, H: tl.constexpr, HEADS: tl.constexpr):
    """Components (HEADS, 1) -> row of a table (..., H, 4)."""
    head, component = tl.arange(0, HEADS)[:, None, None], tl.arange(0, 4)[None, None, :]
    tl.store(table + row * (4 * H) + head * 4 + component, together(q), (head < H) & (component < 4))


@jit
def store_directions(table, row, p, H: tl.constexpr, HEADS: tl.constexpr):
    """Imaginary parts of components (HEADS, 1) -> row of a table (..., H, 3)."""
    head = tl.arange(0, HEADS)[:, None]
    at = table + row * (3 * H) + head * 3
    tl.store(at, p[1], head < H)
    tl.store(at + 1, p[2], head < H)
    tl.store(at + 2, p[3], head < H)


@jit
def edge_gradients(
    product, score, dw, beta, log_sum, through, survivors, used,
    ROUTING: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
):  # fmt: skip
    """(kept weight, gradient of the logit, gradient of the inner product of the keys) of edges, (CHUNK, HEADS)."""
    weight = tl.exp(tl.where(used, beta * score - log_sum, float("-inf")))
    kept = weight
    if KEEP != NO_MASK:
        kept = tl.where(survivors, weight * KEEP_SCALE, 0.0)
    logit_gradient = kept * dw - weight * through
    product_gradient = beta * logit_gradient
    if ROUTING == ABSOLUTE:
        product_gradient *= tl.where(product > 0.0, 1.0, tl.where(product < 0.0, -1.0, 0.0))
    return kept, logit_gradient, product_gradient


@jit
def target_gradients(
    vertex, image, field, lifted, keys, gradient, log_sums, through, neighbours, beta, keep, directions,
    field_gradient, beta_parts, direction_parts, targets, sources, site, threshold,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dq_i of a target, and per head its parts of dβ and dp_i."""
    here = (image * targets + vertex).to(tl.int64)
    head = tl.arange(0, HEADS)
    q = head_quaternions(field, here, H, HEADS, ACCUMULATE)
    key = tl.trans(together(key_of_target(q, directions, vertex, ROUTING, ACCUMULATE)), 1, 0, 2)
    flat_g = load_features(gradient, here + tl.zeros((1, 1), tl.int64), H, Q, HEADS, CHANNELS, ACCUMULATE)
    inverse_temperature = tl.load(beta + head, head < H, 0.0).to(ACCUMULATE)[None, :]
    log_sum = tl.load(log_sums + here * H + head, head < H, 0.0)[None, :]
    along = tl.load(through + here * H + head, head < H, 0.0)[None, :]
    key_gradient, beta_part = tl.zeros((HEADS, 4), ACCUMULATE), tl.zeros((HEADS,), ACCUMULATE)
    aggregated = tl.zeros((HEADS, 4 * CHANNELS), ACCUMULATE)
    for first in range(0, K, CHUNK):
        slot, row, outside = load_rows(neighbours, image, vertex, sources, first, K, CHUNK)
        source_keys = load_keys(keys, row, H, HEADS, ACCUMULATE)
        product, score = scores(key, source_keys, ROUTING)
        score = tl.where(outside, float("nan"), score)
        used = (slot < K) & (head[None, :] < H)
        edge = (image, vertex, targets, slot, head[None, :], used)
        survivors = edge_mask(keep, site, threshold, edge, K, H, KEEP) if KEEP != NO_MASK else used
        y = load_features(lifted, row, H, Q, HEADS, CHANNELS, ACCUMULATE)
        kept, logit_gradient, product_gradient = edge_gradients(
            product, score, tl.sum(flat_g * y, 2), inverse_temperature, log_sum, along, survivors, used,
            ROUTING, KEEP, KEEP_SCALE,
        )  # fmt: skip
        aggregated += tl.sum(kept[:, :, None] * y, 0)
        if ROUTING != UNIFORM:
            beta_part += tl.sum(logit_gradient * score, 0)
            key_gradient += tl.sum(product_gradient[:, :, None] * source_keys, 0)
    if ROUTING != UNIFORM:
        tl.store(beta_parts + here * H + head, beta_part, head < H)
    a, g = tl.reshape(aggregated, (HEADS, CHANNELS, 4)), tl.reshape(flat_g, (HEADS, CHANNELS, 4))
    total_torque = total(torque(components(a), components(g), TRANSPORT), 1)
    through_key = components(key_gradient[:, None, :])
    square = tl.where((head < H)[:, None], inner_product(q, q), 1.0)
    if ROUTING == GEOMETRIC:
        p = load_direction(directions, vertex, ACCUMULATE)
        turned = (through_key[0] * 0.0, 2.0 * through_key[1], 2.0 * through_key[2], 2.0 * through_key[3])
        p_gradient = rotate(q, turned)
        store_directions(direction_parts, here, p_gradient, H, HEADS)
        total_torque = add(total_torque, torque(p, p_gradient, SANDWICH))
        through_key = scale(-4.0 * through_key[0] * square, q)
    q_gradient = scale(1.0 / square, multiply(total_torque, q))
    if ROUTING != UNIFORM:
        q_gradient = add(q_gradient, through_key)
    store_heads(field_gradient, here, q_gradient, H, HEADS)


@jit
def source_gradients(
    vertex, image, field, lifted, keys, gradient, log_sums, through, target_keys, beta, keep, directions,
    offsets, edges, features_gradient, field_gradient, direction_parts,
    residual, gate, gate_parts, mixing_offsets, mixing_edges, mixing_weights, targets, sources, site, threshold,
    RESIDUAL: tl.constexpr, TERMS: tl.constexpr,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dx_j, dq_j and the parts of dp_j of a source; the edges into j start at edges[offsets[j]].

    A step's residual has the output gradient `residual` (B, T, H, Q, 4): its own row is added to dx_j, or gate times
    the adjoint of the interpolation, whose product with x_j is a vertex's part of the gate's gradient.
    """
    here = (image * sources + vertex).to(tl.int64)
    head, own = tl.arange(0, HEADS)[None, :], here + tl.zeros((1, 1), tl.int64)
    start, stop = tl.load(offsets + vertex).to(tl.int32), tl.load(offsets + vertex + 1).to(tl.int32)
    flat_y = load_features(lifted, own, H, Q, HEADS, CHANNELS, ACCUMULATE)
    key = load_keys(keys, own, H, HEADS, ACCUMULATE)
    inverse_temperature = tl.load(beta + head, head < H, 0.0).to(ACCUMULATE)
    key_gradient, flat_g = tl.zeros((HEADS, 4), ACCUMULATE), tl.zeros((HEADS, 4 * CHANNELS), ACCUMULATE)
    for first in range(start, stop, CHUNK):
        index = first + tl.arange(0, CHUNK)[:, None]  # beyond the end the last edge again, with weight 0
        twice = tl.minimum(index, stop - 1) + tl.zeros((1, 2), tl.int32)  # as in `load_rows`
        edge = tl.max(tl.load(edges + twice), 1, keep_dims=True).to(tl.int32)
        row, used = (image * targets + edge // K).to(tl.int64), (index < stop) & (head < H)
        g = load_features(gradient, row, H, Q, HEADS, CHANNELS, ACCUMULATE)
        edge_keys = load_keys(target_keys, row, H, HEADS, ACCUMULATE)
        product, score = scores(key, edge_keys, ROUTING)
        log_sum, along = tl.load(log_sums + row * H + head, used, 0.0), tl.load(through + row * H + head, used, 0.0)
        place = (image, 0, targets, edge, head, used)  # all targets' slots are numbered in turn
        survivors = edge_mask(keep, site, threshold, place, K, H, KEEP) if KEEP != NO_MASK else used
        kept, _, product_gradient = edge_gradients(
            product, score, tl.sum(flat_y * g, 2), inverse_temperature, log_sum, along, survivors, used,
            ROUTING, KEEP, KEEP_SCALE,
        )  # fmt: skip
        flat_g += tl.sum(kept[:, :, None] * g, 0)
        if ROUTING != UNIFORM:
            key_gradient += tl.sum(product_gradient[:, :, None] * edge_keys, 0)
    offset, valid = feature_offsets(H, Q, HEADS, CHANNELS)
    q = head_quaternions(field, here, H, HEADS, ACCUMULATE)
    square = tl.where(tl.trans(head, 1, 0) < H, inner_product(q, q), 1.0)
    g = components(tl.reshape(flat_g, (HEADS, CHANNELS, 4)))
    y = components(tl.reshape(flat_y, (HEADS, CHANNELS, 4)))
    total_torque = total(torque(g, y, TRANSPORT), 1)
    x_gradient = together(lift(conjugate(q), g, TRANSPORT))
    if RESIDUAL == SAME_ROW:
        x_gradient += tl.load(residual + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE)
    if RESIDUAL == INTERPOLATED:
        reverse = (mixing_offsets, mixing_edges, mixing_weights)
        back = adjoint_row(residual, reverse, image, vertex, targets, offset, valid, 4 * H * Q, TERMS, ACCUMULATE)
        along_x = inner_product(lift(q, components(back), TRANSPORT), y)  # ⟨back, x⟩ |q|² or |q|⁴
        tl.store(gate_parts + here, tl.sum(along_x * inverse_lift(square, TRANSPORT)))
        x_gradient += tl.load(gate).to(ACCUMULATE) * back
    tl.store(features_gradient + here * (4 * H * Q) + offset, x_gradient, valid)
    q_gradient = scale(1.0 / square, multiply(total_torque, q))
    through_key = components(key_gradient[:, None, :])
    if ROUTING == GEOMETRIC:
        p = load_direction(directions, vertex, ACCUMULATE)
        store_directions(direction_parts, here, add(scale(2.0 * through_key[0], p), through_key), H, HEADS)
    elif ROUTING != UNIFORM:
        q_gradient = add(q_gradient, through_key)
    store_heads(field_gradient, here, q_gradient, H, HEADS)


@jit
def attention_gradients_kernel(
    target_field, source_field, lifted, keys, gradient, log_sums, through, target_keys, neighbours, offsets, edges,
    beta, keep, target_directions, source_directions,
    target_gradient, source_gradient, features_gradient, beta_parts, target_parts, source_parts,
    residual, gate, gate_parts, mixing_offsets, mixing_edges, mixing_weights, targets, sources, site, threshold,
    RESIDUAL: tl.constexpr, TERMS: tl.constexpr,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of an image's targets, then of its sources, from g (B, T, H, Q, 4) and ⟨dz, z⟩ (B, T, H)."""
    program, image = tl.program_id(0), tl.program_id(1)
    if program < targets:
        target_gradients(
            program, image, target_field, lifted, keys, gradient, log_sums, through, neighbours, beta, keep,
            target_directions, target_gradient, beta_parts, target_parts, targets, sources, site, threshold,
            ROUTING, TRANSPORT, KEEP, KEEP_SCALE, ACCUMULATE, K, H, Q, HEADS, CHANNELS, CHUNK,
        )  # fmt: skip
    else:
        source_gradients(
            program - targets, image, source_field, lifted, keys, gradient, log_sums, through, target_keys, beta, keep,
            source_directions, offsets, edges, features_gradient, source_gradient, source_parts,
            residual, gate, gate_parts, mixing_offsets, mixing_edges, mixing_weights, targets, sources, site, threshold,
            RESIDUAL, TERMS, ROUTING, TRANSPORT, KEEP, KEEP_SCALE, ACCUMULATE, K, H, Q, HEADS, CHANNELS, CHUNK,
        )  # fmt: skip
