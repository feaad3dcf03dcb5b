"""The fused GPU kernel equals the oracle: on a GPU if there is one, else in Triton's interpreter on the CPU.

Triton chooses between the two when it is first imported, so the interpreter needs a separate process, with
TRITON_INTERPRET=1: `test_gpu.py` starts it. The interpreter's time grows with the number of programs, one per vertex,
so problems are small.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.kernel_inputs import DIFFERENTIABLE, make_problem
from hypothesis import given, settings
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.geometry import sphere
from quatsphere.geometry.neighbours import knn_budget, nearest_neighbours
from quatsphere.kernels import AttentionInputs, backends, quaternion_attention, reference
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS
from quatsphere.randomness import draw_mask, keep_scale

if not gpu_attention.available() or not (torch.cuda.is_available() or gpu_attention.INTERPRETED):
    pytest.skip("needs triton and a GPU or TRITON_INTERPRET=1 (test_gpu.py)", allow_module_level=True)

from quatsphere.kernels.gpu import launch, self_check
from quatsphere.kernels.gpu.kernels import attention

DEVICE = "cpu" if gpu_attention.INTERPRETED else "cuda"


def cast(problem: AttentionInputs, dtype: torch.dtype, **others: torch.dtype) -> AttentionInputs:
    """The problem on the device under test, in `dtype`; some tensors by name in another type."""
    tensors = {name: getattr(problem, name).to(DEVICE, others.get(name, dtype)) for name in DIFFERENTIABLE}
    keep = None if problem.keep is None else problem.keep.to(DEVICE)
    return replace(problem, neighbours=problem.neighbours.to(DEVICE), keep=keep, **tensors)


def run(backend: Any, problem: AttentionInputs) -> dict[str, Tensor]:
    """Output and all gradients of a fixed scalar of it, by name; without those that are exactly zero."""
    leaves = {name: getattr(problem, name).detach().requires_grad_() for name in DIFFERENTIABLE}
    out = backend(replace(problem, **leaves))
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    gradients = torch.autograd.grad((out * probe).sum(), list(leaves.values()), allow_unused=True)
    found = {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None and bool(g.abs().max() > 0)}
    return {"output": out.detach(), **found}


def run_hashed(problem: AttentionInputs) -> dict[str, Tensor]:
    """`run` of the fused kernel with a mask that it hashes itself: that of `with_drawn_mask`."""
    keys = torch.arange(len(problem.features), device=DEVICE) + 5

    def attend(inputs: AttentionInputs) -> Tensor:
        tensors = (inputs.target_field, inputs.source_field, inputs.features, inputs.neighbours, inputs.beta, keys)
        rules = (ROUTINGS.index(inputs.routing), TRANSPORTS.index(inputs.transport), SITE, inputs.keep_scale)
        return gpu_attention.attend_gpu(*tensors, inputs.target_directions, inputs.source_directions, *rules)[0]

    return run(attend, problem)


SITE = 2**62 + 3


def with_drawn_mask(problem: AttentionInputs, rate: float = 0.3) -> AttentionInputs:
    """The problem with the mask of `randomness.draw_mask`."""
    keys = torch.arange(len(problem.features)) + 5
    mask = draw_mask(keys, SITE, (*problem.neighbours.shape, len(problem.beta)), rate)
    return replace(problem, keep=mask, keep_scale=keep_scale(rate))


def assert_equals_reference(problem: AttentionInputs, dtype: torch.dtype, fused: Any = None) -> None:
    """In float64 to 1e-10, in float32 to 1e-5; the oracle always in float64."""
    exact = run(reference.quaternion_attention, cast(problem, torch.float64))
    found = (fused or run_fused)(cast(problem, dtype))
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    for name, expected in exact.items():
        if expected.abs().max() < 1e-12:  # exactly zero in exact arithmetic
            continue
        assert relative_error(found[name], expected) < tolerance, name


def run_fused(problem: AttentionInputs) -> dict[str, Tensor]:
    """`run` of the fused kernel."""
    return run(gpu_attention.quaternion_attention, problem)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference_in_double(routing: str, transport: str) -> None:
    assert_equals_reference(make_problem(0, (1, 3, 4, 3, 3, 2), routing, transport, True), torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference_without_a_mask(routing: str, transport: str) -> None:
    assert_equals_reference(make_problem(0, (2, 9, 7, 4, 3, 2), routing, transport), torch.float64)


@pytest.mark.parametrize(("routing", "transport"), list(zip(ROUTINGS, (*TRANSPORTS, "sandwich"), strict=True)))
def test_equals_reference_in_single(routing: str, transport: str) -> None:
    assert_equals_reference(make_problem(1, (2, 3, 2, 2, 2, 1), routing, transport), torch.float32)


@pytest.mark.parametrize("heads", [3, 4, 8])
def test_masks_hashed_in_the_kernel_are_those_of_draw_mask(heads: int) -> None:
    """Bit for bit: every kept weight and every dropped one changes the result by far more than the tolerance."""
    problem = with_drawn_mask(make_problem(16, (2, 2, 4, 3, heads, 1)))
    assert_equals_reference(problem, torch.float64, run_hashed)


def test_equals_reference_with_neighbours_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five neighbours, two at a time: the running softmax, and the last chunk is not full."""
    monkeypatch.setattr(launch, "CHUNK", 2)
    monkeypatch.setattr(launch, "BACKWARD_CHUNK", 2)
    assert_equals_reference(make_problem(3, (1, 3, 6, 5, 2, 1), "geometric", keep=True), torch.float64)


@pytest.mark.parametrize("keep", [False, True], ids=["all", "keep"])
def test_gradients_of_gradients(keep: bool) -> None:
    """By plain torch, from the graph of the fused kernel."""
    problem = cast(make_problem(2, (1, 3, 3, 2, 2, 1), "geometric", "sandwich", keep), torch.float64)
    found = []
    for backend in (gpu_attention.quaternion_attention, reference.quaternion_attention):
        leaves = {name: getattr(problem, name).detach().requires_grad_() for name in DIFFERENTIABLE}
        out = backend(replace(problem, **leaves)).square().sum()
        gradients = torch.autograd.grad(out, list(leaves.values()), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), list(leaves.values())))
    for fused, expected in zip(*found, strict=True):
        assert relative_error(fused, expected) < 1e-10


SHAPES = st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4), st.integers(1, 32), st.integers(1, 8))
RULES = st.tuples(st.sampled_from(ROUTINGS), st.sampled_from(TRANSPORTS), st.booleans())


@settings(max_examples=4)
@given(SHAPES, st.integers(0, 10**6), RULES)
def test_equals_reference_on_random_shapes(sizes: tuple[int, ...], seed: int, rules: tuple[str, str, bool]) -> None:
    B, T, S, H, Q = sizes
    assert_equals_reference(make_problem(seed, (B, T, S, 1 + seed % S, H, Q), *rules), torch.float64)


@pytest.mark.slow
@settings(max_examples=40)
@given(SHAPES, st.integers(0, 10**6), RULES, st.sampled_from([torch.float32, torch.float64]))
def test_equals_reference_on_many_random_shapes(
    sizes: tuple[int, ...], seed: int, rules: tuple[str, str, bool], dtype: torch.dtype
) -> None:
    B, T, S, H, Q = sizes
    assert_equals_reference(make_problem(seed, (B, T, S, 1 + seed % S, H, Q), *rules), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_equals_reference_on_a_real_graph(routing: str, transport: str, dtype: torch.dtype) -> None:
    """Targets on the second shell, sources on the first, 14 neighbours each; sources have few or many edges."""
    source, target = sphere.fibonacci_sphere(128), sphere.fibonacci_sphere(192, 0.85)
    graph = nearest_neighbours(target, source, knn_budget(192))
    problem = make_problem(2, (1, 192, 128, 14, 2, 2), routing, transport, True, graph)
    assert_equals_reference(replace(problem, target_directions=sphere.directions(target).double()), dtype)


def test_sources_with_many_and_with_no_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """All targets use source 0 (more than one round of edges), none uses the last one: its gradient is 0."""
    monkeypatch.setattr(launch, "BACKWARD_CHUNK", 4)
    T, S = launch.BACKWARD_CHUNK + 3, 5
    graph = torch.stack((torch.zeros(T, dtype=torch.int64), 1 + torch.arange(T) % (S - 2)), dim=1)
    problem = make_problem(4, (1, T, S, 2, 2, 1), graph=graph)
    assert_equals_reference(problem, torch.float64)
    found = run_fused(cast(problem, torch.float64))
    assert not found["features"][:, -1].any()
    assert not found["source_field"][:, -1].any()


@pytest.mark.parametrize("narrow", ["features", "everything"])
def test_bfloat16_inputs_are_summed_in_float32(narrow: str) -> None:
    """Output as from the rounded inputs in double; a gradient is rounded once, to the type of its input.

    (To nearest on a GPU; the interpreter truncates, hence 2⁻⁷.)
    """
    others = dict.fromkeys(DIFFERENTIABLE if narrow == "everything" else ["features"], torch.bfloat16)
    problem = cast(make_problem(5, (2, 3, 4, 3, 3, 2), keep=True), torch.float32, **others)
    exact = run(reference.quaternion_attention, cast(problem, torch.float64))
    fused = run_fused(problem)
    assert fused["output"].dtype == torch.float32
    for name, expected in exact.items():
        assert fused[name].dtype == ({"output": torch.float32} | others).get(name, torch.float32)
        tolerance = 1e-5 if fused[name].dtype == torch.float32 else 2**-7
        assert relative_error(fused[name], expected) < tolerance, name


def test_entry_point_passes_narrow_features() -> None:
    problem = cast(make_problem(6, (1, 3, 4, 3, 2, 2)), torch.float32, features=torch.bfloat16)
    arguments = (problem.target_field, problem.source_field, problem.features, problem.neighbours, problem.beta)
    out = quaternion_attention(*arguments, backend="triton_gpu")
    assert out.dtype == torch.float32
    assert torch.equal(out, gpu_attention.quaternion_attention(problem))


@pytest.mark.parametrize("routing", ["alignment", "geometric"])
def test_repeated_runs_are_bit_identical(routing: str) -> None:
    problem = cast(make_problem(7, (1, 3, 4, 3, 3, 2), routing, keep=True), torch.float32)
    first, second = (run_fused(problem) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_strided_inputs() -> None:
    problem = cast(make_problem(8, (2, 2, 3, 2, 4, 2)), torch.float64)
    strided = replace(problem, features=problem.features.transpose(0, 1).contiguous().transpose(0, 1))
    assert not strided.features.is_contiguous()
    assert torch.equal(gpu_attention.quaternion_attention(strided), gpu_attention.quaternion_attention(problem))


def test_nan_propagates() -> None:
    problem = cast(make_problem(9, (1, 3, 4, 4, 2, 1)), torch.float32)
    problem.features[0, 0, 0, 0, 1] = float("nan")
    problem.source_field[0, 1, 1, 2] = float("nan")
    out = gpu_attention.quaternion_attention(problem)
    assert out[0, :, 0].isnan().any(-1).all()
    assert out[0, :, 1].isnan().any(-1).all()


def test_extreme_scores_are_finite_and_accurate() -> None:
    problem = replace(make_problem(10, (1, 3, 4, 4, 3, 1)), beta=torch.tensor([0.0, 60.0, 1e4], dtype=torch.float64))
    assert_equals_reference(problem, torch.float64)
    assert all(value.isfinite().all() for value in run_fused(cast(problem, torch.float32)).values())


def test_neighbour_out_of_range_makes_its_target_nan() -> None:
    """And no other; no memory outside the tensors is read. The public entry point raises instead."""
    problem = cast(make_problem(11, (1, 4, 6, 3, 2, 1)), torch.float32)
    problem.neighbours[2, 1], problem.neighbours[3, 0] = 6, -1
    out = gpu_attention.quaternion_attention(problem)
    assert out[0, 2:].isnan().all()
    assert out[0, :2].isfinite().all()


def operands(problem: AttentionInputs) -> list[Tensor | None]:
    tensors = [problem.target_field, problem.source_field, problem.features.requires_grad_(), problem.neighbours]
    return [*tensors, problem.beta.requires_grad_(), None, problem.target_directions, problem.source_directions]


@pytest.mark.slow
def test_opcheck() -> None:
    """Schema, fake kernel and autograd registration, also with gradients switched off for some inputs."""
    problem = cast(make_problem(12, (2, 3, 4, 2, 2, 1)), torch.float64, features=torch.float32)
    torch.library.opcheck(gpu_attention.attend_gpu.overload, (*operands(problem), 3, 0, 0, 1.0))


def test_compiled_equals_eager() -> None:
    """The operator itself: dynamo cannot trace the shape checks that pytest wraps around the entry point."""
    problem = cast(make_problem(13, (1, 3, 3, 2, 2, 1)), torch.float64)
    rest = operands(problem)[3:]

    def attend(field: Tensor, features: Tensor) -> Tensor:
        return gpu_attention.attend_gpu(problem.target_field, 1.0 * field, features + 1, *rest, 0, 0, 0, 1.0)[0].sin()

    leaves = [problem.source_field.requires_grad_(), problem.features]
    graph = torch.compile(attend, fullgraph=True, backend="aot_eager")
    eager, compiled = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (attend, graph))
    assert all(torch.allclose(a, b) for a, b in zip(eager, compiled, strict=True))


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `auto` choose the fused kernel on the device under test, after a self-check of one small problem."""
    monkeypatch.setitem(backends.FUSED, DEVICE, backends.FUSED["cuda"])
    monkeypatch.setattr(self_check, "_faults", {})
    monkeypatch.setattr(self_check, "CASES", [(*self_check.CASES[-1][:-1], (1, 2, 3, 2, 2, 1))])
    monkeypatch.setattr(self_check, "STEP_CASES", ())
    monkeypatch.setattr(self_check, "DOT_SIZES", (1, 2, 2, 2, 1, 1))
    return DEVICE


def test_auto_uses_the_kernel_after_one_self_check(auto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.explain_backend("auto", auto) == ("triton_gpu", backends.FUSED["cuda"].description)
    monkeypatch.setattr(self_check, "find_fault", lambda device: "checked twice")
    assert backends.choose_backend("auto", auto) == "triton_gpu"


@pytest.mark.skipif(
    hasattr(quaternion_attention, "__wrapped__"), reason="dynamo cannot trace shape checks; -o addopts="
)
def test_self_check_runs_during_tracing(auto: str) -> None:
    """The entry point in one graph, `auto` deciding during the trace."""
    problem = cast(make_problem(15, (1, 2, 4, 3, 2, 2)), torch.float32, features=torch.bfloat16)
    rest = (problem.features, problem.neighbours, problem.beta)

    def attend(target_field: Tensor, source_field: Tensor) -> Tensor:
        return quaternion_attention(target_field, source_field, *rest)

    out = torch.compile(attend, fullgraph=True, backend="aot_eager")(problem.target_field, problem.source_field)
    assert list(self_check._faults.values()) == [None]
    assert torch.equal(out, gpu_attention.quaternion_attention(problem))


@pytest.mark.slow
def test_full_self_check_passes() -> None:
    assert self_check.find_fault(torch.device(DEVICE)) is None


class Broken:
    """A kernel with the wrong transport, as after a miscompilation."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *args, **constants: self.kernel[grid](*args, **{**constants, "TRANSPORT": 1})


def test_auto_falls_back_from_a_broken_kernel_with_a_warning(
    auto: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attention, "attend_kernel", Broken(attention.attend_kernel))
    problem = cast(make_problem(14, (1, 2, 3, 3, 2, 2)), torch.float32)
    arguments = (problem.target_field, problem.source_field, problem.features, problem.neighbours, problem.beta)
    out = quaternion_attention(*arguments)
    assert torch.equal(out, quaternion_attention(*arguments, backend="factored"))
    name, reason = backends.explain_backend("auto", auto)
    assert name == "factored"
    assert "failed its self-check: routing geometric, transport sandwich: output is off by" in reason
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the slower 'factored' runs" in caplog.text


def test_auto_falls_back_from_a_kernel_that_raises(auto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "lift_sources_kernel", None)
    assert "TypeError" in backends.explain_backend("auto", auto)[1]
    assert backends.choose_backend("auto", auto) == "factored"
