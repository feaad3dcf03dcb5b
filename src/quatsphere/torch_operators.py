"""Functions as torch operators `quatsphere::name`, opaque to torch.compile.

`torch.library.custom_op` does the same, but its first call imports torch's compiler, which takes longer than a
prediction. The operators here are defined with the parts of torch.library that need no compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "quatsphere"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator:
    """A function of tensors and numbers that changes no argument, as a torch operator.

    Its schema follows from the annotations unless it is given; `device` is the type of device that the function runs
    on, None for all.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], device: str | None = None, schema: str | None = None
    ) -> None:
        self.name, self.function, self.__doc__ = f"{NAMESPACE}::{name}", function, function.__doc__
        self.schema: str = schema or torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(name + self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.register_kernel(device, function)
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        OPERATORS[self.name] = self

    def __call__(self, *args: Any) -> Any:
        """Run the kernel of the arguments' device."""
        return self.overload(*args)

    def register_kernel(self, device: str | None, function: Callable[..., Any]) -> None:
        """Run another function on a type of device."""
        key = "CompositeExplicitAutograd" if device is None else device.upper()
        _LIBRARY.impl(self.name.partition("::")[2], function, key)

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator for the function that returns empty tensors of the result's shapes."""
        self.fake = function
        torch.library.register_fake(self.name, function, lib=_LIBRARY)
        return function

    def register_autograd(self, backward: Callable[..., Any], setup_context: Callable[..., None]) -> None:
        """Set the gradient, as for `torch.library.register_autograd`."""
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=_LIBRARY)


OPERATORS: dict[str, Operator] = {}
"""All operators by name."""


def operator(name: str, device: str | None = None, schema: str | None = None) -> Callable[..., Operator]:
    """Decorator that makes a function the torch operator quatsphere::name."""
    return lambda function: Operator(name, function, device, schema)
