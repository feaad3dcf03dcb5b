"""Gradients of fused operators: schemas derived from the forward operator, and a uniform autograd registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quatsphere.kernels.transforms import differentiated_again, plain_gradients
from quatsphere.torch_operators import Operator, operator


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
