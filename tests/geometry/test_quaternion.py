"""Quaternion algebra: theorems in float64 (tight) and float32 (loose), and the points where formulas are 0/0."""

from __future__ import annotations

import math

import pytest
import roma
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck

from quatsphere.errors import NumericsError
from quatsphere.geometry import quaternion as Q

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
both_precisions = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def units(count: int, *shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(Q.random_unit(*(shape or (200,)), generator=generator, dtype=dtype) for _ in range(count))


def close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE[b.dtype])


@both_precisions
def test_multiplication_is_associative_and_norms_multiply(dtype: torch.dtype) -> None:
    a, b, c = units(3, dtype=dtype)
    assert close(Q.multiply(Q.multiply(a, b), c), Q.multiply(a, Q.multiply(b, c)))
    assert close(Q.multiply(2 * a, b).norm(dim=-1), 2 * torch.ones(200, dtype=dtype))


def test_hamilton_rules() -> None:
    one, i, j, k = torch.eye(4, dtype=torch.float64)
    assert torch.equal(Q.multiply(i, j), k)
    assert torch.equal(Q.multiply(j, k), i)
    assert torch.equal(Q.multiply(k, i), j)
    assert torch.equal(Q.multiply(i, i), -one)


@both_precisions
def test_score_is_inner_product(dtype: torch.dtype) -> None:
    a, b = units(2, dtype=dtype)
    assert close(Q.relative(a, b)[..., 0], (a * b).sum(-1))


@both_precisions
def test_relative_ignores_global_left_rotation(dtype: torch.dtype) -> None:
    a, b, g = units(3, dtype=dtype)
    assert close(Q.relative(Q.multiply(g, a), Q.multiply(g, b)), Q.relative(a, b))


@both_precisions
def test_transport_composes(dtype: torch.dtype) -> None:
    a, b, c = units(3, dtype=dtype)
    assert close(Q.multiply(Q.relative(a, b), Q.relative(b, c)), Q.relative(a, c))


@both_precisions
def test_holonomy_of_any_loop_is_one(dtype: torch.dtype) -> None:
    loop = units(7, dtype=dtype)
    around = loop[0].new_tensor([1.0, 0, 0, 0]).expand(200, 4)
    for a, b in zip(loop, (*loop[1:], loop[0]), strict=True):
        around = Q.multiply(around, Q.relative(a, b))
    assert close(around, around.new_tensor([1.0, 0, 0, 0]).expand(200, 4))


@both_precisions
def test_transport_keeps_real_part_and_norm(dtype: torch.dtype) -> None:
    (q,) = units(1, dtype=dtype)
    x = torch.randn(200, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    moved = Q.sandwich(q, x)
    assert close(moved[..., 0], x[..., 0])
    assert close(moved.norm(dim=-1), x.norm(dim=-1))


def test_double_cover() -> None:
    a, b = units(2)
    x = torch.randn(200, 4, dtype=torch.float64)
    assert close(Q.relative(-a, b)[..., 0], -Q.relative(a, b)[..., 0])
    assert close(Q.sandwich(Q.relative(-a, b), x), Q.sandwich(Q.relative(a, b), x))


@both_precisions
def test_left_matrix_is_left_multiplication(dtype: torch.dtype) -> None:
    w, x = units(2, dtype=dtype)
    assert close((Q.left_matrix(w) @ x.unsqueeze(-1)).squeeze(-1), Q.multiply(w, x))


@both_precisions
def test_roma_agrees_on_rotations(dtype: torch.dtype) -> None:
    a, b = units(2, dtype=dtype)
    v = torch.randn(200, 3, dtype=dtype, generator=torch.Generator().manual_seed(2))
    theirs_a, theirs_b = a[..., [1, 2, 3, 0]], b[..., [1, 2, 3, 0]]  # roma puts the real part last
    assert close(Q.to_rotation_matrix(a), roma.unitquat_to_rotmat(theirs_a))
    assert close(Q.rotate(a, v), roma.quat_action(theirs_a, v))
    assert close(Q.multiply(a, b)[..., [1, 2, 3, 0]], roma.quat_product(theirs_a, theirs_b))
    geodesic = roma.rotmat_geodesic_distance(Q.to_rotation_matrix(a), Q.to_rotation_matrix(b))
    assert (Q.distance(a, b) - geodesic).abs().max() < (1e-7 if dtype == torch.float64 else 1e-3)


@both_precisions
def test_rotation_matrices_multiply(dtype: torch.dtype) -> None:
    a, b = units(2, dtype=dtype)
    product = Q.to_rotation_matrix(a) @ Q.to_rotation_matrix(b)
    assert close(Q.to_rotation_matrix(Q.multiply(a, b)), product)


@given(st.floats(0, math.pi - 1e-3), st.integers(0, 100))
def test_exp_and_log_are_inverse(angle: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    axis = torch.randn(3, dtype=torch.float64, generator=generator)
    tangent = angle * axis / axis.norm()
    assert close(Q.exp(tangent).norm(), torch.tensor(1.0, dtype=torch.float64))
    assert (Q.log(Q.exp(tangent)) - tangent).abs().max() < 1e-9


def test_exp_rotates_by_twice_the_norm() -> None:
    tangent = torch.tensor([0.0, 0.0, 0.3], dtype=torch.float64)
    angle = Q.distance(Q.exp(tangent), torch.tensor([1.0, 0, 0, 0], dtype=torch.float64))
    assert abs(float(angle) - 0.6) < 1e-12


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-20, 1e-8, 1e-4, 0.1, 0.7])
def test_exp_has_finite_gradient_at_zero(scale: float) -> None:
    tangent = (scale * torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)).requires_grad_()
    assert gradcheck(Q.exp, (tangent,))
    jacobian = torch.autograd.functional.jacobian(Q.exp, tangent.detach()[0])
    if scale < 1e-8:
        expected = torch.cat((torch.zeros(1, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)))
        assert torch.allclose(jacobian, expected, atol=1e-12)


def test_exp_jacobian_in_float32() -> None:
    for scale in torch.logspace(-8, math.log10(0.7), 40).tolist():
        tangent = scale * torch.tensor([0.6, -0.64, 0.48], dtype=torch.float64)
        exact = torch.autograd.functional.jacobian(Q.exp, tangent)
        loose = torch.autograd.functional.jacobian(Q.exp, tangent.float())
        assert (loose.double() - exact).abs().max() < 1.2e-7


def test_log_gradient_at_one() -> None:
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(Q.log, one)
    expected = torch.cat((torch.zeros(3, 1), torch.eye(3)), dim=1).double()
    assert torch.allclose(jacobian, expected)


@pytest.mark.parametrize("angle", [0.0, 1e-12, 1e-8, 1e-4, 1.0, math.pi])
def test_distance_is_exact_near_zero(angle: float) -> None:
    (a,) = units(1, 50)
    axis = torch.tensor([[0.0, 0.0, angle / 2]], dtype=torch.float64).expand(50, 3)
    b = Q.multiply(a, Q.exp(axis))
    assert (Q.distance(a, b) - angle).abs().max() < 1e-15 + 4e-16 / max(angle, 1e-3)
    assert torch.equal(Q.distance(a, -a), torch.zeros(50, dtype=torch.float64))


def test_haar_moments() -> None:
    """Mean rotation angle π/2 + 2/π = 2.207, standard deviation of the score 1/2: known for the Haar measure."""
    a, b = units(2, 200_000)
    assert abs(Q.distance(a, b).mean() - (math.pi / 2 + 2 / math.pi)) < 0.01
    assert abs((a * b).sum(-1).std() - 0.5) < 0.005


def test_normalize_refuses_zero() -> None:
    with pytest.raises(NumericsError, match="zero quaternion"):
        Q.normalize(torch.zeros(2, 4))


def test_random_unit_follows_its_generator() -> None:
    first = Q.random_unit(5, generator=torch.Generator().manual_seed(4))
    second = Q.random_unit(5, generator=torch.Generator().manual_seed(4))
    assert torch.equal(first, second)


def test_mean_rotation_is_sign_free_and_the_dominant_eigenvector() -> None:
    (noise,) = units(1, 500)
    q = Q.normalize(torch.tensor([0.2, -0.5, 0.7, 0.4], dtype=torch.float64) + 0.2 * noise)
    flipped = q * torch.where(torch.arange(500) % 2 == 0, 1.0, -1.0)[:, None].double()
    assert torch.allclose(Q.mean_rotation(q), Q.mean_rotation(flipped))
    dominant = torch.linalg.eigh(q.T @ q).eigenvectors[:, -1]
    assert abs(abs(float(dominant @ Q.mean_rotation(q))) - 1) < 1e-10


@pytest.mark.parametrize("count", [64 * 4, 384 * 16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mean_rotation_of_a_random_field_is_the_dominant_eigenvector(count: int, dtype: torch.dtype) -> None:
    """Nearly equal eigenvalues, at the demo's size and the paper's."""
    for seed in range(20):
        q = Q.random_unit(count, generator=torch.Generator().manual_seed(seed)).to(dtype)
        dominant = torch.linalg.eigh(q.double().T @ q.double()).eigenvectors[:, -1]
        overlap = abs(float(dominant @ Q.mean_rotation(q).double()))
        assert abs(overlap - 1) < (1e-12 if dtype == torch.float64 else 1e-6)


def test_mean_rotation_orthogonal_to_the_start_of_the_iteration() -> None:
    q = torch.tensor([1.0, -2.0, 0.0, 0.0], dtype=torch.float64) / math.sqrt(5)
    assert torch.allclose(Q.mean_rotation(q.expand(7, 4)), -q)


def test_mean_rotation_of_a_degenerate_spectrum_is_finite_and_fixed() -> None:
    q = torch.eye(4, dtype=torch.float64)
    assert torch.equal(Q.mean_rotation(q), Q.mean_rotation(q.flip(0)))
    start = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64) / math.sqrt(85)
    assert torch.allclose(Q.mean_rotation(q), start, rtol=0, atol=1e-15)
    plane = q[1:3].expand(50, 2, 4).reshape(-1, 4)  # only i and j, equally often
    projected = torch.tensor([0.0, 2.0, 1.0, 0.0], dtype=torch.float64) / math.sqrt(5)
    assert torch.allclose(Q.mean_rotation(plane), projected, rtol=0, atol=1e-15)


def test_mean_rotation_ignores_autocast_and_has_no_gradient() -> None:
    q = Q.random_unit(6144, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean = Q.mean_rotation(q)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Q.mean_rotation(q), mean)
    assert not mean.requires_grad


def test_mean_rotation_reads_no_values() -> None:
    """On tensors without data, as when compiling or exporting."""
    with FakeTensorMode():
        assert Q.mean_rotation(torch.empty(6144, 4)).shape == (4,)


@pytest.mark.parametrize("function", [Q.multiply, Q.relative, Q.sandwich, Q.distance])
def test_gradients_of_products(function) -> None:
    a, b = (q.requires_grad_() for q in units(2, 6))
    assert gradcheck(function, (a, b))


@pytest.mark.parametrize("function", [Q.log, Q.normalize, Q.left_matrix, Q.to_rotation_matrix, Q.conjugate])
def test_gradients_of_maps(function) -> None:
    (a,) = units(1, 200)
    assert gradcheck(function, (a.requires_grad_(),), fast_mode=True)
