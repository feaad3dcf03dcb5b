"""The fused step equals its separate operators: bit-identical values, equal gradients, any number of threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.step_inputs import LEAVES, Sizes, fused_inputs, make, parts, run
from hypothesis import given
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.kernels import cpu, select_backend
from quatsphere.kernels.cpu import step as cpu_step

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def whole(step: dict[str, Any], rules: tuple[str, str]) -> Tensor:
    return select_backend("numba_cpu", "cpu").step(fused_inputs(step, rules))


@given(
    st.tuples(st.integers(1, 5), st.integers(2, 30), st.integers(1, 17), st.integers(1, 5), st.integers(1, 9)),
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["alignment", "absolute", "uniform"]),
    st.sampled_from(["sandwich", "identity", "one_sided"]),
)
def test_equals_separate_operators(
    sizes: Sizes, seed: int, cross: bool, dropped: bool, routing: str, transport: str
) -> None:
    step, rules = make(seed, sizes, cross, dropped), (routing, transport)
    exact = run(parts, step, torch.float64, rules, "factored")
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for found, expected in zip(run(whole, step, dtype, rules), exact, strict=True):
            scale = max(float(expected.abs().max()), 1.0)  # gradients that are sums may cancel
            assert float((found.double() - expected).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("cross", [False, True])
def test_autocast_narrows_factors_of_products_only(cross: bool) -> None:
    """Values and gradients under autocast are those in float64 up to the rounding of bfloat16 factors, eight bits."""
    step, rules = make(3, (3, 12, 8, 2, 5), cross, dropped=True), ("alignment", "sandwich")
    exact = run(parts, step, torch.float64, rules, "factored")

    def narrow(given_: dict[str, Any]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            backend = select_backend("numba_cpu", "cpu")
            assert backend.supports_step(given_["tokens"], given_["bases"][0]) is None
            return whole(given_, rules)

    found = run(narrow, step, torch.float32)
    assert found[0].dtype == torch.float32
    for value, expected in zip(found, exact, strict=True):
        scale = max(float(expected.norm()), (3 * 12 * 8) ** 0.5)  # a bound's is a sum over vertices, which cancels
        assert float((value.double() - expected).norm()) <= 2**-6 * scale
    assert relative_error(found[0], exact[0]) > 1e-6  # the product was narrow


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("heads", "channels"), [(16, 4), (4, 2), (3, 1), (5, 3)])
def test_bit_identical_to_fused_separate_operators(heads: int, channels: int, cross: bool) -> None:
    step, rules = make(3, (4, 24, heads, channels, 8), cross, True), ("alignment", "sandwich")
    found, expected = run(whole, step, torch.float32, rules), run(parts, step, torch.float32, rules, "numba_cpu")
    assert torch.equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("images", [1, 2, 9])
def test_bit_identical_for_any_number_of_threads(images: int) -> None:
    """The gradient of `first` is a product by torch: it is as independent of the threads as torch's product is."""
    vertices, heads, channels = 700, 16, 4
    step, before = make(1, (images, vertices, heads, channels, 8), True, True), torch.get_num_threads()
    left, right = torch.randn(2, images * vertices, 4 * heads * channels)
    found, products = [], []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(whole, step, torch.float32, ("alignment", "sandwich")))
        products.append(left.T @ right)
    torch.set_num_threads(before)
    first = [gradients.pop(1 + LEAVES.index("first")) for gradients in found]
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    if all(torch.equal(products[0], product) for product in products[1:]):
        assert all(torch.equal(first[0], gradient) for gradient in first[1:])
    else:  # MKL on Intel processors splits long sums among threads
        assert all(relative_error(first[0], gradient) < 1e-6 for gradient in first[1:])


@pytest.mark.parametrize("cross", [False, True])
def test_opcheck(cross: bool) -> None:
    step = make(2, (2, 6, 3, 1, 2), cross, True)
    leaves = [x.requires_grad_() for x in (step["tokens"], step["first"], *step["network"], step["bounds"])]
    bases = [*step["bases"], *([] if cross else [None])]
    mixture, masks = step["mixing"] or (None, None), step["kept"][:4]
    rest = (step["beta"], *step["post"], *(step["gate"] or [None]), step["neighbours"], *mixture, *masks, 0, 0)
    torch.library.opcheck(cpu_step.step.overload, (*leaves, *bases, *rest))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("heads", [3, 8])
@pytest.mark.parametrize("cross", [False, True])
def test_inference_cache_notices_changed_parameters(cross: bool, heads: int, strided: bool) -> None:
    """Also for few heads, where vertices share vectors, and for base quaternions that are not contiguous."""
    step, rules = make(5, (2, 12, heads, 2, 4), cross, False), ("alignment", "sandwich")
    if strided:
        step["bases"] = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in step["bases"]]
    changed = [x for name in LEAVES for x in (step[name] if isinstance(step[name], list) else [step[name]])]

    def agree() -> bool:
        return torch.equal(whole(step, rules), parts(step, rules, "numba_cpu"))

    with torch.no_grad():
        assert agree()
        for tensor in changed:
            factors = torch.linspace(0.9, 0.8, tensor.numel()).view(tensor.shape)
            tensor.data.mul_(factors)  # no new version, as fused optimisers do it
            assert agree()
        step["neighbours"] = step["neighbours"].flip(0)
        assert agree()
    with torch.inference_mode():
        step["neighbours"] = step["neighbours"].flip(0)  # a tensor without a version
        assert agree()


@pytest.mark.parametrize("images", [1, 16, 17, 33])
def test_first_layer_gradient_in_blocks(images: int) -> None:
    from quatsphere.kernels.cpu.step import _first_layer_backward

    generator = torch.Generator().manual_seed(images)
    gradient, tokens, tokens_grad = torch.randn(3, images, 5, 8, generator=generator, dtype=torch.float64)
    first = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    expected = tokens_grad + gradient @ first
    found = _first_layer_backward(gradient, tokens, first, tokens_grad)
    assert torch.allclose(tokens_grad, expected, rtol=0, atol=1e-12)
    assert torch.allclose(found, torch.einsum("bvn,bvk->nk", gradient, tokens), rtol=0, atol=1e-12)
