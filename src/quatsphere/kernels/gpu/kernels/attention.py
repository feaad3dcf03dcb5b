"""Triton kernels of the quaternion attention, forward.

A program is one vertex of one image with all its heads, in the layout of the inputs: rows of H quaternions per channel,
read 128 bits at a time. Sources are lifted once into the shared frame, then every target sums over its k neighbours,
CHUNK at a time with a running softmax. The score of every routing is an inner product of 4-vectors, target key with
source key:

    alignment, absolute   q_i                              q_j
    geometric             (-|q_i|⁴, 2 q_i* p_i q_i)        (|p_j|², p_j)      = -‖p_i - q_i p_j q_i*‖² + |p_i|²

(the last term is the same for all neighbours of i and cancels in the softmax). An index outside the source shell makes
the target NaN; it reads no other memory. Blocks are padded to powers of two: HEADS >= H, CHANNELS >= Q.
"""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.masks import NO_MASK, edge_mask
from quatsphere.kernels.gpu.kernels.quaternions import components, conjugate, inner_product, jit, lift, rotate, together

ABSOLUTE, UNIFORM, GEOMETRIC = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # indices into inputs.ROUTINGS


@jit
def head_quaternions(table, row, H: tl.constexpr, HEADS: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Row of a table (..., H, 4): components (HEADS, 1)."""
    head, component = tl.arange(0, HEADS)[:, None, None], tl.arange(0, 4)[None, None, :]
    return components(tl.load(table + row * (4 * H) + head * 4 + component, head < H, 0.0).to(ACCUMULATE))


@jit
def feature_offsets(H: tl.constexpr, Q: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr):
    """(offsets within a row (H, Q, 4), validity mask), (HEADS, CHANNELS, 4)."""
    head, channel = tl.arange(0, HEADS)[:, None, None], tl.arange(0, CHANNELS)[None, :, None]
    component = tl.arange(0, 4)[None, None, :]
    return (head * Q + channel) * 4 + component, (head < H) & (channel < Q) & (component < 4)


@jit
def load_direction(directions, vertex, ACCUMULATE: tl.constexpr):
    """Direction of a vertex as a quaternion (0, p) of scalars."""
    x = tl.load(directions + vertex * 3).to(ACCUMULATE)
    y = tl.load(directions + vertex * 3 + 1).to(ACCUMULATE)
    z = tl.load(directions + vertex * 3 + 2).to(ACCUMULATE)
    return tl.zeros_like(x), x, y, z


@jit
def key_of_target(q, directions, vertex, ROUTING: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Routing key of a target, components of the shape of q."""
    if ROUTING == GEOMETRIC:
        square = inner_product(q, q)
        rotated = rotate(conjugate(q), load_direction(directions, vertex, ACCUMULATE))
        return -square * square, 2.0 * rotated[1], 2.0 * rotated[2], 2.0 * rotated[3]
    else:  # noqa: RET505 (Triton prunes branches, not code after a return)
        return q


@jit
def lift_sources_kernel(
    field, features, directions, lifted, keys, count, vertices,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    H: tl.constexpr, Q: tl.constexpr, CHANNELS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Lift N heads of sources into the shared frame: features (B, S, H, Q, 4) -> lifted; keys of `geometric`."""
    item = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)[:, None, None]
    component, valid = tl.arange(0, 4)[None, None, :], item < count
    q = components(tl.load(field + item * 4 + component, valid, 0.0).to(ACCUMULATE))
    channel = tl.arange(0, CHANNELS)[None, :, None]
    offset, valid_channel = (item * Q + channel) * 4 + component, valid & (channel < Q)
    x = components(tl.load(features + offset, valid_channel, 0.0).to(ACCUMULATE))
    tl.store(lifted + offset, together(lift(q, x, TRANSPORT)), valid_channel)
    if ROUTING == GEOMETRIC:
        at = directions + (item // H % vertices) * 3 + component - 1
        p = tl.load(at, valid & (component > 0), 0.0).to(ACCUMULATE)
        square = tl.sum(p * p, 2, keep_dims=True)
        tl.store(keys + item * 4 + component, tl.where(component > 0, p, square), valid)


@jit
def lift_gradient_kernel(
    field, gradient, out, directions, lifted, through, keys, count, vertices,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    H: tl.constexpr, Q: tl.constexpr, CHANNELS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Lift N heads of the output gradient dz (B, T, H, Q, 4); ⟨dz, z⟩ -> through (B, T, H); keys of `geometric`."""
    item = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)[:, None, None]
    component, valid = tl.arange(0, 4)[None, None, :], item < count
    q = components(tl.load(field + item * 4 + component, valid, 0.0).to(ACCUMULATE))
    channel = tl.arange(0, CHANNELS)[None, :, None]
    offset, valid_channel = (item * Q + channel) * 4 + component, valid & (channel < Q)
    z_gradient = tl.load(gradient + offset, valid_channel, 0.0).to(ACCUMULATE)
    z = tl.load(out + offset, valid_channel, 0.0).to(ACCUMULATE)
    along = tl.sum(tl.sum(z * z_gradient, 2, keep_dims=True), 1, keep_dims=True)
    tl.store(through + item, along, valid)
    tl.store(lifted + offset, together(lift(q, components(z_gradient), TRANSPORT)), valid_channel)
    if ROUTING == GEOMETRIC:
        at = directions + (item // H % vertices) * 3 + component - 1
        p = components(tl.load(at, valid & (component > 0), 0.0).to(ACCUMULATE))
        square, turned = inner_product(q, q), rotate(conjugate(q), p)
        key = (-square * square, 2.0 * turned[1], 2.0 * turned[2], 2.0 * turned[3])
        tl.store(keys + item * 4 + component, together(key), valid)


@jit
def load_rows(neighbours, image, vertex, sources, first, K: tl.constexpr, CHUNK: tl.constexpr):
    """(slots, rows of their sources, which are outside the shell), (CHUNK, 1); slots beyond k repeat the last one."""
    slot = first + tl.arange(0, CHUNK)[:, None]
    twice = tl.minimum(slot, K - 1) + tl.zeros((1, 2), tl.int32)  # Triton then passes the indices on, without new loads
    source = tl.max(tl.load(neighbours + vertex * K + twice), 1, keep_dims=True)
    outside = (source < 0) | (source >= sources)
    row = image * sources + tl.where(outside, 0, source).to(tl.int32)
    return slot, row.to(tl.int64), outside


@jit
def load_keys(keys, row, H: tl.constexpr, HEADS: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Keys of rows (CHUNK, 1) -> (CHUNK, HEADS, 4)."""
    head, component = tl.arange(0, HEADS)[None, :, None], tl.arange(0, 4)[None, None, :]
    return tl.load(keys + row[:, :, None] * (4 * H) + head * 4 + component, head < H, 0.0).to(ACCUMULATE)


@jit
def load_features(
    table, row, H: tl.constexpr, Q: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr, ACCUMULATE: tl.constexpr
):  # fmt: skip
    """Features of rows (CHUNK, 1) -> (CHUNK, HEADS, 4 CHANNELS)."""
    head, channel = tl.arange(0, HEADS)[None, :, None], tl.arange(0, 4 * CHANNELS)[None, None, :]
    at = table + row[:, :, None] * (4 * H * Q) + head * (4 * Q) + channel
    return tl.load(at, (head < H) & (channel < 4 * Q), 0.0).to(ACCUMULATE)


@jit
def scores(key, source_keys, ROUTING: tl.constexpr):
    """(inner products, scores), (CHUNK, HEADS)."""
    product = tl.sum(key * source_keys, 2)
    if ROUTING == ABSOLUTE:
        return product, tl.abs(product)
    elif ROUTING == UNIFORM:  # noqa: RET505
        return product, product * 0.0
    else:
        return product, product


@jit
def attend_kernel(
    field, lifted, keys, neighbours, beta, keep, directions, out, log_sums,
    targets, sources, site, threshold,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr, K: tl.constexpr, H: tl.constexpr, Q: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """lower_i(Σ_j C_ij lifted_j) -> out (B, T, H, Q, 4), and log Σ_j exp(β s_ij) -> log_sums (B, T, H)."""
    vertex, image = tl.program_id(0), tl.program_id(1)
    here = (image * targets + vertex).to(tl.int64)
    head = tl.arange(0, HEADS)
    q = head_quaternions(field, here, H, HEADS, ACCUMULATE)
    key = tl.trans(together(key_of_target(q, directions, vertex, ROUTING, ACCUMULATE)), 1, 0, 2)
    inverse_temperature = tl.load(beta + head, head < H, 0.0).to(ACCUMULATE)[None, :]
    peak = tl.full((1, HEADS), float("-inf"), ACCUMULATE)
    mass, aggregated = tl.zeros((1, HEADS), ACCUMULATE), tl.zeros((HEADS, 4 * CHANNELS), ACCUMULATE)
    for first in range(0, K, CHUNK):
        slot, row, outside = load_rows(neighbours, image, vertex, sources, first, K, CHUNK)
        _, score = scores(key, load_keys(keys, row, H, HEADS, ACCUMULATE), ROUTING)
        logit = tl.where(slot < K, tl.where(outside, float("nan"), inverse_temperature * score), float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logit, 0, keep_dims=True))
        weight, correction = tl.exp(logit - new_peak), tl.exp(peak - new_peak)
        peak, mass = new_peak, mass * correction + tl.sum(weight, 0, keep_dims=True)
        if KEEP != NO_MASK:
            valid_edge = (slot < K) & (head[None, :] < H)
            edge = (image, vertex, targets, slot, head[None, :], valid_edge)
            weight = tl.where(edge_mask(keep, site, threshold, edge, K, H, KEEP), weight, 0.0)
        y = load_features(lifted, row, H, Q, HEADS, CHANNELS, ACCUMULATE)
        aggregated = aggregated * tl.reshape(correction, (HEADS, 1)) + tl.sum(weight[:, :, None] * y, 0)
    tl.store(log_sums + here * H + head, tl.reshape(peak + tl.log(mass), (HEADS,)), head < H)
    z = aggregated * (KEEP_SCALE / tl.reshape(mass, (HEADS, 1)))
    offset, valid = feature_offsets(H, Q, HEADS, CHANNELS)
    lowered = lift(conjugate(q), components(tl.reshape(z, (HEADS, CHANNELS, 4))), TRANSPORT)
    tl.store(out + here * (4 * H * Q) + offset, together(lowered), valid)
