"""Triton kernels of the dot-product attention over k neighbours, which the quaternion kernel is compared with.

As there, a program is one vertex of one image with all heads, neighbours come CHUNK at a time with a running softmax,
and the gradients recompute the weights from log-sums. Rows are (H, C), padded to (HEADS, WIDTH).
"""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.attention import load_rows
from quatsphere.kernels.gpu.kernels.masks import NO_MASK, edge_mask
from quatsphere.kernels.gpu.kernels.quaternions import jit


@jit
def _rows(table, row, H: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows (CHUNK, 1) of a table (..., H, C) -> (CHUNK, HEADS, WIDTH)."""
    head, channel = tl.arange(0, HEADS)[None, :, None], tl.arange(0, WIDTH)[None, None, :]
    return tl.load(table + row[:, :, None] * (H * C) + head * C + channel, (head < H) & (channel < C), 0.0)


@jit
def _own(H: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """(offsets within a row, validity mask), (1, HEADS, WIDTH)."""
    head, channel = tl.arange(0, HEADS)[None, :, None], tl.arange(0, WIDTH)[None, None, :]
    return head * C + channel, (head < H) & (channel < C)


@jit
def dot_attend_kernel(
    queries, keys, values, neighbours, keep, out, log_sums, targets, sources, site, threshold,
    SCALE: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr, ACCUMULATE: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ_j keep_ij softmax_j(SCALE ⟨query_i, key_j⟩) value_j -> out (B, T, H, C), and log-sums (B, T, H)."""
    vertex, image = tl.program_id(0), tl.program_id(1)
    here, head = (image * targets + vertex).to(tl.int64), tl.arange(0, HEADS)
    offset, valid = _own(H, C, HEADS, WIDTH)
    query = tl.load(queries + here * (H * C) + offset, valid, 0.0)
    peak, mass = tl.full((1, HEADS), float("-inf"), ACCUMULATE), tl.zeros((1, HEADS), ACCUMULATE)
    aggregated = tl.zeros((HEADS, WIDTH), ACCUMULATE)
    for first in range(0, K, CHUNK):
        slot, row, outside = load_rows(neighbours, image, vertex, sources, first, K, CHUNK)
        score = SCALE * tl.sum(query * _rows(keys, row, H, C, HEADS, WIDTH), 2)
        logit = tl.where(slot < K, tl.where(outside, float("nan"), score), float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logit, 0, keep_dims=True))
        weight, correction = tl.exp(logit - new_peak), tl.exp(peak - new_peak)
        peak, mass = new_peak, mass * correction + tl.sum(weight, 0, keep_dims=True)
        if KEEP != NO_MASK:
            edge = (image, vertex, targets, slot, head[None, :], (slot < K) & (head[None, :] < H))
            weight = tl.where(edge_mask(keep, site, threshold, edge, K, H, KEEP), weight, 0.0)
        message = tl.sum(weight[:, :, None] * _rows(values, row, H, C, HEADS, WIDTH), 0)
        aggregated = aggregated * tl.reshape(correction, (HEADS, 1)) + message
    tl.store(log_sums + here * H + head, tl.reshape(peak + tl.log(mass), (HEADS,)), head < H)
    z = aggregated * (KEEP_SCALE / tl.reshape(mass, (HEADS, 1)))
    tl.store(out + here * (H * C) + offset, z[None, :, :], valid)


@jit
def dot_target_gradients_kernel(
    gradient, out, log_sums, queries, keys, values, neighbours, keep, query_gradient, kept_table, score_table,
    targets, sources, site, threshold,
    SCALE: tl.constexpr, KEEP: tl.constexpr, KEEP_SCALE: tl.constexpr, ACCUMULATE: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dquery_i, and per edge (B, T, k, H) the kept weight and SCALE times the gradient of the logit."""
    vertex, image = tl.program_id(0), tl.program_id(1)
    here, head = (image * targets + vertex).to(tl.int64), tl.arange(0, HEADS)
    offset, valid = _own(H, C, HEADS, WIDTH)
    query = tl.load(queries + here * (H * C) + offset, valid, 0.0)
    g = tl.load(gradient + here * (H * C) + offset, valid, 0.0)
    through_output = tl.sum(g * tl.load(out + here * (H * C) + offset, valid, 0.0), 2)
    log_sum = tl.load(log_sums + here * H + head, head < H, 0.0)[None, :]
    total = tl.zeros((HEADS, WIDTH), ACCUMULATE)
    for first in range(0, K, CHUNK):
        slot, row, outside = load_rows(neighbours, image, vertex, sources, first, K, CHUNK)
        key = _rows(keys, row, H, C, HEADS, WIDTH)
        used = (slot < K) & (head[None, :] < H)
        logit = tl.where(outside, float("nan"), SCALE * tl.sum(query * key, 2) - log_sum)
        weight = tl.where(used, tl.exp(logit), 0.0)
        kept = weight
        if KEEP != NO_MASK:
            edge = (image, vertex, targets, slot, head[None, :], used)
            kept = tl.where(edge_mask(keep, site, threshold, edge, K, H, KEEP), weight * KEEP_SCALE, 0.0)
        dots = tl.sum(g * _rows(values, row, H, C, HEADS, WIDTH), 2)
        score_gradient = SCALE * (kept * dots - weight * through_output)
        at = (here * K + slot) * H + head[None, :]
        tl.store(kept_table + at, kept, used)
        tl.store(score_table + at, score_gradient, used)
        total += tl.sum(score_gradient[:, :, None] * key, 0)
    tl.store(query_gradient + here * (H * C) + offset, total[None, :, :], valid)


@jit
def dot_source_gradients_kernel(
    gradient, queries, offsets, edges, kept_table, score_table, key_gradient, value_gradient, targets, sources,
    ACCUMULATE: tl.constexpr,
    K: tl.constexpr, H: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """dkey_j and dvalue_j, sums over the incoming edges in their order."""
    vertex, image = tl.program_id(0), tl.program_id(1)
    head = tl.arange(0, HEADS)[None, :]
    start, stop = tl.load(offsets + vertex).to(tl.int32), tl.load(offsets + vertex + 1).to(tl.int32)
    key_total, value_total = tl.zeros((HEADS, WIDTH), ACCUMULATE), tl.zeros((HEADS, WIDTH), ACCUMULATE)
    for first in range(start, stop, CHUNK):
        index = first + tl.arange(0, CHUNK)[:, None]  # beyond the end the last edge again, with weight 0
        twice = tl.minimum(index, stop - 1) + tl.zeros((1, 2), tl.int32)  # as in `load_rows`
        edge = tl.max(tl.load(edges + twice), 1, keep_dims=True).to(tl.int32)
        row, valid = (image * targets + edge // K).to(tl.int64), (index < stop) & (head < H)
        at = ((image * targets).to(tl.int64) * K + edge) * H + head
        kept, score_gradient = tl.load(kept_table + at, valid, 0.0), tl.load(score_table + at, valid, 0.0)
        value_total += tl.sum(kept[:, :, None] * _rows(gradient, row, H, C, HEADS, WIDTH), 0)
        key_total += tl.sum(score_gradient[:, :, None] * _rows(queries, row, H, C, HEADS, WIDTH), 0)
    offset, valid = _own(H, C, HEADS, WIDTH)
    here = (image * sources + vertex).to(tl.int64) * (H * C) + offset
    tl.store(key_gradient + here, key_total[None, :, :], valid)
    tl.store(value_gradient + here, value_total[None, :, :], valid)
