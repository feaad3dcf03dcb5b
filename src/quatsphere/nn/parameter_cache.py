"""Cache of tensors derived from parameters; for inference only, recomputed when a parameter changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from quatsphere.kernels import transformed

Result = TypeVar("Result")


class ParameterCache(Generic[Result]):
    """Caches one result while gradients are off on a CPU, until a tensor that it was computed from changes.

    Tensors are compared by value: fused optimisers and `.data` change a weight without changing its version.
    """

    def __init__(self) -> None:
        self._entry: tuple[list[Tensor], Result] | None = None

    def __call__(self, tensors: Sequence[Tensor], compute: Callable[[], Result]) -> Result:
        """Return the cached result for these tensors, or compute it."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed() or not tensors[0].is_cpu:
            return compute()
        if self._entry is None or not same_values(self._entry[0], tensors):
            self._entry = ([tensor.detach().clone() for tensor in tensors], compute())
        return self._entry[1]


def same_values(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors agree in dtypes and values."""
    if len(old) != len(new):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True))
