"""The gradients of the fused quaternion kernel in Triton: weights are recomputed, sources read the reversed graph.

With g the output gradient lifted by the target and y the lifted sources:

    targets   dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - Σ_j w_ij keep_ij dw_ij),  dβ += ds_ij s_ij
              dkey_i = Σ_j β ds_ij key_j,  dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

The aggregate that the target's torque needs is the output lifted again. A source sums over its listeners in the order
of the edges: no scatter, no atomics, the same bits every time.
"""

import triton.language as tl

from quatsphere.kernels.triton_attention import (
    ABSOLUTE,
    GEOMETRIC,
    UNIFORM,
    channels_of,
    hear,
    items_here,
    kept_weights,
    load_direction,
    neighbours_of,
    route,
    target_key,
)
from quatsphere.kernels.triton_transport import (
    SANDWICH,
    add,
    conjugate,
    dot,
    jit,
    lift,
    load_quaternions,
    multiply,
    per_channel,
    scale,
    store_quaternions,
    sum_over,
    torque,
    turn,
)


@jit
def score_slopes(product, score, weights, kept, dots, beta, ROUTING: tl.constexpr):  # type: ignore[no-untyped-def]
    """(gradients of the inner products (N, slots), the items' parts of dβ (N,))."""
    logit = kept * dots - weights * tl.sum(kept * dots, 1)[:, None]
    beta_part = tl.sum(logit * score, 1)
    slope = beta[:, None] * logit
    if ROUTING == ABSOLUTE:
        slope = tl.where(product > 0.0, slope, tl.where(product < 0.0, -slope, 0.0))
    return slope, beta_part


@jit
def target_torque(q, square, z, g, TRANSPORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ over channels of the torque of lowering; the aggregate is the output z (N, channels) lifted again."""
    share = 1.0 / square
    if TRANSPORT == SANDWICH:
        share = share * share
    aggregated = scale(share[:, None], lift(per_channel(q), z, TRANSPORT))
    return sum_over(torque(aggregated, g, TRANSPORT), 1)


@jit
def target_gradients(  # type: ignore[no-untyped-def]
    gradient, out, field, lifted, keys, neighbours, beta, keep, directions,
    lifted_gradient, target_keys, kept_table, slopes, field_gradient, beta_parts, direction_parts,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Writes the targets' tables and per edge kept weights and slopes (B, T, k, H), dq_i, and per item dβ and dp_i."""
    item, there = items_here(count, N)
    vertex, head = item // heads, item % heads
    q = load_quaternions(field, item * 4, 1, there, ACCUMULATE)
    square = tl.where(there, dot(q, q), 1.0)
    key = target_key(q, directions, vertex % targets, there, ROUTING, ACCUMULATE)
    own = vertex * 4 * heads + head
    store_quaternions(target_keys, own, heads, there, key)
    read, wanted = channels_of(item, channels, there, CHANNELS)
    z = load_quaternions(out, read * 4, 1, wanted, ACCUMULATE)
    g = lift(per_channel(q), load_quaternions(gradient, read * 4, 1, wanted, ACCUMULATE), TRANSPORT)
    write, _ = channels_of(own, channels, there, CHANNELS)
    store_quaternions(lifted_gradient, write, heads * channels, wanted, g)
    turning = target_torque(q, square, z, g, TRANSPORT)

    place, heard = neighbours_of(neighbours, vertex, head, targets, sources, k, heads, there, SLOTS)
    source_keys = load_quaternions(keys, place, heads, heard, ACCUMULATE)
    sharpness = tl.load(beta + head, there, 0.0).to(ACCUMULATE)
    product, score, weights = route(key, source_keys, sharpness, k, ROUTING, SLOTS)
    kept, edge = kept_weights(weights, keep, item, k, heads, heard, KEEP, SLOTS)
    tl.store(kept_table + edge, kept, heard)
    if ROUTING != UNIFORM:
        read, wanted = channels_of(place, channels, heard, CHANNELS)
        y = load_quaternions(lifted, read, heads * channels, wanted, ACCUMULATE)
        dots = tl.sum(dot((g[0][:, None, :], g[1][:, None, :], g[2][:, None, :], g[3][:, None, :]), y), 2)
        slope, beta_part = score_slopes(product, score, weights, kept, dots, sharpness, ROUTING)
        tl.store(slopes + edge, slope, heard)
        tl.store(beta_parts + item, beta_part, there)
        through_key = sum_over(scale(slope, source_keys), 1)
        if ROUTING == GEOMETRIC:
            p = load_direction(directions, vertex % targets, there, ACCUMULATE)
            pull = turn(q, (p[0], 2.0 * through_key[1], 2.0 * through_key[2], 2.0 * through_key[3]))
            store_direction(direction_parts, item, there, pull)
            turning = add(turning, torque(p, pull, SANDWICH))
            through_key = scale(-4.0 * through_key[0] * square, q)
        q_gradient = add(scale(1.0 / square, multiply(turning, q)), through_key)
    else:
        q_gradient = scale(1.0 / square, multiply(turning, q))
    store_quaternions(field_gradient, item * 4, 1, there, q_gradient)


@jit
def store_direction(table, item, there, p):  # type: ignore[no-untyped-def]
    """The imaginary part of p -> table (items, 3)."""
    tl.store(table + item * 3, p[1], there)
    tl.store(table + item * 3 + 1, p[2], there)
    tl.store(table + item * 3 + 2, p[3], there)


@jit
def source_gradients(  # type: ignore[no-untyped-def]
    field, lifted, directions, offsets, edges, lifted_gradient, target_keys, kept_table, slopes,
    features_gradient, field_gradient, direction_parts,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """dx_j and dq_j, and dp_j per item, from what the listeners wrote; the edges into j are edges[offsets[j]:...]."""
    item, there = items_here(count, N)
    vertex, head = item // heads, item % heads
    start = tl.load(offsets + vertex % sources, there, 0)
    stop = tl.load(offsets + vertex % sources + 1, there, 0)
    nothing = tl.zeros((N,), ACCUMULATE)
    blank = tl.zeros((N, CHANNELS), ACCUMULATE)
    g = (blank, blank, blank, blank)
    through_key = (nothing, nothing, nothing, nothing)
    for first in range(0, tl.max(stop - start, 0), SLOTS):
        number = start[:, None] + first + tl.arange(0, SLOTS)[None, :]
        told = there[:, None] & (number < stop[:, None])
        edge = tl.load(edges + number, told, 0) + (vertex // sources)[:, None] * targets * k
        place = (edge // k) * 4 * heads + head[:, None]
        at_edge = edge * heads + head[:, None]
        kept = tl.load(kept_table + at_edge, told, 0.0)
        g = add(g, hear(lifted_gradient, place, told, kept, heads, channels, CHANNELS))
        if ROUTING != UNIFORM:
            slope = tl.load(slopes + at_edge, told, 0.0)
            key = load_quaternions(target_keys, place, heads, told, ACCUMULATE)
            through_key = add(through_key, sum_over(scale(slope, key), 1))

    q = load_quaternions(field, item * 4, 1, there, ACCUMULATE)
    square = tl.where(there, dot(q, q), 1.0)
    read, wanted = channels_of(vertex * 4 * heads + head, channels, there, CHANNELS)
    y = load_quaternions(lifted, read, heads * channels, wanted, ACCUMULATE)
    turning = sum_over(torque(g, y, TRANSPORT), 1)
    write, _ = channels_of(item, channels, there, CHANNELS)
    store_quaternions(features_gradient, write * 4, 1, wanted, lift(per_channel(conjugate(q)), g, TRANSPORT))
    q_gradient = scale(1.0 / square, multiply(turning, q))
    if ROUTING == GEOMETRIC:
        p = load_direction(directions, vertex % sources, there, ACCUMULATE)
        store_direction(direction_parts, item, there, add(scale(2.0 * through_key[0], p), through_key))
    else:
        q_gradient = add(q_gradient, through_key)
    store_quaternions(field_gradient, item * 4, 1, there, q_gradient)
