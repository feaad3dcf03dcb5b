"""The fused perturbation equals the plain one: values and all gradients, also at raw = 0 where every run starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import numba_cpu, numba_cpu_field, tangent

pytestmark = pytest.mark.skipif(not numba_cpu.available(), reason="numba is not installed")


def plain(hidden: Tensor, weight: Tensor, bias: Tensor, bound: Tensor, base: Tensor) -> Tensor:
    return Q.normalize(Q.multiply(base, Q.exp(bound * torch.tanh(tangent(hidden, weight, bias)))))


def make(seed: int, sizes: tuple[int, int, int, int], scale: float) -> list[Tensor]:
    B, V, H, channels = sizes
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = 4 * channels
    base = Q.normalize(normal(V, H, 4))
    bound = torch.tensor(0.785, dtype=torch.float64)
    return [normal(B, V, H * width), scale * normal(H, width, 3), scale * normal(H, 3), bound, 1.01 * base]


def run(function, tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    out = function(*leaves)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)]


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 17), st.integers(1, 5)),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-6, 0.1, 1.0, 10.0]),
)
def test_equals_the_plain_perturbation(sizes: tuple[int, int, int, int], seed: int, scale: float) -> None:
    tensors = make(seed, sizes, scale)
    exact = run(plain, tensors, torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for value, expected in zip(run(numba_cpu_field.perturb, tensors, dtype), exact, strict=True):
            floor = 0.0 if expected.ndim else 1.0  # the bound's gradient is one sum over everything: it may cancel
            scale_of_values = max(float(expected.abs().max()), floor)
            assert float((value.double() - expected).abs().max()) <= tolerance * scale_of_values


def test_at_zero_the_field_is_the_base_and_the_gradient_is_alive() -> None:
    tensors = make(0, (2, 5, 4, 2), 0.0)
    out, hidden, weight, bias, bound, _ = run(numba_cpu_field.perturb, tensors, torch.float32)
    assert relative_error(out[0], Q.normalize(tensors[-1])) < 1e-6
    assert weight.abs().min() > 0
    assert bias.abs().min() > 0
    assert hidden.abs().max() == 0  # the last layer is zero, so nothing passes it yet
    assert bound == 0


def test_the_same_bits_for_any_number_of_threads() -> None:
    tensors, before, found = make(1, (6, 70, 5, 3), 1.0), torch.get_num_threads(), []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(numba_cpu_field.perturb, tensors, torch.float32))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_the_operator_keeps_torch_s_rules() -> None:
    torch.library.opcheck(numba_cpu_field.perturb, tuple(x.requires_grad_() for x in make(2, (2, 5, 4, 1), 1.0)))


def test_a_bound_beyond_the_series_is_refused() -> None:
    tensors = make(3, (1, 2, 2, 1), 1.0)
    with pytest.raises(ConfigError, match="bounds up to 1"):
        numba_cpu_field.perturb(*tensors[:3], torch.tensor(1.5), tensors[-1])
