"""Cost of the Triton kernels, without a GPU: compiled for three architectures, within budgets that may only fall.

Paper size: 16 neighbours, 16 heads of 4 channels, masks hashed in the kernels. Instructions are those of all warps for
one vertex, as a target and as a source for `attention_gradients`; a loop over edges counts as often as 16 edges need,
and so does that of the residual. `perturb_gradients` counts what a program does once for its four vertices in full, and
`sum_parts`, whose work does not depend on the images, as one warp. With `-s` the table of docs/gpu.md is printed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.compiled_kernels import Cost, Launch, compile_launch, read_cost, record_launches
from helpers.kernel_inputs import make_problem
from helpers.step_inputs import fused_inputs, make

from quatsphere.kernels import DropoutMasks
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.gpu import dot_product as gpu_dot_product
from quatsphere.kernels.gpu import step as gpu_step
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, working_dtype

pytest.importorskip("triton")
if gpu_attention.INTERPRETED:
    pytest.skip("the interpreter replaces the compiler", allow_module_level=True)

from quatsphere.kernels.gpu import launch

B, T, S, K, H, Q = PAPER = (2, 384, 320, 16, 16, 4)
ATTENTION = ("attend",)
BUDGETS = {
    "lift_sources": (150, 36),
    "lift_gradient": (190, 40),
    "attend": (890, 168),
    "attention_gradients": (5310, 164),
    "perturb": (820, 100),
    "perturb_gradients": (1850, 238),
    "hamilton": (2800, 160),
    "hamilton_gradients": (5650, 203),
    "sum_parts": (1110, 40),
    "dot_attend": (1340, 122),
    "dot_target_gradients": (1580, 232),
    "dot_source_gradients": (760, 140),
}
"""Kernel -> (instructions per vertex, registers), the largest of sm_80, sm_86 and sm_90. No kernel may spill."""
VERTICES = {"lift_sources": S, "lift_gradient": T, "hamilton": T, "hamilton_gradients": T}
"""Vertices per image of the kernels whose grid does not begin with them."""
ARCHITECTURES = [80, pytest.param(86, marks=pytest.mark.slow), pytest.param(90, marks=pytest.mark.slow)]


def attention_launches(
    sizes: tuple[int, ...], routing: str, transport: str, keep: str | None, dtype: torch.dtype, patch: Any
) -> list[Launch]:
    """Launches of a forward and backward pass, on CPU tensors that are never read."""
    problem = make_problem(0, sizes, routing, transport, keep is not None)
    mask = {None: None, "stored": problem.keep, "hashed": torch.zeros(sizes[0], dtype=torch.int64)}[keep]
    tensors = [problem.target_field, problem.source_field, problem.features, problem.neighbours, problem.beta]
    tensors += [mask, problem.target_directions, problem.source_directions]
    tensors = [t.to(dtype) if t is not None and t.is_floating_point() else t for t in tensors]
    modes = launch.Modes(ROUTINGS.index(routing), TRANSPORTS.index(transport), 2**62 + 1, 1.25)
    wide = working_dtype(tensors[2])
    out = torch.zeros(sizes[0], sizes[1], *tensors[2].shape[2:], dtype=wide)
    sums = torch.zeros(out.shape[:3], dtype=wide)
    with patch.context() as recording:
        launches = record_launches(recording)
        launch.launch_attention(tuple(tensors), modes, out, sums)
        into = [torch.zeros_like(tensors[index]) for index in (0, 1, 2, 4, 6, 7)]
        launch.launch_attention_backward(tuple(tensors), modes, (out, out, sums), into)
    return launches


def cost_per_vertex(launched: Launch, architecture: int) -> Cost:
    """Cost of a kernel, with the instructions of all warps of all programs for one vertex."""
    rounds = math.ceil(K / launched.constants.get("CHUNK", K))
    cost = read_cost(compile_launch(launched, ("cuda", architecture, 32)), rounds)
    if launched.name == "sum_parts":
        return cost
    warps = math.prod(launched.grid) * launched.constants["num_warps"]
    vertices = VERTICES.get(launched.name, launched.grid[0])
    return cost._replace(instructions=math.ceil(cost.instructions * warps / (B * vertices)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_attention_stays_within_its_budget(architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = attention_launches(PAPER, "alignment", "sandwich", "hashed", torch.float32, monkeypatch)
    assert_within_budgets(launches, architecture)


def assert_within_budgets(launches: list[Launch], architecture: int) -> None:
    for launched in launches:
        name, cost = launched.name, cost_per_vertex(launched, architecture)
        print(f"| {name} | sm_{architecture} | {cost.registers} | {cost.stack} | {cost.instructions:,} |")
        instructions, registers = BUDGETS[name]
        assert cost.stack == 0, name
        assert cost.instructions <= instructions, (name, cost)
        assert cost.registers <= registers, (name, cost)
        assert cost.narrow_loads < 12 or name != "attend", cost


def step_launches(sizes: tuple[int, int, int, int, int], cross: bool, patch: Any) -> list[Launch]:
    """Launches of a whole step and its gradient with hashed masks, on CPU tensors that are never read."""
    step = make(0, sizes, cross, False)
    step["kept"] = DropoutMasks(*[torch.zeros(sizes[0], dtype=torch.int64)] * 2, 1.25, 1.25, 2**62 + 1, 2**62 + 3)
    operands = [
        x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in fused_inputs(step, ("alignment", "sandwich")).operands()
    ]
    operands += [*step["kept"][4:], torch.float32]
    with patch.context() as recording:
        launches = record_launches(recording)
        out, *saved = gpu_step.step_gpu(*operands)
        gpu_step.step_gpu_backward(out, *saved, *operands)
    return launches


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_step_stays_within_its_budget(architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between two shells, whose fields are perturbed one after the other: with and without interpolation."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = step_launches((B, 255, H, Q, K), True, monkeypatch)  # 383 targets
    assert_within_budgets([launched for launched in launches if launched.name not in ATTENTION], architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dot_product_stays_within_its_budget(
    architecture: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The baseline's attention with as many numbers per token, so that a comparison on a GPU is fair."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    rows = [torch.zeros(B, count, H, 4 * Q) for count in (T, S, S)]
    graph, mask = torch.zeros(T, K, dtype=torch.int64), torch.zeros(B, T, K, H, dtype=torch.bool)
    with monkeypatch.context() as recording:
        launches = record_launches(recording)
        outputs = gpu_dot_product.dot_attend_gpu(*rows, graph, mask, 1.25)
        gpu_dot_product.dot_attend_gpu_backward(rows[0], *outputs, *rows, graph, mask, 1.25)
    assert_within_budgets(launches, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
@pytest.mark.parametrize(
    ("sizes", "routing", "transport", "keep", "dtype"),
    [
        ((2, 20, 18, 16, 16, 4), "alignment", "sandwich", "hashed", torch.bfloat16),
        ((1, 4, 3, 1, 1, 1), "geometric", "one_sided", None, torch.float64),
        ((1, 4, 3, 3, 5, 3), "absolute", "identity", None, torch.float32),
        ((1, 4, 40, 33, 5, 3), "uniform", "sandwich", "stored", torch.float32),
    ],
)
def test_every_kernel_compiles_for_gpus(
    sizes: Any,
    routing: str,
    transport: str,
    keep: str | None,
    dtype: torch.dtype,
    target: Any,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    """Machine code for NVIDIA's sm_80 and sm_90 and AMD's gfx942."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launched in attention_launches(sizes, routing, transport, keep, dtype, monkeypatch):
        assert compile_launch(launched, target).asm["cubin" if target[0] == "cuda" else "hsaco"]
