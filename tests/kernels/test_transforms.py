"""Forward mode, `torch.func` and second derivatives of the default backend are correct and never silently zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from quatsphere import kernels
from quatsphere.errors import ConfigError
from quatsphere.kernels import cpu
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS

GRAPH = torch.tensor([[0, 1], [1, 3], [3, 2], [0, 3], [2, 1]])
MIXING = kernels.Mixing(torch.tensor([[0, 1], [1, 2], [2, 3], [3, 3], [0, 2]]), torch.tensor([[0.3, 0.7]] * 5))
B, S, T, H, Q = 2, 4, 5, 2, 1


def numbers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return 0.7 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def unit(*shape: int) -> Tensor:
    return F.normalize(numbers(*shape), dim=-1)


def kernel(routing: str, transport: str) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """The kernel as a function of all differentiable inputs."""
    keep = torch.arange(B * T * 2 * H).reshape(B, T, 2, H) % 5 > 0

    def call(target: Tensor, source: Tensor, features: Tensor, beta: Tensor, here: Tensor, there: Tensor) -> Tensor:
        rules: dict[str, Any] = {"routing": routing, "transport": transport, "keep": keep, "keep_scale": 1.25}
        places = {"target_directions": here, "source_directions": there}
        return kernels.quaternion_attention(target, source, features, GRAPH, beta, **rules, **places)

    fields = (unit(B, T, H, 4), unit(B, S, H, 4), numbers(B, S, H, Q, 4))
    return call, (*fields, numbers(H).exp(), unit(T, 3), unit(S, 3))


def step(*tensors: Tensor) -> Tensor:
    """A whole step of QSV, with dropout and a gated residual."""
    tokens, first, inner, weight, bias, bounds, source, target, beta, up, down, gate = tensors
    keep = torch.arange(B * T * 2 * H).reshape(B, T, 2, H) % 5 > 0, torch.arange(B * T * 8).reshape(B, T, 8) % 7 > 0
    inputs = kernels.FusedStepInputs(
        tokens,
        first,
        kernels.Network(inner, weight, bias),
        kernels.ShellPair(bounds, source, target),
        GRAPH,
        beta,
        up,
        down,
        gate,
        MIXING,
        kernels.DropoutMasks(*keep, 1.25, 7 / 6),
        "alignment",
        "sandwich",
    )
    return kernels.select_backend("auto", "cpu").step(inputs)


NETWORK = (numbers(H * 4), numbers(H, 4, 3), numbers(H, 3))
BOUNDS, GATE = torch.tensor([0.3, 0.6], dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "attention": kernel("alignment", "sandwich"),
    "dot product": (
        lambda q, k, v: kernels.dot_product_attention(q, k, v, GRAPH),
        (numbers(B, T, H, 3), numbers(B, S, H, 3), numbers(B, S, H, 3)),
    ),
    "feed-forward": (
        lambda x, up, down: kernels.feed_forward(x, up, down, keep=x > -1, keep_scale=1.5),
        (numbers(B, T, H, 4), numbers(H, 3, 1, 4), numbers(H, 1, 3, 4)),
    ),
    "field": (
        lambda hidden, a, b, c, bounds, here, there: kernels.perturb(
            hidden, kernels.Network(a, b, c), bounds, here, there, MIXING
        ),
        (numbers(B, S, H * 4), *NETWORK, BOUNDS, unit(S, H, 4), unit(T, H, 4)),
    ),
    "field at the start": (
        lambda hidden, a, b, c, bounds, here: kernels.perturb(hidden, kernels.Network(a, b, c), bounds, here)[0],
        (numbers(B, S, H * 4), NETWORK[0], 0 * NETWORK[1], 0 * NETWORK[2], BOUNDS[:1], unit(S, H, 4)),
    ),
    "resampling": (lambda x: kernels.resample_vertices(x, *MIXING), (numbers(B, S, 3),)),
    "gated residual": (
        lambda update, gate, x: kernels.add_resampled(update, gate, x, *MIXING),
        (numbers(B, T, 3), GATE, numbers(B, S, 3)),
    ),
}
WHOLE = (
    *(numbers(B, S, 8), numbers(8, 8), numbers(8), numbers(H, 4, 3), numbers(H, 3), BOUNDS),
    *(unit(S, H, 4), unit(T, H, 4), numbers(H).exp(), numbers(H, 3, 1, 4), numbers(H, 1, 3, 4), GATE),
)
"""Arguments of `step`, which models take outside of transforms only."""


def flat(found: Any) -> Tensor:
    return found.flatten() if isinstance(found, Tensor) else torch.cat([x.flatten() for x in found])


def tangents(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(numbers(*x.shape, 1).squeeze(-1) for x in inputs)


def slope(function: Callable[..., Any], inputs: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> Tensor:
    """The derivative along a direction by central differences, from the values of the fused operators."""
    h = 1e-5
    ahead, behind = ([x + sign * h * t for x, t in zip(inputs, along, strict=True)] for sign in (1, -1))
    return (flat(function(*ahead)) - flat(function(*behind))) / (2 * h)


@pytest.mark.parametrize("name", OPERATIONS)
def test_forward_mode_is_the_slope(name: str) -> None:
    function, inputs = OPERATIONS[name]
    along = tangents(inputs)
    expected = slope(function, inputs, along)
    assert expected.abs().max() > 0.01
    values, found = torch.func.jvp(function, inputs, along)
    assert torch.allclose(flat(values), flat(function(*inputs)), atol=1e-12)
    assert torch.allclose(flat(found), expected, atol=1e-8)
    with forward_ad.dual_level():
        duals = function(*map(forward_ad.make_dual, inputs, along))
        parts = (duals,) if isinstance(duals, Tensor) else duals
        assert torch.allclose(flat([forward_ad.unpack_dual(x).tangent for x in parts]), expected, atol=1e-8)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_forward_mode_of_every_kernel(routing: str, transport: str) -> None:
    function, inputs = kernel(routing, transport)
    along = tangents(inputs)
    assert torch.allclose(flat(torch.func.jvp(function, inputs, along)[1]), slope(function, inputs, along), atol=1e-7)


@pytest.mark.parametrize("name", [*OPERATIONS, "step"])
def test_second_derivatives(name: str) -> None:
    """Double backward equals the slope of the fused gradient."""
    function, inputs = (step, WHOLE) if name == "step" else OPERATIONS[name]
    probe = numbers(*flat(function(*inputs)).shape)

    def gradient(*tensors: Tensor, again: bool) -> tuple[Tensor, ...]:
        leaves = tensors if again else [x.detach().requires_grad_() for x in tensors]
        return torch.autograd.grad((flat(function(*leaves)).square() * probe).sum(), leaves, create_graph=again)

    along = tangents(inputs)
    expected = slope(lambda *x: gradient(*x, again=False), inputs, along)
    leaves = [x.clone().requires_grad_() for x in inputs]
    turned = sum((g * t).sum() for g, t in zip(gradient(*leaves, again=True), along, strict=True))
    found = torch.autograd.grad(turned, leaves, materialize_grads=True)
    assert torch.allclose(flat(found), expected, atol=1e-7)


@pytest.mark.parametrize("name", OPERATIONS)
def test_transforms_of_transforms(name: str) -> None:
    """A product with the Hessian three ways: forward over reverse, reverse over reverse, and autograd."""
    function, inputs = OPERATIONS[name]
    where = tuple(range(len(inputs)))
    probe = numbers(*flat(function(*inputs)).shape)
    along = tangents(inputs)

    def energy(*tensors: Tensor) -> Tensor:
        return (flat(function(*tensors)).square() * probe).sum()

    def turned(*tensors: Tensor) -> Tensor:
        gradients = torch.func.grad(energy, where)(*tensors)
        return torch.stack([(g * t).sum() for g, t in zip(gradients, along, strict=True)]).sum()

    forward = torch.func.jvp(torch.func.grad(energy, where), inputs, along)[1]
    backward = torch.func.grad(turned, where)(*inputs)
    assert torch.allclose(flat(forward), flat(backward), atol=1e-9)
    by_leaf = [x.clone().requires_grad_() for x in inputs]
    gradients = torch.autograd.grad(energy(*by_leaf), by_leaf, create_graph=True)
    total = sum((g * t).sum() for g, t in zip(gradients, along, strict=True))
    assert torch.allclose(flat(torch.autograd.grad(total, by_leaf)), flat(backward), atol=1e-9)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_gradient_taken_in_forward_mode(name: str) -> None:
    """The gradient of fused operators taken with a tangent is linear in it: equal to the gradient of the tangent."""
    function, inputs = OPERATIONS[name]
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = flat(function(*leaves))
    gradient, tangent = numbers(*out.shape), numbers(*out.shape, 1).squeeze(-1)
    expected = torch.autograd.grad(out, leaves, tangent, retain_graph=True)
    with forward_ad.dual_level():
        found = torch.autograd.grad(out, leaves, forward_ad.make_dual(gradient, tangent))
        slopes = [forward_ad.unpack_dual(x).tangent for x in found]
    slopes = [torch.zeros_like(x) if slope is None else slope for slope, x in zip(slopes, leaves, strict=True)]
    assert torch.allclose(flat(slopes), flat(expected), atol=1e-10)


@pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
def test_a_fused_backend_by_name_refuses_forward_mode_in_one_line() -> None:
    _, (target, source, features, beta, *_) = OPERATIONS["attention"]

    def call(x: Tensor) -> Tensor:
        return kernels.quaternion_attention(target, source, x, GRAPH, beta, backend="numba_cpu")

    with pytest.raises(ConfigError, match=r"no forward mode.*choose auto, factored or reference") as refused:
        torch.func.jvp(call, (features,), (features,))
    assert "\n" not in str(refused.value)
