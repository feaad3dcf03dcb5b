"""Detection of the cases that plain torch has to run: forward mode, `torch.func` and second derivatives.

Custom operators of torch have a first gradient only: in forward mode their tangents are silently zero, and `torch.func`
and second derivatives raise errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad


def transformed() -> bool:
    """Return whether forward-mode differentiation or a transform of `torch.func` is active."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def differentiated_again() -> bool:
    """Return whether the gradient being computed may be differentiated: `create_graph=True`, or a transform."""
    return torch.is_grad_enabled() or transformed()


def plain_gradients(plain: Callable[..., Any], inputs: Sequence[Any], gradient: Any) -> tuple[Tensor | None, ...]:
    """Gradients of plain(*inputs), one per input (None unless it is a floating-point tensor), differentiable again."""
    indices = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()]

    def call(*tensors: Tensor) -> Any:
        given = dict(zip(indices, tensors, strict=True))
        return plain(*(given.get(i, x) for i, x in enumerate(inputs)))

    pull_back: Any = torch.func.vjp(call, *(inputs[i] for i in indices))[1]
    found = dict(zip(indices, pull_back(gradient), strict=True))
    return tuple(found.get(i) for i in range(len(inputs)))


@contextmanager
def outside_transforms() -> Iterator[Callable[[Tensor], Tensor]]:
    """Suspend `torch.func` for computing constants; yields a function that unwraps a tensor."""
    with temporarily_clear_interpreter_stack():
        yield _unwrapped


def _unwrapped(tensor: Tensor) -> Tensor:
    """Remove the wrappers of `torch.func`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
