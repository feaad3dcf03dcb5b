"""Triton kernels of the Hamilton block, out = dropout(down gelu(up x)) + gate interp(residual), and its gradients.

A program takes one head of N tokens. The quaternion weights become real matrices as they are read: `up` (M, C) and
`down` (C, M) per head, C = 4 Q and M = 4 times the hidden channels, padded to powers of two of at least 16, which
products of blocks need. The hidden activations never reach memory: the gradients recompute them.
"""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.masks import HASHED, NO_MASK, hashed_quarters, stream_key
from quatsphere.kernels.gpu.kernels.mixing import INTERPOLATED, NOTHING, SAME_ROW
from quatsphere.kernels.gpu.kernels.quaternions import components, jit, lift, together


@jit
def output_mask(
    keep, site, threshold, token, vertices, head, valid,
    H: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Mask (N, WIDTH) of one head of tokens (N, 1); `keep` is (B, T, H, C) or keys (B,)."""
    if KEEP == HASHED:
        image, vertex = token // vertices, token % vertices
        key = stream_key(keep, tl.where(valid, image, 0), site)
        word = (vertex * H + head) * (C // 4) + tl.arange(0, WIDTH // 4)[None, :]
        return tl.reshape(hashed_quarters(key, word, threshold), (token.shape[0], WIDTH))
    else:  # noqa: RET505 (Triton prunes branches, not code after a return)
        channel = tl.arange(0, WIDTH)[None, :]
        return tl.load(keep + (token.to(tl.int64) * H + head) * C + channel, valid & (channel < C), 0) != 0


@jit
def _sign(row, column):
    """Signs of the block L(w), whose entry (row, column) is ± component row xor column of w."""
    return 1.0 - 2.0 * ((10318 >> ((row & 3) * 4 + (column & 3))) & 1).to(tl.float32)


@jit
def load_matrix(
    weight, head, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """The real matrix of a head's quaternion weights (ROWS / 4, COLUMNS / 4, 4), padded with zeros to (TALL, WIDE)."""
    row, column = tl.arange(0, TALL)[:, None], tl.arange(0, WIDE)[None, :]
    quaternion = (head * (ROWS // 4) + row // 4) * (COLUMNS // 4) + column // 4
    valid = (row < ROWS) & (column < COLUMNS)
    entry = tl.load(weight + quaternion * 4 + ((row & 3) ^ (column & 3)), valid, 0.0).to(ACCUMULATE)
    return entry * _sign(row, column).to(ACCUMULATE)


@jit
def weight_gradient(
    parts, gradient, count, head, first, H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Sum parts (count, H, ROWS, COLUMNS) of a real matrix's gradient into that of N of a head's quaternions."""
    item = first + tl.arange(0, N)[:, None]
    valid = item < (ROWS // 4) * (COLUMNS // 4)
    row, column, component = item // (COLUMNS // 4) * 4, item % (COLUMNS // 4) * 4, tl.arange(0, 4)[None, :]
    size: tl.constexpr = ROWS * COLUMNS
    total = tl.zeros((N, 4), ACCUMULATE)
    for part in range(count):
        matrix = parts + (part * H + head).to(tl.int64) * size
        for r in tl.static_range(4):
            entry = tl.load(matrix + (row + r) * COLUMNS + column + (component ^ r), valid, 0.0)
            total += entry * _sign(row * 0 + r, component ^ r).to(ACCUMULATE)
    tl.store(gradient + (head * (size // 16) + item) * 4 + component, total, valid)


@jit
def normal_density(x):
    """exp(-x²/2) / √(2π)."""
    return tl.exp(-0.5 * x * x) * 0.3989422804014327


@jit
def normal_distribution(x):
    """Φ(x); the exact GELU is x Φ(x)."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@jit
def residual_rows(
    residual, indices, mix_weights, token, vertices, sources, head, valid,
    H: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, TERMS: tl.constexpr, RESIDUAL: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """One head of the residual of tokens (N, 1): their own rows, or Σ_m w_im x_n(i,m) within their image -> (N, C)."""
    channel = tl.arange(0, WIDTH)[None, :]
    valid_channel = valid & (channel < C)
    if RESIDUAL == SAME_ROW:
        at = residual + (token.to(tl.int64) * H + head) * C + channel
        return tl.load(at, valid_channel, 0.0).to(ACCUMULATE)
    else:  # noqa: RET505
        image, vertex = token // vertices, token % vertices
        mixed = tl.zeros((token.shape[0], WIDTH), ACCUMULATE)
        for term in tl.static_range(TERMS):
            source = tl.load(indices + vertex * TERMS + term, valid, 0)
            weight = tl.load(mix_weights + vertex * TERMS + term, valid, 0.0).to(ACCUMULATE)
            at = residual + ((image * sources + source).to(tl.int64) * H + head) * C + channel
            mixed += weight * tl.load(at, valid_channel, 0.0).to(ACCUMULATE)
        return mixed


@jit
def hamilton_kernel(
    x, up, down, keep, residual, gate, indices, mix_weights, out,
    tokens, vertices, sources, site, threshold,
    H: tl.constexpr, C: tl.constexpr, M: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, N: tl.constexpr,
    TERMS: tl.constexpr, RESIDUAL: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """down_h gelu(up_h x_h) with dropout and residual: x (B, T, H, C) -> out, one head of N tokens."""
    token, head = tl.program_id(0) * N + tl.arange(0, N)[:, None], tl.program_id(1)
    channel, valid = tl.arange(0, WIDTH)[None, :], token < tokens
    at, valid_channel = (token.to(tl.int64) * H + head) * C + channel, valid & (channel < C)
    tile = tl.load(x + at, valid_channel, 0.0).to(ACCUMULATE)
    inner = load_matrix(up, head, M, C, HIDDEN, WIDTH, ACCUMULATE)
    hidden = tl.dot(tile, tl.trans(inner), input_precision="ieee", out_dtype=ACCUMULATE)
    hidden = hidden * normal_distribution(hidden)
    outer = load_matrix(down, head, C, M, WIDTH, HIDDEN, ACCUMULATE)
    y = tl.dot(hidden, tl.trans(outer), input_precision="ieee", out_dtype=ACCUMULATE)
    if KEEP != NO_MASK:
        mask = output_mask(keep, site, threshold, token, vertices, head, valid, H, C, WIDTH, KEEP)
        y = tl.where(mask, y * KEEP_SCALE, 0.0)
    if RESIDUAL != NOTHING:
        rows = residual_rows(
            residual, indices, mix_weights, token, vertices, sources, head, valid,
            H, C, WIDTH, TERMS, RESIDUAL, ACCUMULATE,
        )  # fmt: skip
        y += rows * tl.load(gate).to(ACCUMULATE) if RESIDUAL == INTERPOLATED else rows
    tl.store(out + at, y, valid_channel)


@jit
def hamilton_gradients_kernel(
    gradient, x, field, up, down, keep, lifted_gradient, through, up_parts, down_parts,
    tokens, vertices, tiles, site, threshold,
    H: tl.constexpr, C: tl.constexpr, M: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, N: tl.constexpr,
    KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr, TRANSPORT: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """dx lifted by the field (B, T, H, 4), ⟨dx, x⟩, and the parts of dup and ddown: `tiles` times N tokens, one head.

    With p = up x, h = gelu(p) and g the gradient after dropout: dh = downᵀ g, dp = dh gelu'(p), dx = upᵀ dp.
    """
    part, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, WIDTH)[None, :]
    inner = load_matrix(up, head, M, C, HIDDEN, WIDTH, ACCUMULATE)
    outer = load_matrix(down, head, C, M, WIDTH, HIDDEN, ACCUMULATE)
    up_total, down_total = tl.zeros((HIDDEN, WIDTH), ACCUMULATE), tl.zeros((WIDTH, HIDDEN), ACCUMULATE)
    for tile in range(tiles):
        token = (part * tiles + tile) * N + tl.arange(0, N)[:, None]
        valid = token < tokens
        at, valid_channel = (token.to(tl.int64) * H + head) * C + channel, valid & (channel < C)
        g = tl.load(gradient + at, valid_channel, 0.0).to(ACCUMULATE)
        if KEEP != NO_MASK:
            mask = output_mask(keep, site, threshold, token, vertices, head, valid, H, C, WIDTH, KEEP)
            g = tl.where(mask, g * KEEP_SCALE, 0.0)
        rows = tl.load(x + at, valid_channel, 0.0).to(ACCUMULATE)
        p = tl.dot(rows, tl.trans(inner), input_precision="ieee", out_dtype=ACCUMULATE)
        distribution = normal_distribution(p)
        down_total += tl.dot(tl.trans(g), p * distribution, input_precision="ieee", out_dtype=ACCUMULATE)
        p_gradient = tl.dot(g, outer, input_precision="ieee", out_dtype=ACCUMULATE)
        p_gradient = p_gradient * (distribution + p * normal_density(p))
        up_total += tl.dot(tl.trans(p_gradient), rows, input_precision="ieee", out_dtype=ACCUMULATE)
        dx = tl.dot(p_gradient, inner, input_precision="ieee", out_dtype=ACCUMULATE)
        item = token.to(tl.int64) * H + head
        tl.store(through + item, tl.sum(dx * rows, 1, keep_dims=True), valid)
        at_q = field + item[:, :, None] * 4 + tl.arange(0, 4)[None, None, :]
        q = components(tl.load(at_q, valid[:, :, None], 0.0).to(ACCUMULATE))
        g = lift(q, components(tl.reshape(dx, (N, WIDTH // 4, 4))), TRANSPORT)
        tl.store(lifted_gradient + at, tl.reshape(together(g), (N, WIDTH)), valid_channel)
    row, column = tl.arange(0, HIDDEN)[:, None], tl.arange(0, WIDTH)[None, :]
    first = (part * H + head).to(tl.int64) * (M * C)
    tl.store(up_parts + first + row * C + column, up_total, (row < M) & (column < C))
    row, column = tl.arange(0, WIDTH)[:, None], tl.arange(0, HIDDEN)[None, :]
    tl.store(down_parts + first + row * M + column, down_total, (row < C) & (column < M))
