"""Small modules: beta, value map, pooling, dropout."""

from __future__ import annotations

import pytest
import torch

from quatsphere.geometry import quaternion as Q
from quatsphere.nn.pooling import POOLINGS, MeanPooling, PoolAlong, QuaternionPooling
from quatsphere.nn.routing import ROUTINGS, Alignment
from quatsphere.nn.trace import NoTrace, Trace
from quatsphere.nn.transport import TRANSPORTS
from quatsphere.randomness import KeyedDropout, fold


def test_beta_at_zero_logit() -> None:
    assert Alignment(16).beta.tolist() == pytest.approx([0.7931] * 16, abs=1e-4)


def test_beta_probes() -> None:
    warm, frozen = Alignment(4, 5.0), Alignment(4, 5.0, frozen=True)
    assert warm.beta.tolist() == pytest.approx([5.0] * 4)
    assert frozen.beta.tolist() == pytest.approx([5.0] * 4)
    assert len(list(warm.parameters())) == 1
    assert not list(frozen.parameters())


@pytest.mark.parametrize("name", list(ROUTINGS))
def test_every_routing_has_beta(name: str) -> None:
    assert [n for n, _ in ROUTINGS[name](3).named_parameters()] == ["beta_logit"]


def test_projected_transport_is_a_linear_map_per_head() -> None:
    transport = TRANSPORTS["projected"](2, 3)
    x = torch.randn(1, 4, 2, 3, 4)
    out = transport.prepare(x)
    assert torch.allclose(out[0, 1, 1].flatten(), transport.weight[1] @ x[0, 1, 1].flatten(), atol=1e-5)
    assert TRANSPORTS["sandwich"](2, 3).prepare(x) is x


def test_pooling_by_hand() -> None:
    """Identity field: d = z, so a vertex scores the sum of its z components."""
    tokens = torch.randn(2, 5, 16, dtype=torch.float64)
    base = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(5, 2, 4)
    trace = Trace()
    pooled = QuaternionPooling()(tokens, base, trace)
    weights = tokens[..., 3::4].sum(-1).softmax(1)
    assert torch.allclose(trace["pool_weights"], weights)
    assert torch.allclose(pooled, (weights[..., None] * tokens).sum(1))


def test_pooling_per_head_by_hand() -> None:
    """Each head has its own softmax over vertices, of the sum over its own channels; values and gradients."""
    torch.manual_seed(0)
    tokens = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64, requires_grad=True)  # heads, channels, components
    base = Q.normalize(torch.tensor([1.0, 0, 0, 0]).double() + 0.2 * torch.randn(5, 3, 4, dtype=torch.float64))
    trace = Trace()
    pooled = POOLINGS["quaternion_per_head"]()(tokens.flatten(2), base, trace)
    weights = (tokens[..., 1:] @ trace["pool_direction"]).sum(-1).softmax(1)
    expected = (weights[..., None, None] * tokens).sum(1).flatten(1)
    assert torch.allclose(trace["pool_weights"], weights)
    assert torch.allclose(trace["pool_scores"].softmax(1), weights)
    assert torch.allclose(pooled, expected)
    probe = torch.randn_like(pooled)
    gradients = [torch.autograd.grad((out * probe).sum(), tokens)[0] for out in (pooled, expected)]
    assert torch.allclose(*gradients)


def test_one_head_pools_per_head_as_over_all() -> None:
    tokens, base = torch.randn(2, 5, 8), Q.random_unit(5, 1)
    pooled = [POOLINGS[name]()(tokens, base, NoTrace()) for name in ("quaternion", "quaternion_per_head")]
    assert torch.equal(*pooled)


def test_pooling_turns_with_the_field() -> None:
    """q -> g q turns the pooling direction by g; the sign of any q does not matter."""
    torch.manual_seed(0)
    base = Q.normalize(torch.tensor([1.0, 0, 0, 0]).double() + 0.2 * torch.randn(9, 2, 4, dtype=torch.float64))
    g = Q.random_unit(dtype=torch.float64)
    plain, turned, flipped = Trace(), Trace(), Trace()
    tokens = torch.randn(1, 9, 16, dtype=torch.float64)
    QuaternionPooling()(tokens, base, plain)
    QuaternionPooling()(tokens, Q.multiply(g, base), turned)
    QuaternionPooling()(tokens, -base, flipped)
    assert torch.allclose(turned["pool_direction"], Q.rotate(g, plain["pool_direction"]), atol=1e-9)
    assert torch.allclose(flipped["pool_direction"], plain["pool_direction"])


def pool_plainly(tokens: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    weights = (tokens @ axis).softmax(1)
    return (weights.unsqueeze(-1) * tokens).sum(1)


def test_pooling_has_the_gradient_of_its_plain_form() -> None:
    torch.manual_seed(0)
    tokens, axis = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True), torch.randn(8, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: PoolAlong.apply(x, axis)[0], (tokens,))
    for dtype, error in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        x, a = tokens.detach().to(dtype).requires_grad_(), axis.to(dtype)
        fast, plain = PoolAlong.apply(x, a)[0], pool_plainly(x, a)
        assert torch.allclose(fast, plain, atol=error)
        weigh = torch.randn_like(plain)
        ours, theirs = (torch.autograd.grad((out * weigh).sum(), x)[0] for out in (fast, plain))
        assert torch.allclose(ours, theirs, atol=5 * error)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_pooling_under_autocast(stored: torch.dtype) -> None:
    """Products in bfloat16, a gradient in the dtype of the tokens."""
    torch.manual_seed(0)
    tokens = torch.randn(2, 5, 8).to(stored).requires_grad_()
    axis = torch.randn(8).to(stored)
    with torch.autocast("cpu", torch.bfloat16):
        pooled = PoolAlong.apply(tokens, axis)[0]
    (gradient,) = torch.autograd.grad(pooled.float().square().sum(), tokens)
    exact = tokens.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(pool_plainly(exact, axis.float()).square().sum(), exact)
    assert pooled.dtype == torch.bfloat16
    assert gradient.dtype == stored
    assert torch.allclose(gradient.float(), expected, atol=0.05 * float(expected.abs().max()))


def test_mean_pooling() -> None:
    tokens = torch.randn(2, 5, 16)
    assert torch.allclose(MeanPooling()(tokens, None, NoTrace()), tokens.mean(1))


def test_dropout_is_a_function_of_the_key() -> None:
    dropout, other = KeyedDropout(0.5, "a.output"), KeyedDropout(0.5, "b.output")
    x, keys = torch.ones(6, 40), fold(1, torch.arange(6))
    whole = dropout(x, keys)
    assert torch.equal(whole[2:4], dropout(x[2:4], keys[2:4]))
    assert not torch.equal(whole, other(x, keys))
    assert torch.equal(dropout.eval()(x, keys), x)
    assert KeyedDropout(0.0, "c").mask(keys, (3,)) is None


def test_the_pooling_direction_is_a_quadratic_form_of_the_mean() -> None:
    """The form for accelerators equals ẑ rotated by the quaternion, also for one that is not of unit length."""
    for mean in torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        pool = QuaternionPooling().double()
        products = (mean[:, None] * mean).flatten()
        torch.testing.assert_close((pool.axis_form * products).sum(-1), pool.direction(mean), rtol=0, atol=1e-12)
