"""What follows from parameters alone is made once for inference, not once per call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from quatsphere.kernels import transformed

Result = TypeVar("Result")


class Remembered(Generic[Result]):
    """A function of some tensors whose result is kept, while gradients are off on a CPU, until one of them changes.

    Compared by value: fused optimisers and `.data` change a weight without changing its version.
    """

    def __init__(self) -> None:
        self._kept: tuple[list[Tensor], Result] | None = None

    def __call__(self, tensors: Sequence[Tensor], make: Callable[[], Result]) -> Result:
        """The result that is kept for these tensors, or a new one."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed() or not tensors[0].is_cpu:
            return make()
        if self._kept is None or not same(self._kept[0], tensors):
            self._kept = ([tensor.detach().clone() for tensor in tensors], make())
        return self._kept[1]


def same(kept: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors have the dtype and the values that were kept."""
    if len(kept) != len(tensors):
        return False
    return all(old.dtype == new.dtype and torch.equal(old, new) for old, new in zip(kept, tensors, strict=True))
