"""The fused CPU attention: any shape, any number of threads, compiled, forked, without Numba."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from helpers.kernel_inputs import assert_equal, make_problem, run
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.kernels import backends
from quatsphere.kernels.cpu import attention as cpu_attention
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS

pytestmark = pytest.mark.skipif(not cpu_attention.available(), reason="numba is not installed")


@pytest.fixture
def threads():
    """Set torch's number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@settings(max_examples=40)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 40), st.integers(1, 32), st.integers(1, 8)),
    st.integers(0, 10**6),
    st.sampled_from(ROUTINGS),
    st.sampled_from(TRANSPORTS),
    st.booleans(),
)
def test_equals_reference_for_any_number_of_heads(
    sizes: tuple[int, ...], seed: int, routing: str, transport: str, keep: bool
) -> None:
    B, T, S, H, channels = sizes
    k = 1 + seed % min(S, 9)
    assert_equal(make_problem(seed, (B, T, S, k, H, channels), routing, transport, keep), "numba_cpu")


@pytest.mark.parametrize("images", [1, 5], ids=["by_vertices", "by_images"])
@pytest.mark.parametrize("routing", ["alignment", "geometric"])
def test_bit_identical_for_any_number_of_threads(routing: str, images: int, threads) -> None:
    """With a second thread, one image with one block of heads is split by vertices."""
    problem = make_problem(0, (images, 100, 70, 6, 8, 3), routing, keep=True)
    found = []
    for count in (1, 2, 2, 3, 7):
        threads(count)
        found.append(run(problem, "numba_cpu", torch.float32))
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5])
def test_images_do_not_depend_on_their_batch(heads: int) -> None:
    """Few heads leave lanes to other images; the last of five images shares its vector with fewer than the others."""
    problem = make_problem(4, (5, 9, 7, 3, heads, 2), keep=True)
    probe = torch.randn(*problem.target_field.shape[:3], 2, 4, generator=torch.Generator().manual_seed(0))

    def gradients(images: slice) -> list[Tensor]:
        names = ("target_field", "source_field", "features")
        leaves = {name: getattr(problem, name)[images].float().requires_grad_() for name in names}
        rest = {"beta": problem.beta.float(), "target_directions": None, "source_directions": None}
        out = cpu_attention.quaternion_attention(replace(problem, **leaves, **rest, keep=problem.keep[images]))
        return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), probe[images])]

    together = gradients(slice(None))
    for image in range(5):
        alone = gradients(slice(image, image + 1))
        assert all(torch.equal(a[image : image + 1], b) for a, b in zip(together, alone, strict=True))


def test_strided_inputs() -> None:
    problem = make_problem(1, (2, 6, 5, 3, 4, 2))
    strided = replace(problem, features=problem.features.transpose(0, 1).contiguous().transpose(0, 1))
    assert not strided.features.is_contiguous()
    assert torch.equal(cpu_attention.quaternion_attention(strided), cpu_attention.quaternion_attention(problem))


def test_nan_propagates() -> None:
    problem = make_problem(2, (1, 4, 4, 4, 2, 1))
    problem.features[0, 0, 0, 0, 1] = float("nan")
    problem.source_field[0, 1, 1, 2] = float("nan")
    out = cpu_attention.quaternion_attention(problem)
    assert out[0, :, 0].isnan().any(-1).all()
    assert out[0, :, 1].isnan().any(-1).all()


def test_extreme_scores_are_finite_and_accurate() -> None:
    problem = replace(make_problem(3, (1, 6, 6, 4, 3, 2)), beta=torch.tensor([0.0, 60.0, 1e4], dtype=torch.float64))
    exact = run(problem, "reference", torch.float64)
    double, single = (run(problem, "numba_cpu", dtype) for dtype in (torch.float64, torch.float32))
    assert all(relative_error(double[name], exact[name]) < 1e-10 for name in exact)
    assert all(value.isfinite().all() for value in single.values())


def test_neighbour_out_of_range_raises() -> None:
    problem = make_problem(4, (1, 6, 6, 4, 3, 2))
    problem.neighbours[2, 1] = 6
    with pytest.raises(IndexError, match=r"neighbours must lie in 0..5"):
        cpu_attention.quaternion_attention(problem)


def test_opcheck() -> None:
    """Schema, fake kernel and autograd registration, also with gradients switched off for some inputs."""
    problem = make_problem(5, (2, 6, 5, 3, 4, 2), "geometric")
    tensors = [problem.target_field, problem.source_field, problem.features.requires_grad_(), problem.neighbours]
    tensors += [problem.beta.requires_grad_(), None, problem.target_directions, problem.source_directions]
    torch.library.opcheck(cpu_attention.attend.overload, (*tensors, 3, 0, 1.0))


def test_compiled_equals_eager() -> None:
    """The operator itself: dynamo cannot trace the shape checks that pytest wraps around the entry point."""
    problem = make_problem(6, (2, 6, 5, 3, 4, 2))
    rest = (problem.neighbours, problem.beta, None, None, None, 0, 0, 1.0)

    def attend(field: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return cpu_attention.attend(problem.target_field, 1.0 * field, features + 1, *rest).sin()

    leaves = [problem.source_field.requires_grad_(), problem.features.requires_grad_()]
    graph = torch.compile(attend, fullgraph=True, backend="aot_eager")
    eager, compiled = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (attend, graph))
    assert all(torch.allclose(a, b) for a, b in zip(eager, compiled, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="forks are tested on Linux")
def test_runs_in_a_forked_child(threads) -> None:
    problem = make_problem(7, (4, 40, 30, 3, 8, 2))
    threads(2)
    run(problem, "numba_cpu", torch.float32)
    child = multiprocessing.get_context("fork").Process(target=cpu_attention.quaternion_attention, args=(problem,))
    child.start()
    child.join(30)
    assert child.exitcode == 0


def test_import_does_not_import_numba() -> None:
    code = "import sys, quatsphere; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_numba_auto_chooses_factored(monkeypatch) -> None:
    monkeypatch.delitem(backends.BACKENDS, "numba_cpu")
    name, reason = backends.explain_backend("auto")
    assert name == "factored"
    assert "numba is not installed" in reason
