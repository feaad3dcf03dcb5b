"""Sums over the edges of irregular graphs in Triton: `pair_dot` and `pair_sum` of `kernels.ragged` on GPUs.

These two operations suffice for attention over a sorted edge list, with and without rotations of the edges, and for
gradients of every order. A program of `pair_sum` handles one vertex and adds up its edges in their order: no atomics,
bit-identical results, no tensor with an edge and a channel axis. The kernels are used on a device only after they have
equalled plain torch on a small graph there.
"""

import functools
import logging

import torch
from torch import Tensor

from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.gpu.attention import INTERPRETED
from quatsphere.kernels.ragged import pair_dot_operator, pair_sum_operator

LARGEST_TILE, CHUNK = 2**13, 16
"""Largest number of elements that a program holds, and edges that it adds at a time."""


def pair_dot(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """⟨a_i(e), b_j(e)⟩: (B, T, H, C), (B, S, H, C), (E,), (E,) -> (B, E, H)."""
    from quatsphere.kernels.gpu.ragged_kernels import pair_dot_kernel, triton

    (B, T, H, C), S, items = a.shape, b.shape[1], len(i) * a.shape[2]
    out, channels = a.new_empty(B, len(i), H), triton.next_power_of_2(C)
    block = max(1, LARGEST_TILE // 4 // channels)
    tensors = (x.contiguous() for x in (a, b, i, j))
    if out.numel():
        with torch.cuda.device_of(out):
            grid = triton.cdiv(items, block), B
            pair_dot_kernel[grid](*tensors, out, items, T, S, H=H, C=C, CHANNELS=channels, ITEMS=block)
    return out


def pair_sum(weights: Tensor, b: Tensor, j: Tensor, i: Tensor, count: int) -> Tensor:
    """Σ over the pairs with i(e) = n of w_e b_j(e): (B, E, H), (B, S, H, C), (E,), (E,) -> (B, count, H, C)."""
    from quatsphere.kernels.gpu.ragged_kernels import pair_sum_kernel, triton

    (B, S, H, C), out = b.shape, b.new_empty(b.shape[0], count, *b.shape[2:])
    row = triton.next_power_of_2(H * C)
    offsets, order = _by_vertex.get((i,), count, lambda: _sort_by_vertex(i, count))
    tensors = (weights.contiguous(), b.contiguous(), j.contiguous(), offsets, order)
    if out.numel():
        with torch.cuda.device_of(out):
            chunk = max(1, min(CHUNK, LARGEST_TILE // row))
            pair_sum_kernel[(count, B)](*tensors, out, len(i), S, count, H=H, C=C, ROW=row, CHUNK=chunk)
    return out


_by_vertex = GraphCache()


def _sort_by_vertex(i: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(offsets (count + 1), order (E,)): the edges of vertex n are order[offsets[n] : offsets[n + 1]], in order."""
    vertex, order = i.sort(stable=True)
    return torch.searchsorted(vertex, torch.arange(count + 1, device=i.device)), order


_usable: dict[tuple[torch.device, torch.dtype], bool] = {}


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether both kernels equal plain torch on this device; checked once per process."""
    if (device, dtype) not in _usable:
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(2, n, 3, 5, generator=generator, dtype=dtype).to(device) for n in (7, 9))
        i, j = (torch.randint(0, n, (40,), generator=generator).to(device) for n in (7, 9))
        weights = torch.randn(2, 40, 3, generator=generator, dtype=dtype).to(device)
        plain = pair_dot_operator.function(a, b, i, j), pair_sum_operator.function(weights, b, j, i, 7)
        try:
            found = pair_dot(a, b, i, j), pair_sum(weights, b, j, i, 7)
            equal = all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(found, plain, strict=True))
        except Exception as error:  # a compiler that fails on this device
            logging.getLogger("quatsphere").warning("quatsphere: warning: no Triton on %s: %s", device, error)
            equal = False
        _usable[device, dtype] = equal
    return _usable[device, dtype]


def _fits(x: Tensor) -> bool:
    """Return whether the kernels run for rows of this tensor."""
    wide = x.dtype in (torch.float32, torch.float64) and x.shape[2] * x.shape[3] <= LARGEST_TILE
    return wide and usable(x.device, x.dtype)


def _pair_dot_or_plain(a: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return pair_dot(a, b, i, j) if _fits(a) else pair_dot_operator.function(a, b, i, j)


def _pair_sum_or_plain(weights: Tensor, b: Tensor, j: Tensor, i: Tensor, count: int) -> Tensor:
    return pair_sum(weights, b, j, i, count) if _fits(b) else pair_sum_operator.function(weights, b, j, i, count)


@functools.cache
def register() -> None:
    """Make these the operators' kernels on GPUs, and on CPUs if Triton interprets."""
    for device in ("cuda", *(["cpu"] if INTERPRETED else [])):
        pair_dot_operator.register_kernel(device, _pair_dot_or_plain)
        pair_sum_operator.register_kernel(device, _pair_sum_or_plain)
