"""The fused quaternion kernel in Triton: sources are lifted once, then every target hears its k neighbours.

An *item* is one head of one vertex of one image, number (image V + vertex) H + head; a program takes N of them with all
their slots (neighbours) and channels, both padded to powers of two. Tables have their components apart, so that the
heads and channels of a vertex lie side by side: features (B, V, 4, H, Q), keys (B, V, 4, H). The score of every
routing is an inner product of 4-vectors, target key with source key:

    alignment, absolute   q_i                              q_j
    geometric             (-|q_i|⁴, 2 q_i* p_i q_i)        (|p_j|², p_j)      = -‖p_i - q_i p_j q_i*‖² + |p_i|²

(the last term is the same for all neighbours of i and leaves the softmax alone). Gradients are in
`triton_attention_backward`. Triton reads TRITON_INTERPRET when it is first imported, so import this file late.
"""

import triton.language as tl

from quatsphere.kernels.triton_transport import (
    conjugate,
    dot,
    jit,
    lift,
    load_quaternions,
    per_channel,
    scale,
    store_quaternions,
    sum_over,
    turn,
)

ALIGNMENT, ABSOLUTE, UNIFORM, GEOMETRIC = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


@jit
def items_here(count, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """(items of this program, which of them exist), both (N,)."""
    item = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    return item, item < count


@jit
def channels_of(place, channels, there, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(places of the channels that start at place * Q, which exist): a last axis of channels added to any block."""
    channel = tl.arange(0, CHANNELS)
    if len(place.shape) == 1:
        return place[:, None] * channels + channel[None, :], there[:, None] & (channel < channels)[None, :]
    else:  # noqa: RET505 (Triton prunes branches, not what follows a return)
        wide = place[:, :, None] * channels + channel[None, None, :]
        return wide, there[:, :, None] & (channel < channels)[None, None, :]


@jit
def load_direction(directions, vertex, there, ACCUMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The direction of a vertex as a quaternion (0, p)."""
    x = tl.load(directions + vertex * 3, there, 0.0).to(ACCUMULATE)
    y = tl.load(directions + vertex * 3 + 1, there, 0.0).to(ACCUMULATE)
    z = tl.load(directions + vertex * 3 + 2, there, 0.0).to(ACCUMULATE)
    return tl.zeros_like(x), x, y, z


@jit
def target_key(q, directions, vertex, there, ROUTING: tl.constexpr, ACCUMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a target asks with."""
    if ROUTING == GEOMETRIC:
        square = dot(q, q)
        turned = turn(conjugate(q), load_direction(directions, vertex, there, ACCUMULATE))
        return -square * square, 2.0 * turned[1], 2.0 * turned[2], 2.0 * turned[3]
    else:  # noqa: RET505
        return q


@jit
def source_key(q, directions, vertex, there, ROUTING: tl.constexpr, ACCUMULATE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What a source answers with."""
    if ROUTING == GEOMETRIC:
        p = load_direction(directions, vertex, there, ACCUMULATE)
        return dot(p, p), p[1], p[2], p[3]
    else:  # noqa: RET505
        return q


@jit
def lift_sources(  # type: ignore[no-untyped-def]
    field, features, directions, lifted, keys,
    count, vertices, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Every source once into the shared frame, with its key: features (B, S, H, Q, 4) -> tables."""
    item, there = items_here(count, N)
    vertex, head = item // heads, item % heads
    q = load_quaternions(field, item * 4, 1, there, ACCUMULATE)
    key = source_key(q, directions, vertex % vertices, there, ROUTING, ACCUMULATE)
    place = vertex * 4 * heads + head
    store_quaternions(keys, place, heads, there, key)
    read, wanted = channels_of(item, channels, there, CHANNELS)
    x = load_quaternions(features, read * 4, 1, wanted, ACCUMULATE)
    write, wanted = channels_of(place, channels, there, CHANNELS)
    store_quaternions(lifted, write, heads * channels, wanted, lift(per_channel(q), x, TRANSPORT))


@jit
def neighbours_of(neighbours, vertex, head, targets, sources, k, heads, there, SLOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(places of the neighbours in the table of keys, which exist), both (N, slots)."""
    slot = tl.arange(0, SLOTS)
    heard = there[:, None] & (slot < k)[None, :]
    source = tl.load(neighbours + (vertex % targets)[:, None] * k + slot[None, :], heard, 0)
    row = (vertex // targets)[:, None] * sources + source
    return row * 4 * heads + head[:, None], heard


@jit
def route(key, source_keys, beta, k, ROUTING: tl.constexpr, SLOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """(inner products, scores, weights = softmax of β score), (N, slots) each; a slot that is none weighs 0."""
    product = dot(per_channel(key), source_keys)
    score = product
    if ROUTING == ABSOLUTE:
        score = tl.abs(product)
    if ROUTING == UNIFORM:
        score = tl.zeros_like(product)
    logit = tl.where((tl.arange(0, SLOTS) < k)[None, :], beta[:, None] * score, float("-inf"))
    power = tl.exp(logit - tl.max(logit, 1)[:, None])
    return product, score, power / tl.sum(power, 1)[:, None]


@jit
def kept_weights(weights, keep, item, k, heads, heard, KEEP: tl.constexpr, SLOTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights times the keep mask (B, T, k, H), and where an item's slots lie in a tensor of that shape."""
    slot = tl.arange(0, SLOTS)
    edge = ((item // heads)[:, None] * k + slot[None, :]) * heads + (item % heads)[:, None]
    if KEEP:
        weights = weights * tl.load(keep + edge, heard, 0.0).to(weights.dtype)
    return weights, edge


@jit
def hear(lifted, place, heard, weights, heads, channels, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Σ over slots of weight times table entry: (N, slots) -> quaternions (N, channels)."""
    read, wanted = channels_of(place, channels, heard, CHANNELS)
    y = load_quaternions(lifted, read, heads * channels, wanted, weights.dtype)
    return sum_over(scale(weights[:, :, None], y), 1)


@jit
def attend(  # type: ignore[no-untyped-def]
    field, lifted, keys, neighbours, beta, keep, directions, out,
    count, targets, sources, k, heads, channels,
    ROUTING: tl.constexpr, TRANSPORT: tl.constexpr, KEEP: tl.constexpr, ACCUMULATE: tl.constexpr,
    N: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """lower_i(Σ_j C_ij lifted_j) -> out (B, T, H, Q, 4)."""
    item, there = items_here(count, N)
    vertex, head = item // heads, item % heads
    q = load_quaternions(field, item * 4, 1, there, ACCUMULATE)
    key = target_key(q, directions, vertex % targets, there, ROUTING, ACCUMULATE)
    place, heard = neighbours_of(neighbours, vertex, head, targets, sources, k, heads, there, SLOTS)
    source_keys = load_quaternions(keys, place, heads, heard, ACCUMULATE)
    sharpness = tl.load(beta + head, there, 0.0).to(ACCUMULATE)
    _, _, weights = route(key, source_keys, sharpness, k, ROUTING, SLOTS)
    weights, _ = kept_weights(weights, keep, item, k, heads, heard, KEEP, SLOTS)
    heard_sum = hear(lifted, place, heard, weights, heads, channels, CHANNELS)
    write, wanted = channels_of(item, channels, there, CHANNELS)
    store_quaternions(out, write * 4, 1, wanted, lift(per_channel(conjugate(q)), heard_sum, TRANSPORT))
