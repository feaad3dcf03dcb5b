"""The fused GPU kernel without a GPU: interpreted in a subprocess, compiled, refused, not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.kernel_inputs import make_problem

from quatsphere.errors import ConfigError
from quatsphere.kernels import backends
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, AttentionInputs, working_dtype

HERE = Path(__file__).parent
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="test_gpu_kernels.py runs on the GPU itself")


def run_interpreted(*words: str) -> None:
    """pytest in a process where Triton interprets its kernels, without shape checks (dynamo cannot trace them)."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *words]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@no_gpu
def test_equals_reference_in_the_interpreter() -> None:
    run_interpreted(str(HERE / "test_gpu_kernels.py"), "-m", "not slow")


@no_gpu
@pytest.mark.slow
def test_equals_reference_in_the_interpreter_slow() -> None:
    run_interpreted(str(HERE / "test_gpu_kernels.py"), "-m", "slow")


@no_gpu
@pytest.mark.slow
def test_theorems_in_the_interpreter() -> None:
    run_interpreted(str(HERE / "test_theorems.py"), "-k", "triton_gpu")


class Recorder:
    """Stands in for a kernel and records the arguments of its launches."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *args, **constants: self.launches.append((self.kernel, args, constants))


def launches_of(problem: AttentionInputs, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(kernel, arguments, constants) of a forward and backward pass, on CPU tensors that are never read."""
    from quatsphere.kernels.gpu import kernels, launch

    launches: list[Any] = []
    with monkeypatch.context() as patch:
        for name in ("lift_sources", "attend", "target_gradients", "source_gradients"):
            kernel = f"{name}_kernel"
            patch.setattr(kernels, kernel, Recorder(getattr(kernels, kernel), launches))
        names = ("target_field", "source_field", "features", "neighbours", "beta")
        tensors = [getattr(problem, name) for name in names] + [problem.survivors(dtype)]
        tensors += [problem.target_directions, problem.source_directions]
        tensors = [t if t is None or t.dtype == torch.int64 else t.to(dtype) for t in tensors]
        rules = (ROUTINGS.index(problem.routing), TRANSPORTS.index(problem.transport))
        out = torch.zeros(
            tensors[2].shape[0], tensors[0].shape[1], *tensors[2].shape[2:], dtype=working_dtype(tensors[2])
        )
        launch.launch_attention(tuple(tensors), *rules, out)
        into = [torch.zeros_like(tensors[index]) for index in (0, 1, 2, 4, 6, 7)]
        launch.launch_attention_backward(tuple(tensors), *rules, (out, out), into)
    return launches


@pytest.mark.slow
@pytest.mark.skipif(gpu_attention.INTERPRETED, reason="the interpreter replaces the compiler")
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
@pytest.mark.parametrize(
    ("sizes", "routing", "transport", "keep", "dtype"),
    [
        ((2, 20, 18, 16, 16, 4), "alignment", "sandwich", True, torch.bfloat16),
        ((1, 4, 3, 1, 1, 1), "geometric", "one_sided", False, torch.float64),
        ((1, 4, 3, 3, 5, 3), "absolute", "identity", False, torch.float32),
        ((1, 4, 3, 3, 5, 3), "uniform", "sandwich", True, torch.float32),
    ],
)
def test_every_kernel_compiles_for_gpus(
    sizes: Any,
    routing: str,
    transport: str,
    keep: bool,
    dtype: torch.dtype,
    target: Any,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    """Machine code for NVIDIA's sm_80 and sm_90 and AMD's gfx942; Triton specialises arguments equal to 1."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, args, constants in launches_of(make_problem(0, sizes, routing, transport, keep), dtype, monkeypatch):
        option = {"enable_fp_fusion": constants.pop("enable_fp_fusion")}
        named = dict(zip(kernel.arg_names, args, strict=False))
        constants |= {name: 1 for name, value in named.items() if isinstance(value, int) and value == 1}
        types = {name: "i32" if isinstance(value, int) else mangle_type(value) for name, value in named.items()}
        source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        compiled = triton.compile(source, target=GPUTarget(*target), options=option)
        assert compiled.asm["cubin" if target[0] == "cuda" else "hsaco"]


@pytest.mark.skipif(gpu_attention.INTERPRETED, reason="the interpreter takes CPU tensors")
def test_refused_on_a_cpu() -> None:
    assert "triton_gpu" not in backends.backends_on("cpu")
    with pytest.raises(ConfigError, match=r"backend 'triton_gpu' does not run here on cpu; choose one of auto, ref"):
        backends.explain_backend("triton_gpu", "cpu")


@pytest.mark.skipif(gpu_attention.built_for_gpus(), reason="this torch was built for GPUs")
def test_without_a_torch_for_gpus_triton_is_not_blamed() -> None:
    reason = "this torch was built without CUDA and ROCm; pytorch.org has builds for GPUs"
    assert backends.explain_backend("auto", "cuda:0") == ("factored", reason)
    with pytest.raises(
        ConfigError, match=rf"'triton_gpu' does not run here on cuda:0 \({reason}\); choose one of auto"
    ):
        backends.explain_backend("triton_gpu", "cuda:0")


def test_other_devices_use_plain_torch() -> None:
    assert backends.explain_backend("auto", "mps") == ("factored", "plain torch on mps")


WITHOUT_TRITON = """
import sys, torch
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "triton" else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
torch.version.cuda = torch.version.cuda or "12.8"  # as in a torch built for GPUs
from quatsphere.kernels import backends
assert "triton_gpu" not in backends.BACKENDS
print(backends.explain_backend("auto", "cuda:0"))
"""


def test_without_triton_auto_chooses_factored_on_a_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=True)
    reason = "triton is not installed; it compiles the fused kernel: pip install 'quatsphere[gpu]'"
    assert done.stdout == f"{('factored', reason)}\n"
