"""Tensors as arguments of compiled loops: flat arrays, checks, ordered sums, and the cache of derived arguments."""

from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels.caches import ParameterCache
from quatsphere.kernels.cpu.loops import LANES


def array(tensor: Tensor) -> Any:
    """The tensor as a numpy array, without a copy; bfloat16 as its bits, in uint16."""
    bare = tensor.detach() if tensor.requires_grad else tensor
    return (bare.view(torch.uint16) if bare.dtype == torch.bfloat16 else bare).numpy()


def flat(tensor: Tensor) -> Any:
    """The tensor as a flat numpy array, without a copy if it is contiguous.

    `reshape` alone would leave an expanded tensor, such as the gradient of a sum, with strides of zero.
    """
    return numpy.ascontiguousarray(array(tensor)).reshape(-1)


def flat_mask(keep: Tensor | None, count: int) -> Any:
    """A dropout mask of `count` elements as a flat array of bytes, empty for None."""
    if keep is None:
        return NO_BYTES
    if keep.dtype != torch.bool or keep.numel() != count:
        raise ConfigError(f"keep must be bool with {count:,} entries: got {keep.dtype} with {keep.numel():,}")
    return flat(keep.contiguous().view(torch.uint8))


def check_neighbours(neighbours: Tensor, sources: int) -> None:
    """Raise IndexError for an index out of range: compiled loops do not check."""
    if neighbours.numel() == 0:
        return
    table = array(neighbours)
    low, high = table.min(), table.max()
    if low < 0 or high >= sources:
        raise IndexError(f"neighbours must lie in 0..{sources - 1}, the source vertices: got {low}..{high}")


@cache
def lane_heads(heads: int, packed: int) -> Tensor:
    """Head of every lane if `packed` copies of all heads fill the lanes of whole vectors; the last one is repeated."""
    lanes = heads * packed
    return torch.arange(lanes + -lanes % LANES).clamp(max=lanes - 1) % heads


def sum_in_order(parts: Any, axes: int | tuple[int, ...]) -> Tensor:
    """Sum of a tensor or array in float64 in a fixed order: numpy uses one thread, torch's order depends on the number
    of threads."""
    given = parts.numpy() if isinstance(parts, Tensor) else parts
    return torch.from_numpy(numpy.asarray(given.sum(axis=axes, dtype="float64"), given.dtype))


NO_BYTES, NO_INDICES = numpy.empty(0, numpy.uint8), numpy.empty(0, numpy.int64)
argument_cache: ParameterCache[Any] = ParameterCache(size=96)
"""Arguments of compiled loops that are derived from parameters."""
