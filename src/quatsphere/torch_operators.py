"""Functions as torch operators `quatsphere::name`, opaque to torch.compile, and their gradients.

`torch.library.custom_op` does the same, but its first call imports torch's compiler, which takes longer than a
prediction. The operators here are defined with the parts of torch.library that need no compiler.

They have a first gradient only: in forward mode their tangents would silently be zero, and `torch.func` and second
derivatives would raise errors. `transformed` and `differentiated_again` detect these cases, which plain torch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad

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
        self.differentiable: type[torch.autograd.Function] | None = None
        self.direct = device == "cpu"
        """True if calls may bypass torch's dispatcher."""
        self.schema: str = schema or torch.library.infer_schema(function, mutates_args=())
        _LIBRARY.define(name + self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.register_kernel(device, function)
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        OPERATORS[self.name] = self

    def __call__(self, *args: Any) -> Any:
        """Run the kernel of the arguments' device.

        On CPUs the dispatcher takes up to a millisecond per call: where nothing observes the call, it is bypassed.
        """
        if torch.compiler.is_compiling() or not self.direct or observed(args[0]):
            return self.overload(*args)
        if not torch.is_grad_enabled():
            return self.function(*args)
        return self.overload(*args) if self.differentiable is None else self.differentiable.apply(*args)

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
        """Set the gradient, as for `torch.library.register_autograd`; it runs without autocast on CPUs."""
        backward = _without_autocast(backward)
        torch.library.register_autograd(self.name, backward, setup_context=setup_context, lib=_LIBRARY)

        def forward(ctx: Any, *args: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                output = self.function(*args)
            setup_context(ctx, args, output)
            return output

        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.differentiable = type(self.name.partition("::")[2], (torch.autograd.Function,), methods)


def _without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """The same gradient if a loop calls `loss.backward()` under autocast: operators get their arguments as they are."""

    @wraps(backward)
    def run(*args: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return backward(*args)
        with torch.autocast("cpu", enabled=False):
            return backward(*args)

    return run


PLAIN = (Tensor, torch.nn.Parameter)
OPERATORS: dict[str, Operator] = {}
"""All operators by name."""


def operator(name: str, device: str | None = None, schema: str | None = None) -> Callable[..., Operator]:
    """Decorator that makes a function the torch operator quatsphere::name."""
    return lambda function: Operator(name, function, device, schema)


def transformed() -> bool:
    """Return whether forward-mode differentiation or a transform of `torch.func` is active."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def observed(tensor: Tensor) -> bool:
    """Return whether an operator on this tensor must go through torch's dispatcher: anything but a plain CPU tensor
    outside transforms, dispatch modes, tracing and profilers."""
    return (
        type(tensor) not in PLAIN
        or not tensor.is_cpu
        or transformed()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or torch.autograd.profiler._is_profiler_enabled
    )


def record_function(name: str) -> AbstractContextManager[object]:
    """Label what runs inside for a profiler; nothing without one, where torch's own label takes 20 µs."""
    return torch.profiler.record_function(name) if torch.autograd.profiler._is_profiler_enabled else nullcontext()


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


def backward_operator(forward: Operator, leading: Sequence[str], device: str | None = "cpu") -> Callable[..., Any]:
    """Decorator for the operator `<forward>_backward`, which returns a list of tensors; its arguments are the tensors
    named in `leading`, then those of the forward operator."""
    arguments = forward.schema.partition("(")[2].rpartition(") ->")[0]
    schema = f"({', '.join(f'Tensor {name}' for name in leading)}, {arguments}) -> Tensor[]"

    return operator(f"{forward.name.partition('::')[2]}_backward", device, schema)


def register_backward(
    forward: Any,
    backward: Any,
    plain: Callable[..., Any],
    tensors: int,
    differentiable: Sequence[int],
    save_output: bool,
) -> None:
    """Register backward(*gradients, output if `save_output`, *inputs) as the gradient of `forward`.

    The first `tensors` inputs are tensors, and the results of `backward` belong to the inputs `differentiable`. `plain`
    is the same function in plain torch, for gradients that are differentiated again.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*([output] if save_output else []), *inputs[:tensors])
        ctx.constants = inputs[tensors:]

    def differentiate(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if differentiated_again():
            inputs = (*ctx.saved_tensors[save_output:], *ctx.constants)
            return plain_gradients(plain, inputs, gradients if len(gradients) > 1 else gradients[0])
        found = dict(zip(differentiable, backward(*gradients, *ctx.saved_tensors, *ctx.constants), strict=True))
        return tuple(found.get(i) if needed else None for i, needed in enumerate(ctx.needs_input_grad))

    forward.register_autograd(differentiate, setup_context=save)
