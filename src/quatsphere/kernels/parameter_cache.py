"""Cache of results derived from parameters, recomputed when a parameter changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from quatsphere.kernels.transforms import transformed

Result = TypeVar("Result")


class ParameterCache(Generic[Result]):
    """Least-recently-used cache; an entry is valid as long as the tensors it was computed from keep their values.

    Tensors are compared by value: fused optimisers and `.data` change a weight without changing its version.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._entries: OrderedDict[Hashable, tuple[list[Tensor], Result]] = OrderedDict()

    def get(self, key: Hashable, tensors: Sequence[Tensor], compute: Callable[[], Result]) -> Result:
        """Return the cached result for a key and these tensors, or compute it."""
        entry = self._entries.get(key)
        if entry is None or not _same_values(entry[0], tensors):
            entry = self._entries[key] = ([tensor.detach().clone() for tensor in tensors], compute())
            if len(self._entries) > self.size:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry[1]

    def infer(self, tensors: Sequence[Tensor], compute: Callable[[], Result]) -> Result:
        """Return a cached result in inference on CPUs; compute it where gradients, transforms or graphs need it."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or transformed() or not tensors[0].is_cpu:
            return compute()
        return self.get(None, tensors, compute)


def _same_values(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    if len(old) != len(new):
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(old, new, strict=True))
