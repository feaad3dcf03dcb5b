"""The fused step equals its separate operators: bit-identical values, equal gradients, any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable
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


def narrow(step: dict[str, Any], rules: tuple[str, str]) -> Tensor:
    """The step under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        assert select_backend("numba_cpu", "cpu").supports_step(step["tokens"], step["bases"][0]) is None
        return whole(step, rules)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("sizes", [(3, 12, 8, 2, 5), (1, 3, 1, 1, 2), (2, 31, 3, 5, 4), (4, 24, 17, 4, 8)])
def test_autocast_narrows_factors_of_products_only(sizes: Sizes, cross: bool) -> None:
    """Values and gradients under autocast are those in float64 up to the rounding of bfloat16 factors, eight bits.

    Heads of 16 channels and at least 48 tokens fill whole blocks of the Hamilton block, the other sizes do not.
    """
    step, rules = make(3, sizes, cross, dropped=True), ("alignment", "sandwich")
    exact = run(parts, step, torch.float64, rules, "factored")
    found = run(narrow, step, torch.float32, rules)
    assert found[0].dtype == torch.float32
    for value, expected in zip(found, exact, strict=True):
        scale = max(float(expected.norm()), math.prod(sizes[:3]) ** 0.5)  # a bound's is a sum over vertices: it cancels
        assert float((value.double() - expected).norm()) <= 2**-6 * scale
    assert relative_error(found[0], exact[0]) > 1e-6  # the product was narrow


def test_backward_ignores_autocast() -> None:
    step, rules = make(3, (2, 9, 3, 2, 4), True, False), ("alignment", "sandwich")
    outside = run(narrow, step, torch.float32, rules)
    with torch.autocast("cpu", torch.bfloat16):
        inside = run(narrow, step, torch.float32, rules)
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))


@pytest.mark.parametrize("name", ["tokens", "first", "post"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_autocast_keeps_numbers_that_are_not_finite(name: str, number: float) -> None:
    """A step that has gone wrong is noticed by its loss and by the gradients of its weights."""
    step, rules = make(3, (2, 30, 3, 4, 4), True, False), ("alignment", "sandwich")
    (step[name][0] if name == "post" else step[name]).view(-1)[0] = number
    value, *gradients = run(narrow, step, torch.float32, rules)
    assert not value.isfinite().all()
    assert not all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("heads", "channels"), [(16, 4), (4, 2), (3, 1), (5, 3)])
def test_bit_identical_to_fused_separate_operators(heads: int, channels: int, cross: bool) -> None:
    step, rules = make(3, (4, 24, heads, channels, 8), cross, True), ("alignment", "sandwich")
    found, expected = run(whole, step, torch.float32, rules), run(parts, step, torch.float32, rules, "numba_cpu")
    assert torch.equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("function", [whole, narrow])
@pytest.mark.parametrize("images", [1, 2, 9])
def test_bit_identical_for_any_number_of_threads(images: int, function: Callable[..., Tensor]) -> None:
    """The gradient of `first` is a product by torch: it is as independent of the threads as torch's product is."""
    vertices, heads, channels = 700, 16, 4
    step, before = make(1, (images, vertices, heads, channels, 8), True, True), torch.get_num_threads()
    dtype, tolerance = (torch.bfloat16, 2**-8) if function is narrow else (torch.float32, 1e-6)
    left, right = torch.randn(2, images * vertices, 4 * heads * channels).to(dtype)
    found, products = [], []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(function, step, torch.float32, ("alignment", "sandwich")))
        products.append(left.T @ right)
    torch.set_num_threads(before)
    first = [gradients.pop(1 + LEAVES.index("first")) for gradients in found]
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    if all(torch.equal(products[0], product) for product in products[1:]):
        assert all(torch.equal(first[0], gradient) for gradient in first[1:])
    else:  # MKL on Intel processors splits long sums among threads
        assert all(relative_error(first[0], gradient) < tolerance for gradient in first[1:])


def in_float32(step: dict[str, Any]) -> dict[str, Any]:
    """The step with tensors in float32 instead of float64."""
    changed = {name: [x.float() for x in step[name]] for name in ("network", "bases", "post", "gate")}
    changed |= {name: step[name].float() for name in ("tokens", "first", "bounds", "beta")}
    mixing = step["mixing"] and step["mixing"]._replace(shares=step["mixing"].shares.float())
    return step | changed | {"mixing": mixing}


@pytest.mark.parametrize("products", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("cross", [False, True])
def test_opcheck(cross: bool, products: torch.dtype) -> None:
    step = make(2, (2, 6, 3, 1, 2), cross, True)
    step = in_float32(step) if products == torch.bfloat16 else step
    first = step["first"].to(products)
    leaves = [x.requires_grad_() for x in (step["tokens"], first, *step["network"], step["bounds"])]
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


def test_inference_under_autocast_equals_training() -> None:
    """Also after a change of a weight, and with the weights of both precisions in the cache."""
    step, rules = in_float32(make(5, (2, 25, 3, 4, 4), True, False)), ("alignment", "sandwich")
    for _ in range(2):
        for function in (whole, narrow):
            with torch.no_grad():
                found = function(step, rules)
            assert torch.equal(found, function(step, rules))
        step["post"][0].data.mul_(0.9)  # no new version, as fused optimisers do it


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
