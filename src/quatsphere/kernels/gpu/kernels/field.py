"""Triton kernels of the field, q = normalize(base ⊗ exp(ε tanh(gelu(inner + row) weight + bias))), and its gradients.

A program is one vertex with all heads; it holds the network and the base and takes every GROUPS-th image. The field of
sources lifts their features at once. In the gradients a program takes N vertices, one after the other, for fewer parts
of the parameters' gradients. The rows of a target shell are interpolated where they are read. Blocks are (HEADS,
WIDTH), the hidden numbers of a head side by side. cos‖ω‖ and sin‖ω‖/‖ω‖ are series in ‖ω‖² <= 3, exact at a zero
tangent: bounds are at most 1.
"""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.attention import feature_offsets, head_quaternions
from quatsphere.kernels.gpu.kernels.attention_backward import store_heads
from quatsphere.kernels.gpu.kernels.hamilton import normal_density, normal_distribution
from quatsphere.kernels.gpu.kernels.mixing import adjoint_row, mixed_row
from quatsphere.kernels.gpu.kernels.quaternions import (
    add,
    components,
    conjugate,
    inner_product,
    jit,
    lift,
    multiply,
    scale,
    together,
)

_ORDER = tl.constexpr(11)


@jit
def _series(square, FIRST: tl.constexpr):
    """cos(r) for FIRST = 0 and sin(r)/r for FIRST = 1, with r² = square."""
    value = square * 0.0 + 1.0
    for n in tl.static_range(_ORDER):
        value = 1.0 - square * value * (1.0 / ((2 * (_ORDER - n) + FIRST) * (2 * (_ORDER - n) + FIRST - 1)))
    return value


@jit
def _sinc_derivative(square):
    """Derivative of sin(r)/r with respect to r² = square."""
    value = square * 0.0 + 1.0
    for n in tl.static_range(_ORDER):
        value = 1.0 - square * value * (1.0 / (2 * (_ORDER - n) * (2 * (_ORDER - n) + 3)))
    return value * (-1.0 / 6.0)


@jit
def _tanh(x):
    """tanh(x), exact at 0."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@jit
def _network(inner, weight, bias, H: tl.constexpr, I: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Inner bias and three columns of the weight (HEADS, WIDTH), and three biases (HEADS, 1)."""
    head, hidden = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
    at, valid = head * I + hidden, (head < H) & (hidden < I)
    return (
        tl.load(inner + at, valid, 0.0),
        tl.load(weight + at * 3, valid, 0.0),
        tl.load(weight + at * 3 + 1, valid, 0.0),
        tl.load(weight + at * 3 + 2, valid, 0.0),
        tl.load(bias + head * 3, head < H, 0.0),
        tl.load(bias + head * 3 + 1, head < H, 0.0),
        tl.load(bias + head * 3 + 2, head < H, 0.0),
    )


@jit
def _bounded(activated, network):
    """tanh(activated weight + bias), three blocks (HEADS, 1)."""
    return (
        _tanh(tl.sum(activated * network[1], 1, keep_dims=True) + network[4]),
        _tanh(tl.sum(activated * network[2], 1, keep_dims=True) + network[5]),
        _tanh(tl.sum(activated * network[3], 1, keep_dims=True) + network[6]),
    )


@jit
def perturb_kernel(
    rows, inner, weight, bias, bound, base, indices, mix_weights, features, out, lifted,
    images, vertices, sources,
    H: tl.constexpr, I: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TERMS: tl.constexpr,
    LIFT: tl.constexpr, TRANSPORT: tl.constexpr, Q: tl.constexpr, CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Field of one shell: rows (B, sources, H I) -> out (B, vertices, H, 4); LIFT lifts features (B, V, H, Q, 4)."""
    vertex, group = tl.program_id(0), tl.program_id(1)
    head, hidden = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
    offset, valid = head * I + hidden, (head < H) & (hidden < I)
    network, limit = _network(inner, weight, bias, H, I, HEADS, WIDTH), tl.load(bound)
    q_base = head_quaternions(base, vertex, H, HEADS, ACCUMULATE)
    for image in range(group, images, GROUPS):
        row = mixed_row(rows, (indices, mix_weights), image, vertex, sources, offset, valid, H * I, TERMS, ACCUMULATE)
        x = row + network[0]
        t = _bounded(x * normal_distribution(x), network)
        a, b, c = limit * t[0], limit * t[1], limit * t[2]
        square = a * a + b * b + c * c
        sinc = _series(square, 1)
        u = multiply(q_base, (_series(square, 0), sinc * a, sinc * b, sinc * c))
        norm = tl.sqrt(tl.where(head < H, inner_product(u, u), 1.0))
        here, q = (image * vertices + vertex).to(tl.int64), scale(1.0 / norm, u)
        store_heads(out, here, q, H, HEADS)
        if LIFT:
            at, valid_channel = feature_offsets(H, Q, HEADS, CHANNELS)
            y = components(tl.load(features + here * (4 * H * Q) + at, valid_channel, 0.0).to(ACCUMULATE))
            tl.store(lifted + here * (4 * H * Q) + at, together(lift(q, y, TRANSPORT)), valid_channel)


@jit
def perturb_gradients_kernel(
    gradient, second, rows, inner, weight, bias, bound, base, indices, mix_weights,
    target_gradient, offsets, edges, edge_weights, beta_parts, gate_parts,
    rows_gradient, base_parts, parts, images, vertices, sources, targets, all_vertices, stride,
    H: tl.constexpr, I: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TERMS: tl.constexpr,
    ADJOINT: tl.constexpr, TWO: tl.constexpr, BETA: tl.constexpr, GATE: tl.constexpr, SHELL: tl.constexpr,
    GROUPS: tl.constexpr, N: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Gradient of the rows, and per program the parts of the parameters' gradients in one row, and of the base.

    A row of `stride` numbers holds weight, inner, bias, beta, the bounds of both shells (SHELL selects one) and gate;
    the last two are sums of the parts (B, V, H) and (B, V) that the attention's gradients left. TWO adds a second
    gradient of the field; ADJOINT > 0 adds to the rows' gradient those of the targets that interpolate them with
    ADJOINT terms.
    """
    first, group = tl.program_id(0) * N, tl.program_id(1)
    head, hidden = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDTH)[None, :]
    offset, valid = head * I + hidden, (head < H) & (hidden < I)
    network, limit = _network(inner, weight, bias, H, I, HEADS, WIDTH), tl.load(bound)
    zeros, zero = tl.zeros((HEADS, WIDTH), ACCUMULATE), tl.zeros((HEADS, 1), ACCUMULATE)
    w0, w1, w2, b0, b1, b2, d_inner, d_bound = zeros, zeros, zeros, zero, zero, zero, zeros, zero
    every, d_beta, d_gate = tl.arange(0, HEADS), tl.zeros((HEADS,), ACCUMULATE), tl.sum(zero)
    for vertex in range(first, tl.minimum(first + N, vertices)):
        q_base, d_base = head_quaternions(base, vertex, H, HEADS, ACCUMULATE), (zero, zero, zero, zero)
        for image in range(group, images, GROUPS):
            here = (image * vertices + vertex).to(tl.int64)
            mixing = (indices, mix_weights)
            row = mixed_row(rows, mixing, image, vertex, sources, offset, valid, H * I, TERMS, ACCUMULATE)
            x = row + network[0]
            distribution = normal_distribution(x)
            activated = x * distribution
            t = _bounded(activated, network)
            a, b, c = limit * t[0], limit * t[1], limit * t[2]
            square = a * a + b * b + c * c
            sinc = _series(square, 1)
            e = (_series(square, 0), sinc * a, sinc * b, sinc * c)
            u = multiply(q_base, e)
            inverse = 1.0 / tl.sqrt(tl.where(head < H, inner_product(u, u), 1.0))
            q = scale(inverse, u)
            g = head_quaternions(gradient, here, H, HEADS, ACCUMULATE)
            if TWO:
                g = add(g, head_quaternions(second, here, H, HEADS, ACCUMULATE))
            g = scale(inverse, add(g, scale(-inner_product(q, g), q)))
            d_base = add(d_base, multiply(g, conjugate(e)))
            d = multiply(conjugate(q_base), g)
            along = 2.0 * _sinc_derivative(square) * (d[1] * a + d[2] * b + d[3] * c) - sinc * d[0]
            da, db, dc = sinc * d[1] + along * a, sinc * d[2] + along * b, sinc * d[3] + along * c
            d_bound += da * t[0] + db * t[1] + dc * t[2]
            da, db, dc = (limit * da * (1.0 - t[0] * t[0]), limit * db * (1.0 - t[1] * t[1]),
                          limit * dc * (1.0 - t[2] * t[2]))  # fmt: skip
            b0, b1, b2 = b0 + da, b1 + db, b2 + dc
            w0, w1, w2 = w0 + activated * da, w1 + activated * db, w2 + activated * dc
            dx = da * network[1] + db * network[2] + dc * network[3]
            dx = dx * (distribution + x * normal_density(x))
            d_inner += dx
            if BETA:
                d_beta += tl.load(beta_parts + here * H + every, every < H, 0.0)
            if GATE:
                d_gate += tl.load(gate_parts + here)
            if ADJOINT:
                reverse = (offsets, edges, edge_weights)
                dx += adjoint_row(
                    target_gradient, reverse, image, vertex, targets, offset, valid, H * I, ADJOINT, ACCUMULATE
                )
            tl.store(rows_gradient + here * (H * I) + offset, dx, valid)
        store_heads(base_parts, (group * all_vertices + vertex).to(tl.int64), d_base, H, HEADS)
    program = (group * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    part = parts + program * stride
    tl.store(part + offset * 3, w0, valid)
    tl.store(part + offset * 3 + 1, w1, valid)
    tl.store(part + offset * 3 + 2, w2, valid)
    part += 3 * H * I
    tl.store(part + offset, d_inner, valid)
    part += H * I
    tl.store(part + head * 3, b0, head < H)
    tl.store(part + head * 3 + 1, b1, head < H)
    tl.store(part + head * 3 + 2, b2, head < H)
    tl.store(part + 3 * H + every, d_beta, every < H)
    part += 4 * H
    tl.store(part + SHELL, tl.sum(tl.where(head < H, d_bound, 0.0)))
    tl.store(part + (1 - SHELL), tl.sum(zero))
    tl.store(part + 2, d_gate)
