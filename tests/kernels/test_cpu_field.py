"""The fused perturbation equals the plain one: values and gradients, also at raw = 0, where every run starts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion as Q
from quatsphere.kernels import Mixing, Network, cpu, perturb
from quatsphere.kernels.cpu import field as cpu_field
from quatsphere.kernels.torch_backend import tangent

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def plain(*tensors: Tensor, mixing: Mixing | None = None) -> tuple[Tensor, ...]:
    hidden, inner, weight, bias, bounds, *bases = tensors
    rows = [hidden] if mixing is None else [hidden, torch.einsum("tm,btmd->btd", mixing[1], hidden[:, mixing[0]])]
    raw = [tangent(row, inner, weight, bias) for row in rows]
    turned = [Q.exp(bound * torch.tanh(each)) for bound, each in zip(bounds, raw, strict=True)]
    return tuple(Q.normalize(Q.multiply(base, each)) for base, each in zip(bases, turned, strict=True))


def fused(*tensors: Tensor, mixing: Mixing | None = None) -> tuple[Tensor, ...]:
    rest = (None, None, None) if mixing is None else (tensors[-1], *mixing)
    return cpu_field.perturb(*tensors[:6], *rest)[: 1 if mixing is None else 2]


def make(seed: int, sizes: tuple[int, int, int, int], scale: float, targets: int = 0) -> list[Tensor]:
    """hidden, inner, weight, bias, bounds and the base of one shell or two."""
    B, V, H, channels = sizes
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = 4 * channels
    bases = [1.01 * Q.normalize(normal(count, H, 4)) for count in (V, targets) if count]
    bounds = torch.tensor([0.785, 0.3][: len(bases)], dtype=torch.float64)
    network = [normal(H * width), scale * normal(H, width, 3), scale * normal(H, 3)]
    return [normal(B, V, H * width), *network, bounds, *bases]


def mix(seed: int, rows: int, targets: int) -> Mixing:
    """Each target sums two rows, possibly the same one twice."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(targets, 1, generator=generator, dtype=torch.float64)
    return Mixing(torch.randint(rows, (targets, 2), generator=generator), torch.cat((shares, 1 - shares), 1))


def run(function, tensors: list[Tensor], dtype: torch.dtype, mixing: Mixing | None = None) -> list[Tensor]:
    """Fields and all gradients of a fixed scalar of them."""
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    rows = None if mixing is None else Mixing(mixing.indices, mixing.shares.to(dtype))
    fields = function(*leaves, mixing=rows)
    generator = torch.Generator().manual_seed(1)
    probes = [torch.randn(field.shape, generator=generator, dtype=torch.float64).to(dtype) for field in fields]
    scalar = sum((field * probe).sum() for field, probe in zip(fields, probes, strict=True))
    return [*(field.detach() for field in fields), *torch.autograd.grad(scalar, leaves)]


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 17), st.integers(1, 5)),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1e-6, 0.1, 1.0, 10.0]),
    st.integers(0, 40),
)
def test_equals_plain_perturbation(sizes: tuple[int, int, int, int], seed: int, scale: float, targets: int) -> None:
    tensors, mixing = make(seed, sizes, scale, targets), mix(seed, sizes[1], targets) if targets else None
    exact = run(plain, tensors, torch.float64, mixing)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for value, expected in zip(run(fused, tensors, dtype, mixing), exact, strict=True):
            floor = 0.0 if expected.ndim > 1 else 1.0  # gradients of bounds and biases are sums that may cancel
            floor = max(floor, 0.01 if scale > 1 else 0.0)  # where tanh rounds to 1 in float32, its slope is 0
            scale_of_values = max(float(expected.abs().max()), floor)
            assert float((value.double() - expected).abs().max()) <= tolerance * scale_of_values


def test_zero_tangent_gives_base_and_nonzero_gradient() -> None:
    tensors = make(0, (2, 5, 4, 2), 0.0)
    out, hidden, inner, weight, bias, bound, _ = run(fused, tensors, torch.float32)
    assert relative_error(out[0], Q.normalize(tensors[-1])) < 1e-6
    assert weight.abs().min() > 0
    assert bias.abs().min() > 0
    assert inner.abs().max() == 0
    assert hidden.abs().max() == 0  # the last layer is zero, so its input has no gradient yet
    assert bound == 0


def test_bit_identical_for_any_number_of_threads() -> None:
    tensors, before, found = make(1, (6, 70, 5, 3), 1.0, 90), torch.get_num_threads(), []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(fused, tensors, torch.float32, mix(1, 70, 90)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("heads", [1, 2, 3, 4])
def test_vertices_do_not_depend_on_packing(heads: int) -> None:
    """Vertices share vectors where their number allows it: 24 do, the first 23 of them do not."""
    hidden, inner, weight, bias, bounds, base = make(6, (2, 24, heads, 2), 1.0)
    packed, single = (
        cpu_field.perturb(hidden[:, :count], inner, weight, bias, bounds, base[:count], None, None, None)[0]
        for count in (24, 23)
    )
    assert torch.equal(packed[:, :23], single)


def test_opcheck() -> None:
    one, two = ([x.requires_grad_() for x in make(2, (2, 5, 4, 1), 1.0, targets)] for targets in (0, 7))
    torch.library.opcheck(cpu_field.perturb.overload, (*one, None, None, None))
    torch.library.opcheck(cpu_field.perturb.overload, (*two, *mix(2, 5, 7)))


def test_bound_above_one_raises() -> None:
    tensors = make(3, (1, 2, 2, 1), 1.0)
    with pytest.raises(ConfigError, match="bounds up to 1"):
        cpu_field.perturb(*tensors[:4], torch.tensor([1.5]), tensors[-1], None, None, None)


def test_wrong_shapes_raise() -> None:
    one, two = make(4, (1, 3, 2, 1), 1.0), make(4, (1, 3, 2, 1), 1.0, 5)
    with pytest.raises(ConfigError, match="every shell has a bound: got 1 for 2"):
        cpu_field.perturb(*two[:4], two[4][:1], *two[5:], *mix(4, 3, 5))
    with pytest.raises(ConfigError, match="a shell of 5 vertices needs as many rows"):
        cpu_field.perturb(*two[:6], two[6], *mix(4, 3, 4))
    with pytest.raises(ConfigError, match="a shell of 2 vertices needs as many rows"):
        cpu_field.perturb(*one[:5], one[5][:2], None, None, None)


def test_odd_width_uses_plain_perturbation() -> None:
    """The loops process hidden elements in pairs; an odd width would exceed the arrays."""
    hidden, inner, weight, bias, bounds, base = make(5, (2, 3, 2, 1), 1.0)
    odd = hidden[..., :6], inner[:6], weight[:, :3], bias
    with pytest.raises(ConfigError, match="pairs of hidden numbers: got 3"):
        cpu_field.perturb(*odd, bounds, base, None, None, None)
    found, _ = perturb(odd[0], Network(*odd[1:]), bounds, base)
    assert relative_error(found, plain(*odd, bounds, base)[0]) < 1e-12
