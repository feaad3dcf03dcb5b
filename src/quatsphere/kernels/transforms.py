"""Where fused operators give way to plain torch: forward mode, `torch.func` and second derivatives.

A custom operator of torch has one gradient and nothing else: in forward mode its tangents are silently zero, transforms
of `torch.func` refuse it, and its gradient has none of its own. Plain torch has all of them.
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
    """Whether forward-mode differentiation or a transform of `torch.func` is active."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def differentiated_again() -> bool:
    """Whether a gradient that is being computed may be differentiated: `create_graph=True`, or a transform."""
    return torch.is_grad_enabled() or transformed()


def plain_gradients(plain: Callable[..., Any], inputs: Sequence[Any], gradient: Any) -> tuple[Tensor | None, ...]:
    """Gradients of plain(*inputs), one per input (None for what is no floating-point tensor), differentiable again."""
    places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.is_floating_point()]

    def call(*tensors: Tensor) -> Any:
        given = dict(zip(places, tensors, strict=True))
        return plain(*(given.get(i, x) for i, x in enumerate(inputs)))

    pull_back: Any = torch.func.vjp(call, *(inputs[i] for i in places))[1]
    found = dict(zip(places, pull_back(gradient), strict=True))
    return tuple(found.get(i) for i in range(len(inputs)))


@contextmanager
def outside_transforms() -> Iterator[Callable[[Tensor], Tensor]]:
    """Suspend `torch.func`, for what is a constant to it; yields a function that removes its wrappers of a tensor."""
    with temporarily_clear_interpreter_stack():
        yield _unwrapped


def _unwrapped(tensor: Tensor) -> Tensor:
    """The tensor without the wrappers of `torch.func`."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
