"""Triton kernels of the quaternion attention's gradients, one vertex with all heads per program as in the forward pass.

With g the output gradient lifted by the target, y the lifted sources and z the output, weights are recomputed from the
saved log-sums, w_ij = exp(β s_ij - log_sum_i), and Σ_j w_ij keep_ij ⟨g_i, y_j⟩ = ⟨dz_i, z_i⟩ needs no second pass:

    targets   dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - ⟨dz_i, z_i⟩),  dβ += ds_ij s_ij
              dkey_i = Σ_j β ds_ij key_j,  dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

A source sums over its incoming edges in their order: no atomics, bit-identical results. What depends on an edge and a
head, the kept weight and the gradient of the inner product, is in two tables (B, T, k, H).
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
def _target_torque(q, square, z, g, TRANSPORT: tl.constexpr):
    """Σ over channels of the torque of lowering; the aggregate is the output z lifted again."""
    inverse = 1.0 / square
    if TRANSPORT == SANDWICH:
        inverse = inverse * inverse
    return total(torque(scale(inverse, lift(q, z, TRANSPORT)), g, TRANSPORT), 1)


@jit
def target_gradients_kernel(
    gradient, out, log_sums, field, lifted, keys, neighbours, beta, keep, directions,
    lifted_gradient, target_keys, kept_table, score_table, field_gradient, beta_parts, direction_parts,
    targets, sources, site, threshold,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write g_i, the tables of the edges, dq_i, and per vertex and head the parts of dβ and dp_i."""
    vertex, image = tl.program_id(0), tl.program_id(1)
    here = (image * targets + vertex).to(tl.int64)
    head = tl.arange(0, HEADS)
    offset, valid = feature_offsets(H, Q, HEADS, CHANNELS)
    q = head_quaternions(field, here, H, HEADS, ACCUMULATE)
    square = tl.where((head < H)[:, None], inner_product(q, q), 1.0)
    z = components(tl.load(out + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE))
    z_gradient = components(tl.load(gradient + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE))
    through_output = tl.sum(inner_product(z, z_gradient), 1)
    g = lift(q, z_gradient, TRANSPORT)
    total_torque = _target_torque(q, square, z, g, TRANSPORT)
    rows_of_g = together(g)
    tl.store(lifted_gradient + here * (4 * H * Q) + offset, rows_of_g, valid)
    key = key_of_target(q, directions, vertex, ROUTING, ACCUMULATE)
    if ROUTING == GEOMETRIC:
        store_heads(target_keys, here, key, H, HEADS)
    key, flat_g = tl.trans(together(key), 1, 0, 2), tl.reshape(rows_of_g, (HEADS, 4 * CHANNELS))[None, :, :]
    inverse_temperature = tl.load(beta + head, head < H, 0.0).to(ACCUMULATE)[None, :]
    log_sum = tl.load(log_sums + here * H + head, head < H, 0.0)[None, :]
    key_gradient, beta_part = tl.zeros((HEADS, 4), ACCUMULATE), tl.zeros((HEADS,), ACCUMULATE)
    for first in range(0, K, CHUNK):
        slot, row, outside = load_rows(neighbours, image, vertex, sources, first, K, CHUNK)
        source_keys = load_keys(keys, row, H, HEADS, ACCUMULATE)
        product, score = scores(key, source_keys, ROUTING)
        used = (slot < K) & (head[None, :] < H)
        logit = tl.where(outside, float("nan"), inverse_temperature * score - log_sum)
        weight = tl.where(used, tl.exp(logit), 0.0)
        kept = weight
        if KEEP != NO_MASK:
            edge = (image, vertex, targets, slot, head[None, :], used)
            survivors = edge_mask(keep, site, threshold, edge, K, H, KEEP)
            kept = tl.where(survivors, weight * KEEP_SCALE, 0.0)
        at = (here * K + slot) * H + head[None, :]
        tl.store(kept_table + at, kept, used)
        if ROUTING != UNIFORM:
            y = load_features(lifted, row, H, Q, HEADS, CHANNELS, ACCUMULATE)
            logit_gradient = kept * tl.sum(flat_g * y, 2) - weight * through_output[None, :]
            beta_part += tl.sum(logit_gradient * score, 0)
            score_gradient = inverse_temperature * logit_gradient
            if ROUTING == ABSOLUTE:
                sign = tl.where(product > 0.0, 1.0, tl.where(product < 0.0, -1.0, 0.0))
                score_gradient = score_gradient * sign
            tl.store(score_table + at, score_gradient, used)
            key_gradient += tl.sum(score_gradient[:, :, None] * source_keys, 0)
    if ROUTING != UNIFORM:
        tl.store(beta_parts + here * H + head, beta_part, head < H)
    through_key = components(key_gradient[:, None, :])
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
def source_gradients_kernel(
    field, lifted, directions, offsets, edges, lifted_gradient, target_keys, kept_table, score_table,
    features_gradient, field_gradient, direction_parts,
    residual, gate, features, gate_parts, mixing_offsets, mixing_edges, mixing_weights,
    targets, sources, RESIDUAL: tl.constexpr, TERMS: tl.constexpr,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dx_j, dq_j and the parts of dp_j from the targets' tables; the edges into j start at edges[offsets[j]].

    A step's residual has the output gradient `residual` (B, T, H, Q, 4): its own row is added to dx_j, or gate times
    the adjoint of the interpolation, whose product with the features is a vertex's part of the gate's gradient.
    """
    vertex, image = tl.program_id(0), tl.program_id(1)
    here = (image * sources + vertex).to(tl.int64)
    head = tl.arange(0, HEADS)[None, :]
    start, stop = tl.load(offsets + vertex).to(tl.int32), tl.load(offsets + vertex + 1).to(tl.int32)
    key_gradient, flat_g = tl.zeros((HEADS, 4), ACCUMULATE), tl.zeros((HEADS, 4 * CHANNELS), ACCUMULATE)
    for first in range(start, stop, CHUNK):
        index = first + tl.arange(0, CHUNK)[:, None]  # beyond the end the last edge again, with weight 0
        twice = tl.minimum(index, stop - 1) + tl.zeros((1, 2), tl.int32)  # as in `load_rows`
        edge = tl.max(tl.load(edges + twice), 1, keep_dims=True).to(tl.int32)
        row, valid = (image * targets + edge // K).to(tl.int64), (index < stop) & (head < H)
        at = ((image * targets).to(tl.int64) * K + edge) * H + head
        kept = tl.load(kept_table + at, valid, 0.0)
        g = load_features(lifted_gradient, row, H, Q, HEADS, CHANNELS, ACCUMULATE)
        flat_g += tl.sum(kept[:, :, None] * g, 0)
        if ROUTING != UNIFORM:
            score_gradient = tl.load(score_table + at, valid, 0.0)
            keys = load_keys(target_keys, row, H, HEADS, ACCUMULATE)
            key_gradient += tl.sum(score_gradient[:, :, None] * keys, 0)
    offset, valid = feature_offsets(H, Q, HEADS, CHANNELS)
    q = head_quaternions(field, here, H, HEADS, ACCUMULATE)
    square = tl.where(tl.trans(head, 1, 0) < H, inner_product(q, q), 1.0)
    g = components(tl.reshape(flat_g, (HEADS, CHANNELS, 4)))
    y = components(tl.load(lifted + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE))
    total_torque = total(torque(g, y, TRANSPORT), 1)
    x_gradient = together(lift(conjugate(q), g, TRANSPORT))
    if RESIDUAL == SAME_ROW:
        x_gradient += tl.load(residual + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE)
    if RESIDUAL == INTERPOLATED:
        reverse = (mixing_offsets, mixing_edges, mixing_weights)
        back = adjoint_row(residual, reverse, image, vertex, targets, offset, valid, 4 * H * Q, TERMS, ACCUMULATE)
        x = tl.load(features + here * (4 * H * Q) + offset, valid, 0.0).to(ACCUMULATE)
        tl.store(gate_parts + here, tl.sum(back * x))
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
