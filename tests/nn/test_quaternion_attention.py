"""The layer for use in other models: equal to the operator, invariant to a global rotation of its field."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quatsphere import QuaternionAttention, quaternion_attention
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q

GRAPH = torch.randint(0, 9, (9, 4), generator=torch.Generator().manual_seed(0))
X = torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer(**changes: object) -> QuaternionAttention:
    """A layer in float64 whose perturbation network is not the identity."""
    torch.manual_seed(0)
    made = QuaternionAttention(24, 3, **changes).double()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not name.endswith("base"):
                parameter += 0.3 * torch.randn_like(parameter)
    return made


def operator(x: Tensor, target: Tensor, source: Tensor, neighbours: Tensor, beta: Tensor) -> Tensor:
    return quaternion_attention(target, source, x.unflatten(2, (3, -1, 4)), neighbours, beta).flatten(2)


def test_given_quaternions_equal_the_operator() -> None:
    attention, source, target = layer(), Q.random_unit(2, 9, 3).double(), Q.random_unit(2, 5, 3).double()
    assert torch.equal(attention(X, GRAPH, source), operator(X, source, source, GRAPH, attention.routing.beta))
    expected = operator(X, target, source, GRAPH[:5], attention.routing.beta)
    assert torch.equal(attention(X, GRAPH[:5], source, target), expected)
    shared = source[:1].expand(2, -1, -1, -1)
    assert torch.equal(attention(X, GRAPH, source[0]), attention(X, GRAPH, shared))


@pytest.mark.parametrize("perturbed", [True, False])
def test_its_own_field_equals_the_operator_and_has_gradients(perturbed: bool) -> None:
    attention = layer(vertices=9, perturbed=perturbed)
    field = attention.own_field(X)
    assert torch.allclose(field.norm(dim=-1), torch.ones((), dtype=torch.float64))
    assert torch.equal(attention(X, GRAPH), operator(X, field, field, GRAPH, attention.routing.beta))
    attention(X, GRAPH).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in attention.parameters())


@pytest.mark.parametrize("routing", ["alignment", "absolute", "uniform"])
@pytest.mark.parametrize("transport", ["sandwich", "one_sided", "identity", "projected"])
def test_invariant_to_a_global_rotation(routing: str, transport: str) -> None:
    """q -> g q on every node changes nothing."""
    attention = layer(vertices=9, routing=routing, transport=transport)
    before = attention(X, GRAPH)
    assert attention.field is not None
    with torch.no_grad():
        attention.field.base.copy_(Q.multiply(Q.random_unit(dtype=torch.float64), attention.field.base))
    assert torch.allclose(attention(X, GRAPH), before, rtol=1e-10, atol=1e-12)


def test_bad_arguments_state_the_rule() -> None:
    with pytest.raises(ConfigError, match="dim must be a positive multiple of 4 \\* heads = 12: got 20"):
        QuaternionAttention(20, 3)
    with pytest.raises(ConfigError, match="'geometric' needs positions"):
        QuaternionAttention(24, 3, routing="geometric")
    with pytest.raises(ConfigError, match="pass source_field, or build it with vertices=V"):
        layer()(X, GRAPH)
    with pytest.raises(ConfigError, match="has quaternions of 7 nodes: got 9"):
        layer(vertices=7)(X, GRAPH)
    with pytest.raises(ConfigError, match="routing 'mine' is not registered; import its module"):
        QuaternionAttention(24, 3, routing="mine")
