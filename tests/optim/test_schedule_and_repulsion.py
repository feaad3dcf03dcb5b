"""Rates equal torch's one-cycle; repulsion spreads vertices and keeps radii; groups as in the paper's appendix."""

from __future__ import annotations

import math

import pytest
import torch

from quatsphere import create_model
from quatsphere.config import OptimConfig
from quatsphere.geometry import sphere
from quatsphere.optim import Optimisers, RiemannianAdam, repel, repel_, repulsion_force
from quatsphere.optim.optimisers import constant, decay, one_cycle

SMALL = {"dim": 32, "heads": 4, "base_vertices": 16, "shells": 3, "image_size": 16}


@pytest.mark.parametrize("total", [20, 37, 1000])
def test_one_cycle_is_torchs(total: int) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.AdamW([parameter], lr=1e-3)
    torchs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=1e-3, total_steps=total, pct_start=0.1, div_factor=10, final_div_factor=100
    )
    for step in range(total):
        assert 1e-3 * one_cycle(step, total, 0.1, 10.0, 100.0) == pytest.approx(torchs.get_last_lr()[0], rel=1e-9)
        optimiser.step()
        if step < total - 1:
            torchs.step()


def test_ends_of_the_schedules() -> None:
    assert one_cycle(0, 1000, 0.1, 10.0, 100.0) == pytest.approx(0.1)
    assert one_cycle(999, 1000, 0.1, 10.0, 100.0) == pytest.approx(1e-3)
    assert one_cycle(0, 1, 0.1, 10.0, 100.0) > 0
    assert one_cycle(5, 10, 0.0, 10.0, 100.0) < 1
    assert constant(3, 10, 0.1, 10.0, 100.0) == 1
    assert decay(0, 100, 0.4) == 1
    assert decay(20, 100, 0.4) == pytest.approx(0.5)
    assert decay(40, 100, 0.4) == decay(99, 100, 0.4) == 0
    assert decay(0, 100, 0.0) == 0


def test_repulsion_lowers_the_energy_of_a_jittered_lattice() -> None:
    generator = torch.Generator().manual_seed(0)
    points = sphere.fibonacci_sphere(96, dtype=torch.float64)
    points = sphere.directions(points + 0.08 * torch.randn(96, 3, generator=generator, dtype=torch.float64))
    before = sphere.riesz_energy(points)
    for _ in range(20):
        energy = sphere.riesz_energy(points)
        repel_(points, 8, 0.003)
        assert sphere.riesz_energy(points) < energy
    assert sphere.riesz_energy(points) < before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_repulsion_keeps_radii_and_meets_its_median(dtype: torch.dtype) -> None:
    points = 0.7 * sphere.fibonacci_sphere(64, dtype=dtype)
    before = points.clone()
    repel_(points, 8, 0.01)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    assert (points.norm(dim=-1) - 0.7).abs().max() < tolerance
    assert float(sphere.angular_separation(before, points).median()) == pytest.approx(0.01, rel=1e-3)


def test_force_is_tangential_and_points_away() -> None:
    points = sphere.fibonacci_sphere(64, dtype=torch.float64)
    assert ((repulsion_force(points, 8) * points).sum(-1)).abs().max() < 1e-9
    pair = torch.tensor([[1.0, 0.0, 0.0], [math.cos(0.2), math.sin(0.2), 0.0]], dtype=torch.float64)
    force = repulsion_force(pair, 1)
    assert force[0].tolist() == pytest.approx([0.0, -1 / (0.04 + 1e-4), 0.0])


def test_coincident_and_antipodal_vertices_stay_finite() -> None:
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    for points in (torch.stack((x, x)), torch.stack((x, -x)), torch.stack((x, x, -x, x))):
        assert torch.equal(repulsion_force(points, 3), torch.zeros_like(points))
        still = points.clone()
        repel_(still, 3, 0.1)
        assert torch.equal(still, points)


def test_repulsion_runs_at_its_interval() -> None:
    config = OptimConfig()
    for step, total, moves in ((0, 100, True), (5, 100, False), (10, 100, True), (40, 100, False)):
        shell = sphere.fibonacci_sphere(32)
        repel([shell], step, total, config)
        assert torch.equal(shell, sphere.fibonacci_sphere(32)) != moves
    shell = sphere.fibonacci_sphere(32)
    repel([shell], 0, 100, OptimConfig(repulsion=False))
    assert torch.equal(shell, sphere.fibonacci_sphere(32))


def make(**changes) -> tuple[torch.nn.Module, Optimisers]:
    model = create_model("qsv", **SMALL)
    return model, Optimisers(dict(model.named_parameters()), model.parameter_roles(), OptimConfig(**changes))


def test_groups_of_the_appendix() -> None:
    _, optimisers = make()
    rates = optimisers.set_rates(99, 1000)  # the top of the cycle
    assert rates == pytest.approx(
        {"positions": 5e-5, "bounds": 3e-3, "betas": 1e-3, "gates": 1e-3, "weights": 1e-3, "quaternions": 2.5e-3}
    )
    adamw, on_sphere = optimisers.optimisers
    assert isinstance(on_sphere, RiemannianAdam)
    decays = {group["role"]: group["weight_decay"] for group in adamw.param_groups}
    assert decays == {"positions": 0.0, "bounds": 0.05, "betas": 0.05, "gates": 0.05, "weights": 0.05}


def test_optimisers_of_the_papers_comparison() -> None:
    _, annealed = make(quaternion_schedule="annealed")
    assert annealed.set_rates(0, 1000)["quaternions"] == pytest.approx(2.5e-4)
    _, flat = make(schedule="constant")
    assert flat.set_rates(0, 1000)["weights"] == 1e-3
    model, renormalised = make(quaternion_optimizer="adamw_renormalise")
    model(torch.rand(2, 3, 16, 16)).sum().backward()
    renormalised.set_rates(0, 10)
    renormalised.step()
    assert torch.allclose(model.fields[0].base.norm(dim=-1), torch.ones(()))


def test_a_step_increments_the_version_of_moved_tensors() -> None:
    """Graphs and projections detect moved positions by it."""
    model, optimisers = make()
    model(torch.rand(2, 3, 16, 16)).sum().backward()
    before = {name: (parameter._version, parameter.detach().clone()) for name, parameter in model.named_parameters()}
    optimisers.set_rates(0, 10)
    optimisers.step()
    for name, parameter in model.named_parameters():
        version, value = before[name]
        assert (parameter._version > version) == (parameter.grad is not None)
        assert parameter._version > version or torch.equal(parameter, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adamw_is_that_of_torch(dtype: torch.dtype) -> None:
    """The fused step against torch's literal one, from moments that were saved by the other."""
    torch.manual_seed(0)
    start = {name: torch.randn(shape, dtype=dtype) for name, shape in {"a": (), "b": (7,), "c": (3, 5, 4)}.items()}
    ours, theirs = ({name: torch.nn.Parameter(p.clone()) for name, p in start.items()} for _ in range(2))
    literal = torch.optim.AdamW(theirs.values(), 1e-3, weight_decay=0.05, foreach=False, fused=False)
    optimisers = Optimisers(ours, {"weights": list(ours)}, OptimConfig(peak_lr=1e-3, weight_decay=0.05))
    for _ in range(20):
        for name, p in theirs.items():
            p.grad = torch.randn_like(p)
            ours[name].grad = p.grad.clone()
        literal.step()
        optimisers.step()
    assert all(
        torch.allclose(ours[name], p, rtol=1e-6 if dtype == torch.float32 else 1e-14) for name, p in theirs.items()
    )
    optimisers.load_state_tensors({f"{n}/{key}": v for n, p in theirs.items() for key, v in literal.state[p].items()})
    assert {key.split("/")[1] for key in optimisers.state_tensors()} == {"step", "exp_avg", "exp_avg_sq"}
    optimisers.step()
    assert all(float(value) == 21 for key, value in optimisers.state_tensors().items() if key.endswith("/step"))


def test_state_tensors_round_trip() -> None:
    images = torch.rand(2, 3, 16, 16)
    runs = []
    for interrupted in (False, True):
        model, optimisers = make()
        model.eval()
        for step in range(4):
            if interrupted and step == 2:
                saved = ({k: v.clone() for k, v in model.state_dict().items()}, optimisers.state_tensors())
                model, optimisers = make()
                model.eval()
                model.load_state_dict(saved[0])
                optimisers.load_state_tensors(saved[1])
            optimisers.set_rates(step, 4)
            optimisers.zero_grad()
            model(images).square().sum().backward()
            optimisers.step()
            model.constrain()
        runs.append(model.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("count", [96, 256])
def test_no_vertex_moves_further_than_half_the_spacing(count: int) -> None:
    """Near equilibrium the median force almost vanishes; without the limit one step was 88 and 177 degrees."""
    positions = sphere.fibonacci_sphere(count, 1.0)
    spacing, farthest = math.sqrt(4 * math.pi / count), 0.0
    for step in range(100):
        before = positions.clone()
        repel_(positions, 8, 0.05 * spacing * (1 - step / 100))
        farthest = max(farthest, float(sphere.angular_separation(before, positions).max()))
    assert farthest <= 0.5 * spacing * (1 + 1e-3)
    assert farthest > 0.05 * spacing  # the limit does not reach the median vertex
