"""Caches of results derived from parameters and from graphs, recomputed when these change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdRef, WeakTensorKeyDictionary

from quatsphere.torch_operators import transformed

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


class GraphCache:
    """Results that follow from index tensors; each is kept while the first tensor lives and until one of them changes.

    On CPUs contents are compared, since a change through NumPy or `.data` leaves no mark on a tensor. A value must not
    hold the tensors themselves, or they would live for ever.
    """

    def __init__(self) -> None:
        self._entries: Any = WeakTensorKeyDictionary()

    def get(self, tensors: tuple[Tensor, ...], key: Any, make: Callable[[], Result]) -> Result:
        """make(), or its last result for these tensors and this key."""
        if torch.compiler.is_compiling() or transformed() or any(tensor.is_inference() for tensor in tensors):
            return make()
        stamp = key, [(WeakIdRef(x), x._version, x.data_ptr(), x.shape) for x in tensors]
        known = self._entries.get(tensors[0])
        if known is None or known[0] != stamp or not all(map(torch.equal, known[2], filter(_on_cpu, tensors))):
            copies = [tensor.clone() for tensor in tensors if _on_cpu(tensor)]
            known = self._entries[tensors[0]] = stamp, make(), copies
        value: Result = known[1]
        return value


def _on_cpu(tensor: Tensor) -> bool:
    return tensor.is_cpu
