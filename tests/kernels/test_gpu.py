"""The fused GPU kernel without a GPU: interpreted in a subprocess, compiled, refused, not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from quatsphere.errors import ConfigError
from quatsphere.kernels import backends
from quatsphere.kernels.gpu import attention as gpu_attention

HERE = Path(__file__).parent
KERNEL_TESTS = [str(HERE / f"test_gpu_{name}.py") for name in ("kernels", "step", "dot_product", "ragged")]
"""They share one process: torch, Triton and its interpreter take seconds to import."""
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="test_gpu_kernels.py runs on the GPU itself")


def run_interpreted(*words: str) -> None:
    """pytest in a process where Triton interprets its kernels, without shape checks (dynamo cannot trace them)."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *words]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


@no_gpu
def test_equals_reference_in_the_interpreter() -> None:
    run_interpreted(*KERNEL_TESTS, "-m", "not slow")


@no_gpu
@pytest.mark.slow
def test_equals_reference_in_the_interpreter_slow() -> None:
    run_interpreted(*KERNEL_TESTS, "-m", "slow")


@no_gpu
@pytest.mark.slow
def test_theorems_in_the_interpreter() -> None:
    run_interpreted(str(HERE / "test_theorems.py"), "-k", "triton_gpu")


@pytest.mark.skipif(gpu_attention.INTERPRETED, reason="the interpreter takes CPU tensors")
def test_refused_on_a_cpu() -> None:
    assert "triton_gpu" not in backends.backends_on("cpu")
    with pytest.raises(ConfigError, match=r"backend 'triton_gpu' does not run here on cpu; choose one of auto, ref"):
        backends.explain_backend("triton_gpu", "cpu")


@pytest.mark.skipif(gpu_attention.built_for_gpus(), reason="this torch was built for GPUs")
def test_a_torch_built_without_gpus_is_named_as_the_reason() -> None:
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
