"""Triton kernels of the fused quaternion attention and its gradients.

Sources are lifted once, then every target sums over its k neighbours. An *item* is one head of one vertex of one image,
number (image V + vertex) H + head; a program takes N items with all their slots (neighbours) and channels, both padded
to powers of two. Tables are component first, so that heads and channels of a vertex are adjacent: features (B, V, 4, H,
Q), keys (B, V, 4, H). The score of every routing is an inner product of 4-vectors, target key with source key:

    alignment, absolute   q_i                              q_j
    geometric             (-|q_i|⁴, 2 q_i* p_i q_i)        (|p_j|², p_j)      = -‖p_i - q_i p_j q_i*‖² + |p_i|²

(the last term is the same for all neighbours of i and cancels in the softmax). For the gradients, with g the output
gradient lifted by the target and y the lifted sources, weights are recomputed:

    targets   dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - Σ_j w_ij keep_ij dw_ij),  dβ += ds_ij s_ij
              dkey_i = Σ_j β ds_ij key_j,  dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

    transport    lift(q, x)    lower(q, a)    torque of lift, gradient g at y    torque of lower, g lifted
    sandwich     q x q*        q* a q         g y* + g* y = 2 (⟨y, g⟩, y × g)     a* g + a g* = 2 (⟨a, g⟩, -a × g)
    one_sided    q x           q* a           g y*                               a g*
    identity     x             a              0                                  0

A source sums over its incoming edges in their order: no atomics, bit-identical results. A quaternion is a tuple (w, x,
y, z) of blocks of one shape. Triton reads TRITON_INTERPRET at its import, so this module is imported late.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_SANDWICH, _ONE_SIDED = tl.constexpr(0), tl.constexpr(2)  # indices into inputs.TRANSPORTS
_ABSOLUTE, _UNIFORM, _GEOMETRIC = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # into inputs.ROUTINGS


def jit(function: Callable[..., Any]) -> Any:
    """triton.jit without the wrapper that jaxtyping adds under pytest."""
    return triton.jit(inspect.unwrap(function))


@jit
def _load_quaternions(table, at, stride, valid, ACCUMULATE: tl.constexpr):
    """Components at distance `stride`, widened to the accumulation type; zero where not valid."""
    return (
        tl.load(table + at, valid, 0.0).to(ACCUMULATE),
        tl.load(table + at + stride, valid, 0.0).to(ACCUMULATE),
        tl.load(table + at + 2 * stride, valid, 0.0).to(ACCUMULATE),
        tl.load(table + at + 3 * stride, valid, 0.0).to(ACCUMULATE),
    )


@jit
def _store_quaternions(table, at, stride, valid, q):
    """Write the components at distance `stride`, narrowed to the table's type."""
    tl.store(table + at, q[0], valid)
    tl.store(table + at + stride, q[1], valid)
    tl.store(table + at + 2 * stride, q[2], valid)
    tl.store(table + at + 3 * stride, q[3], valid)


@jit
def _per_channel(q):
    """(N,) -> (N, 1): one quaternion for all channels of an item."""
    return q[0][:, None], q[1][:, None], q[2][:, None], q[3][:, None]


@jit
def _conjugate(q):
    """q*."""
    return q[0], -q[1], -q[2], -q[3]


@jit
def _dot(a, b):
    """⟨a, b⟩ = Re(a* b)."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]


@jit
def _multiply(a, b):
    """Hamilton product a ⊗ b."""
    return (
        a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
        a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
        a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
        a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
    )


@jit
def _rotate(q, a):
    """q ⊗ a ⊗ q*: |q|² times the real part, the rotation matrix of q times the imaginary part."""
    w, x, y, z = q
    ww, xx, yy, zz = w * w, x * x, y * y, z * z
    return (
        (ww + xx + yy + zz) * a[0],
        (ww + xx - yy - zz) * a[1] + 2.0 * (x * y - w * z) * a[2] + 2.0 * (x * z + w * y) * a[3],
        2.0 * (x * y + w * z) * a[1] + (ww - xx + yy - zz) * a[2] + 2.0 * (y * z - w * x) * a[3],
        2.0 * (x * z - w * y) * a[1] + 2.0 * (y * z + w * x) * a[2] + (ww - xx - yy + zz) * a[3],
    )


@jit
def _lift(q, x, TRANSPORT: tl.constexpr):
    """Vertex frame -> shared frame; with q* it lowers."""
    if TRANSPORT == _SANDWICH:
        return _rotate(q, x)
    elif TRANSPORT == _ONE_SIDED:  # noqa: RET505 (Triton prunes branches, not code after a return)
        return _multiply(q, x)
    else:
        return x


@jit
def _torque(a, b, TRANSPORT: tl.constexpr):
    """Torque per channel in the shared frame; the gradient of lift has (a, b) = (g, y), that of lower (a, g)."""
    w, x, y, z = _multiply(a, _conjugate(b))
    if TRANSPORT == _SANDWICH:
        return (
            2.0 * w,
            2.0 * (a[3] * b[2] - a[2] * b[3]),
            2.0 * (a[1] * b[3] - a[3] * b[1]),
            2.0 * (a[2] * b[1] - a[1] * b[2]),
        )
    elif TRANSPORT == _ONE_SIDED:  # noqa: RET505
        return w, x, y, z
    else:
        return tl.zeros_like(w), tl.zeros_like(x), tl.zeros_like(y), tl.zeros_like(z)


@jit
def _add(a, b):
    """a + b."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@jit
def _scale(factor, a):
    """A real factor times a."""
    return factor * a[0], factor * a[1], factor * a[2], factor * a[3]


@jit
def _sum(a, axis: tl.constexpr):
    """Σ along one axis of the blocks."""
    return tl.sum(a[0], axis), tl.sum(a[1], axis), tl.sum(a[2], axis), tl.sum(a[3], axis)


@jit
def _program_items(count, N: tl.constexpr):
    """(items of this program, validity mask), both (N,)."""
    item = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    return item, item < count


@jit
def _channel_offsets(offset, channels, valid, CHANNELS: tl.constexpr):
    """(offsets of the channels that start at offset * Q, validity mask): appends an axis of channels to a block."""
    channel = tl.arange(0, CHANNELS)
    if len(offset.shape) == 1:
        return offset[:, None] * channels + channel[None, :], valid[:, None] & (channel < channels)[None, :]
    else:  # noqa: RET505 (Triton prunes branches, not code after a return)
        return offset[:, :, None] * channels + channel[None, None, :], valid[:, :, None] & (channel < channels)[
            None, None, :
        ]


@jit
def _load_direction(directions, vertex, valid, ACCUMULATE: tl.constexpr):
    """Direction of a vertex as a quaternion (0, p)."""
    x = tl.load(directions + vertex * 3, valid, 0.0).to(ACCUMULATE)
    y = tl.load(directions + vertex * 3 + 1, valid, 0.0).to(ACCUMULATE)
    z = tl.load(directions + vertex * 3 + 2, valid, 0.0).to(ACCUMULATE)
    return tl.zeros_like(x), x, y, z


@jit
def _target_key(q, directions, vertex, valid, ROUTING: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Routing key of a target."""
    if ROUTING == _GEOMETRIC:
        square = _dot(q, q)
        rotated = _rotate(_conjugate(q), _load_direction(directions, vertex, valid, ACCUMULATE))
        return -square * square, 2.0 * rotated[1], 2.0 * rotated[2], 2.0 * rotated[3]
    else:  # noqa: RET505
        return q


@jit
def _source_key(q, directions, vertex, valid, ROUTING: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Routing key of a source."""
    if ROUTING == _GEOMETRIC:
        p = _load_direction(directions, vertex, valid, ACCUMULATE)
        return _dot(p, p), p[1], p[2], p[3]
    else:  # noqa: RET505
        return q


@jit
def lift_sources_kernel(
    field, features, directions, lifted, keys,
    count, vertices, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Lift every source once into the shared frame and write its key: features (B, S, H, Q, 4) -> tables."""
    item, valid = _program_items(count, N)
    vertex, head = item // heads, item % heads
    q = _load_quaternions(field, item * 4, 1, valid, ACCUMULATE)
    key = _source_key(q, directions, vertex % vertices, valid, ROUTING, ACCUMULATE)
    offset = vertex * 4 * heads + head
    _store_quaternions(keys, offset, heads, valid, key)
    read, valid_channel = _channel_offsets(item, channels, valid, CHANNELS)
    x = _load_quaternions(features, read * 4, 1, valid_channel, ACCUMULATE)
    write, valid_channel = _channel_offsets(offset, channels, valid, CHANNELS)
    _store_quaternions(lifted, write, heads * channels, valid_channel, _lift(_per_channel(q), x, TRANSPORT))


@jit
def _neighbour_offsets(neighbours, vertex, head, targets, sources, k, heads, valid, SLOTS: tl.constexpr):
    """(offsets of the neighbours in the table of keys, validity mask), both (N, slots)."""
    slot = tl.arange(0, SLOTS)
    valid_slot = valid[:, None] & (slot < k)[None, :]
    source = tl.load(neighbours + (vertex % targets)[:, None] * k + slot[None, :], valid_slot, 0)
    row = (vertex // targets)[:, None] * sources + source
    return row * 4 * heads + head[:, None], valid_slot


@jit
def _route(key, source_keys, beta, k, ROUTING: tl.constexpr, SLOTS: tl.constexpr):
    """(inner products, scores, weights = softmax of β score), each (N, slots); invalid slots have weight 0."""
    product = _dot(_per_channel(key), source_keys)
    score = product
    if ROUTING == _ABSOLUTE:
        score = tl.abs(product)
    if ROUTING == _UNIFORM:
        score = tl.zeros_like(product)
    logit = tl.where((tl.arange(0, SLOTS) < k)[None, :], beta[:, None] * score, float("-inf"))
    exponential = tl.exp(logit - tl.max(logit, 1)[:, None])
    return product, score, exponential / tl.sum(exponential, 1)[:, None]


@jit
def _kept_weights(weights, keep, item, k, heads, valid_slot, KEEP: tl.constexpr, SLOTS: tl.constexpr):
    """(weights after dropout, offsets of an item's slots in a (B, T, k, H) tensor such as the mask)."""
    slot = tl.arange(0, SLOTS)
    edge = ((item // heads)[:, None] * k + slot[None, :]) * heads + (item % heads)[:, None]
    if KEEP:
        weights = weights * tl.load(keep + edge, valid_slot, 0.0).to(weights.dtype)
    return weights, edge


@jit
def _gather_sum(lifted, offset, valid_slot, weights, heads, channels, CHANNELS: tl.constexpr):
    """Σ over slots of weight times table entry: (N, slots) -> quaternions (N, channels)."""
    read, valid_channel = _channel_offsets(offset, channels, valid_slot, CHANNELS)
    y = _load_quaternions(lifted, read, heads * channels, valid_channel, weights.dtype)
    return _sum(_scale(weights[:, :, None], y), 1)


@jit
def attend_kernel(
    field, lifted, keys, neighbours, beta, keep, directions, out,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """lower_i(Σ_j C_ij lifted_j) -> out (B, T, H, Q, 4)."""
    item, valid = _program_items(count, N)
    vertex, head = item // heads, item % heads
    q = _load_quaternions(field, item * 4, 1, valid, ACCUMULATE)
    key = _target_key(q, directions, vertex % targets, valid, ROUTING, ACCUMULATE)
    offset, valid_slot = _neighbour_offsets(neighbours, vertex, head, targets, sources, k, heads, valid, SLOTS)
    source_keys = _load_quaternions(keys, offset, heads, valid_slot, ACCUMULATE)
    item_beta = tl.load(beta + head, valid, 0.0).to(ACCUMULATE)
    _, _, weights = _route(key, source_keys, item_beta, k, ROUTING, SLOTS)
    weights, _ = _kept_weights(weights, keep, item, k, heads, valid_slot, KEEP, SLOTS)
    aggregated = _gather_sum(lifted, offset, valid_slot, weights, heads, channels, CHANNELS)
    write, valid_channel = _channel_offsets(item, channels, valid, CHANNELS)
    _store_quaternions(out, write * 4, 1, valid_channel, _lift(_per_channel(_conjugate(q)), aggregated, TRANSPORT))


@jit
def _score_gradients(product, score, weights, kept, dots, beta, ROUTING: tl.constexpr):
    """(gradients of the inner products (N, slots), contributions to dβ (N,))."""
    logit = kept * dots - weights * tl.sum(kept * dots, 1)[:, None]
    beta_part = tl.sum(logit * score, 1)
    score_grad = beta[:, None] * logit
    if ROUTING == _ABSOLUTE:
        score_grad = tl.where(product > 0.0, score_grad, tl.where(product < 0.0, -score_grad, 0.0))
    return score_grad, beta_part


@jit
def _target_torque(q, square, z, g, TRANSPORT: tl.constexpr):
    """Σ over channels of the torque of lowering; the aggregate is the output z (N, channels) lifted again."""
    inverse = 1.0 / square
    if TRANSPORT == _SANDWICH:
        inverse = inverse * inverse
    aggregated = _scale(inverse[:, None], _lift(_per_channel(q), z, TRANSPORT))
    return _sum(_torque(aggregated, g, TRANSPORT), 1)


@jit
def target_gradients_kernel(
    gradient, out, field, lifted, keys, neighbours, beta, keep, directions,
    lifted_gradient, target_keys, kept_table, score_table, field_gradient, beta_parts, direction_parts,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write the targets' tables, kept weights and score gradients per edge (B, T, k, H), dq_i, dβ and dp_i per item."""
    item, valid = _program_items(count, N)
    vertex, head = item // heads, item % heads
    q = _load_quaternions(field, item * 4, 1, valid, ACCUMULATE)
    square = tl.where(valid, _dot(q, q), 1.0)
    key = _target_key(q, directions, vertex % targets, valid, ROUTING, ACCUMULATE)
    target_offset = vertex * 4 * heads + head
    _store_quaternions(target_keys, target_offset, heads, valid, key)
    read, valid_channel = _channel_offsets(item, channels, valid, CHANNELS)
    z = _load_quaternions(out, read * 4, 1, valid_channel, ACCUMULATE)
    g = _lift(_per_channel(q), _load_quaternions(gradient, read * 4, 1, valid_channel, ACCUMULATE), TRANSPORT)
    write, _ = _channel_offsets(target_offset, channels, valid, CHANNELS)
    _store_quaternions(lifted_gradient, write, heads * channels, valid_channel, g)
    total_torque = _target_torque(q, square, z, g, TRANSPORT)
    offset, valid_slot = _neighbour_offsets(neighbours, vertex, head, targets, sources, k, heads, valid, SLOTS)
    source_keys = _load_quaternions(keys, offset, heads, valid_slot, ACCUMULATE)
    item_beta = tl.load(beta + head, valid, 0.0).to(ACCUMULATE)
    product, score, weights = _route(key, source_keys, item_beta, k, ROUTING, SLOTS)
    kept, edge = _kept_weights(weights, keep, item, k, heads, valid_slot, KEEP, SLOTS)
    tl.store(kept_table + edge, kept, valid_slot)
    if ROUTING != _UNIFORM:
        read, valid_channel = _channel_offsets(offset, channels, valid_slot, CHANNELS)
        y = _load_quaternions(lifted, read, heads * channels, valid_channel, ACCUMULATE)
        dots = tl.sum(_dot((g[0][:, None, :], g[1][:, None, :], g[2][:, None, :], g[3][:, None, :]), y), 2)
        score_grad, beta_part = _score_gradients(product, score, weights, kept, dots, item_beta, ROUTING)
        tl.store(score_table + edge, score_grad, valid_slot)
        tl.store(beta_parts + item, beta_part, valid)
        through_key = _sum(_scale(score_grad, source_keys), 1)
        if ROUTING == _GEOMETRIC:
            p = _load_direction(directions, vertex % targets, valid, ACCUMULATE)
            p_gradient = _rotate(q, (p[0], 2.0 * through_key[1], 2.0 * through_key[2], 2.0 * through_key[3]))
            _store_direction(direction_parts, item, valid, p_gradient)
            total_torque = _add(total_torque, _torque(p, p_gradient, _SANDWICH))
            through_key = _scale(-4.0 * through_key[0] * square, q)
        q_gradient = _add(_scale(1.0 / square, _multiply(total_torque, q)), through_key)
    else:
        q_gradient = _scale(1.0 / square, _multiply(total_torque, q))
    _store_quaternions(field_gradient, item * 4, 1, valid, q_gradient)


@jit
def _store_direction(table, item, valid, p):
    """Imaginary part of p -> table (items, 3)."""
    tl.store(table + item * 3, p[1], valid)
    tl.store(table + item * 3 + 1, p[2], valid)
    tl.store(table + item * 3 + 2, p[3], valid)


@jit
def source_gradients_kernel(
    field, lifted, directions, offsets, edges, lifted_gradient, target_keys, kept_table, score_table,
    features_gradient, field_gradient, direction_parts,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx_j, dq_j and dp_j per item from the targets' tables; the edges into j start at edges[offsets[j]]."""
    item, valid = _program_items(count, N)
    vertex, head = item // heads, item % heads
    source = offsets + vertex % sources
    start, stop = tl.load(source, valid, 0), tl.load(source + 1, valid, 0)
    zero, zeros = tl.zeros((N,), ACCUMULATE), tl.zeros((N, CHANNELS), ACCUMULATE)
    through_key, g = (zero, zero, zero, zero), (zeros, zeros, zeros, zeros)
    for first in range(0, tl.max(stop - start, 0), SLOTS):
        index = start[:, None] + first + tl.arange(0, SLOTS)[None, :]
        valid_slot = valid[:, None] & (index < stop[:, None])
        edge = tl.load(edges + index, valid_slot, 0) + (vertex // sources)[:, None] * targets * k
        offset, edge_offset = (edge // k) * 4 * heads + head[:, None], edge * heads + head[:, None]
        kept = tl.load(kept_table + edge_offset, valid_slot, 0.0)
        g = _add(g, _gather_sum(lifted_gradient, offset, valid_slot, kept, heads, channels, CHANNELS))
        if ROUTING != _UNIFORM:
            score_grad = tl.load(score_table + edge_offset, valid_slot, 0.0)
            key = _load_quaternions(target_keys, offset, heads, valid_slot, ACCUMULATE)
            through_key = _add(through_key, _sum(_scale(score_grad, key), 1))
    q = _load_quaternions(field, item * 4, 1, valid, ACCUMULATE)
    square = tl.where(valid, _dot(q, q), 1.0)
    read, valid_channel = _channel_offsets(vertex * 4 * heads + head, channels, valid, CHANNELS)
    y = _load_quaternions(lifted, read, heads * channels, valid_channel, ACCUMULATE)
    total_torque = _sum(_torque(g, y, TRANSPORT), 1)
    write, _ = _channel_offsets(item, channels, valid, CHANNELS)
    _store_quaternions(features_gradient, write * 4, 1, valid_channel, _lift(_per_channel(_conjugate(q)), g, TRANSPORT))
    q_gradient = _scale(1.0 / square, _multiply(total_torque, q))
    if ROUTING == _GEOMETRIC:
        p = _load_direction(directions, vertex % sources, valid, ACCUMULATE)
        _store_direction(direction_parts, item, valid, _add(_scale(2.0 * through_key[0], p), through_key))
    else:
        q_gradient = _add(q_gradient, through_key)
    _store_quaternions(field_gradient, item * 4, 1, valid, q_gradient)
