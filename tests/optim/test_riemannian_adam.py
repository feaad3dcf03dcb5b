"""Adam on S³: equivariance, agreement with torch's Adam in flat space, state."""

from __future__ import annotations

import io

import pytest
import torch
from helpers.shape_checks import without_shape_checks
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.optim import RenormalisedAdamW, RiemannianAdam
from quatsphere.optim.riemannian_adam import _product, _product_table, adam_step, pull_back, retract


def units(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return Q.random_unit(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def loss(q: Tensor, seed: int = 1) -> Tensor:
    """A smooth function of quaternions without symmetry."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(*q.shape, generator=generator, dtype=torch.float64).to(q.dtype)
    return (weights * q).sum() + (q[..., 0] * q[..., 1] * q[..., 2]).sum().sin()


def optimise(start: Tensor, function, steps: int, **options) -> Tensor:
    q = start.clone().requires_grad_()
    optimiser = RiemannianAdam([q], **options)
    for _ in range(steps):
        optimiser.zero_grad()
        function(q).backward()
        optimiser.step()
    return q.detach()


def test_adam_is_left_equivariant() -> None:
    """Optimising f(p* q) from p q0 gives p times the run of f from q0."""
    start, p = units(20, 3), units(seed=5)
    plain = optimise(start, loss, 100, lr=1e-2)
    turned = optimise(Q.multiply(p, start), lambda q: loss(Q.relative(p, q)), 100, lr=1e-2)
    assert (turned - Q.multiply(p, plain)).abs().max() < 1e-8


def test_a_gradient_along_q_moves_nothing() -> None:
    start = units(50)
    moved = optimise(start, lambda q: (q * q.detach()).sum(), 5, lr=1e-2)
    assert (moved - start).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_norm_stays_one_for_ten_thousand_steps(dtype: torch.dtype) -> None:
    q = units(64, dtype=dtype).requires_grad_()
    optimiser = RiemannianAdam([q], lr=2.5e-3)
    generator = torch.Generator().manual_seed(0)
    with without_shape_checks():
        for _ in range(10_000):
            q.grad = torch.randn(64, 4, generator=generator, dtype=dtype)
            optimiser.step()
    assert (q.norm(dim=-1) - 1).abs().max() < 1e-6


def test_first_step_has_length_lr_per_component() -> None:
    """Bias-corrected Adam's first step is -η sign(ω): by hand."""
    q = units(30).requires_grad_()
    gradient = torch.randn(30, 4, dtype=torch.float64)
    before, omega = q.detach().clone(), pull_back(q.detach(), gradient)
    optimiser = RiemannianAdam([q], lr=1e-3, eps=0.0)
    q.grad = gradient
    optimiser.step()
    assert torch.allclose(Q.log(Q.relative(before, q.detach())), -1e-3 * omega.sign())


def test_flat_twin_is_torch_adam() -> None:
    flat = torch.randn(7, 3, dtype=torch.float64).requires_grad_()
    ours = flat.detach().clone()
    mean, square = torch.zeros_like(ours), torch.zeros_like(ours)
    optimiser = torch.optim.Adam([flat], lr=3e-3)
    for step in range(1, 20):
        flat.grad = torch.randn(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        ours += adam_step(flat.grad, mean, square, step, 3e-3, (0.9, 0.999), 1e-8)
        optimiser.step()
    assert torch.allclose(ours, flat.detach(), rtol=1e-12, atol=1e-14)


def test_pull_back_is_the_gradient_in_the_lie_algebra() -> None:
    """d/dω f(q exp(ω)) at ω = 0, by autograd."""
    q = units(9)
    omega = torch.zeros(9, 3, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(Q.multiply(q, Q.exp(omega))), omega)
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    assert torch.allclose(pull_back(q, gradient), expected)
    assert torch.allclose(retract(q, torch.zeros(9, 3, dtype=torch.float64)), q)


def test_it_finds_the_minimum() -> None:
    goal = units(10, seed=3)
    found = optimise(units(10, seed=4), lambda q: Q.distance(q, goal).square().sum(), 800, lr=2e-2)
    assert Q.distance(found, goal).max() < 0.05


def test_tensors_together_equal_tensors_apart_and_grad_is_untouched() -> None:
    starts = [units(4, 2, seed=1), units(5, seed=2), units(3, 3, seed=3)]
    together = [q.clone().requires_grad_() for q in starts]
    apart = [q.clone().requires_grad_() for q in starts]
    optimisers = [RiemannianAdam(together), *(RiemannianAdam([q]) for q in apart)]
    for step in range(5):
        for group in (together, apart):
            for index, q in enumerate(group):
                generator = torch.Generator().manual_seed(10 * step + index)
                skipped = step == 2 and index == 1  # one tensor misses a step and falls behind in age
                q.grad = None if skipped else torch.randn(*q.shape, generator=generator, dtype=q.dtype)
        before = [None if q.grad is None else q.grad.clone() for q in together]
        for optimiser in optimisers:
            optimiser.step()
        assert all(b is None or torch.equal(b, q.grad) for b, q in zip(before, together, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


def test_state_dict_round_trip_without_pickled_objects() -> None:
    first = units(6).requires_grad_()
    one = RiemannianAdam([first])
    for _ in range(3):
        one.zero_grad()
        loss(first).backward()
        one.step()
    buffer = io.BytesIO()
    torch.save(one.state_dict(), buffer)
    buffer.seek(0)
    second = first.detach().clone().requires_grad_()
    two = RiemannianAdam([second])
    two.load_state_dict(torch.load(buffer, weights_only=True))
    for q, optimiser in ((first, one), (second, two)):
        optimiser.zero_grad()
        loss(q).backward()
        optimiser.step()
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("parameter", "options", "message"),
    [
        (torch.ones(3, 4), {}, "quaternions must be unit"),
        (torch.ones(3, 3), {}, r"must have shape \(\.\.\., 4\)"),
        (units(3), {"lr": float("nan")}, "lr must be a finite number"),
        (units(3), {"betas": (1.0, 0.9)}, r"betas must lie in \[0, 1\)"),
    ],
)
def test_bad_arguments(parameter: Tensor, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RiemannianAdam([parameter.clone().requires_grad_()], **options)


def test_renormalised_adamw_stays_on_the_sphere() -> None:
    q = units(20).requires_grad_()
    optimiser = RenormalisedAdamW([q], lr=1e-2)
    for _ in range(10):
        optimiser.zero_grad()
        loss(q).backward()
        optimiser.step()
    assert torch.allclose(q.norm(dim=-1), torch.ones(20, dtype=torch.float64))


@pytest.mark.parametrize("conjugate", [False, True])
def test_the_product_by_table_is_the_hamilton_product(conjugate: bool) -> None:
    """The form for accelerators; q* ⊗ g with `conjugate`."""
    a, b = units(50), torch.randn(50, 4, dtype=torch.float64)
    expected = Q.relative(a, b) if conjugate else Q.multiply(a, b)
    found = _product(a, b, *_product_table(a.device, a.dtype, conjugate))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


def test_moments_share_memory_and_survive_replacement() -> None:
    """Each tensor's moments are views of one; a restored state, in tensors of its own, gives the same steps."""
    start = [units(5, 2), units(7)]
    runs = []
    for replaced in (False, True):
        params = [q.clone().requires_grad_() for q in start]
        optimiser = RiemannianAdam(params, lr=1e-2)
        for step in range(4):
            for i, p in enumerate(params):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * step + i)).double()
            optimiser.step()
            moments = [optimiser.state[p]["mean"] for p in params]
            assert moments[0].untyped_storage().data_ptr() == moments[1].untyped_storage().data_ptr()
            if replaced:
                for p in params:
                    optimiser.state[p] = {key: value.clone() for key, value in optimiser.state[p].items()}
        runs.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_tensor_without_gradient_stays_and_keeps_its_moments(skipped: int) -> None:
    """Two tensors in one optimiser move as each in its own, also where one has no gradient in a step."""
    start = [units(count, seed=count) for count in (1, 5)]
    together = [torch.nn.Parameter(q.clone()) for q in start]
    alone = [torch.nn.Parameter(q.clone()) for q in start]
    optimisers = [RiemannianAdam(together, lr=0.1), *(RiemannianAdam([q], lr=0.1) for q in alone)]
    for step in range(4):
        for index in range(2):
            gradient = torch.randn(together[index].shape, dtype=torch.float64)
            absent = step == 2 and index == skipped
            together[index].grad, alone[index].grad = (None, None) if absent else (gradient, gradient.clone())
        for optimiser in optimisers:
            optimiser.step()
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
