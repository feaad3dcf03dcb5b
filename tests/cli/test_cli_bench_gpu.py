"""`bench gpu` without a GPU: the CPU in its place, and the calls of the runtime as the profiler names them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quatsphere.bench import gpu, timing
from quatsphere.bench.gpu import Cuda, count_calls, measure_on_gpu, summary

TINY = {"base_vertices": 16, "shells": 2, "neighbours": 4, "dim": 32, "heads": 2}


class Emulated(Cuda):
    """The CPU in the place of a GPU; nothing is compiled."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.passes = 0

    def facts(self) -> dict[str, Any]:
        versions = {"runtime": "CUDA 0", "triton": None}
        return {"name": "GPU 0", "architecture": "sm_00", "memory_gb": 1.0, **versions} | {
            "backend": "factored",
            "backend_reason": "plain torch",
        }

    def lap(self, run: timing.Pass) -> float:
        self.passes += 1
        return timing.lap(run)

    def counts(self, run: timing.Pass) -> dict[str, Any]:
        run()
        return count_calls(["aten::mm", "cudaLaunchKernel", "cuLaunchKernel", "cudaStreamSynchronize"])

    def peak_mb(self, run: timing.Pass) -> float:
        return 1.5


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    device = Emulated()
    monkeypatch.setattr(gpu, "gpu", lambda: device)
    monkeypatch.setattr(torch, "compile", lambda model: _no_compiler)
    return device


def _no_compiler(*_: Any, **__: Any) -> None:
    raise RuntimeError("no compiler\non this machine")


def test_both_models_are_measured_and_failures_are_rows(emulated: Emulated) -> None:
    found = measure_on_gpu(2, 3, TINY, lambda _: None)
    for subject in ("gpu", "gpu_inference"):
        measured = ["qsv", "attention fused", "qsv bf16", "attention fused bf16"]
        assert [row["variant"] for row in found[subject]] == measured
        for row in found[subject]:
            assert 0 < row["best_ms"] <= row["median_ms"]
            assert row["images_per_second"] == pytest.approx(2000 / row["median_ms"])
            assert (row["launches"], row["waits"], row["graph_launches"], row["peak_mb"]) == (2, 1, 0, 1.5)
    assert emulated.passes == (4 + 4) * (3 + timing.WARM_UP)
    failed = [" compiled", " compiled bf16", " recorded"]  # a CPU records nothing
    assert {row["variant"] for row in found["gpu_failures"]} == {
        f"{m}{how}" for m in gpu.GPU_VARIANTS for how in failed
    }
    assert found["gpu_failures"][0]["error"] == "RuntimeError: no compiler"


@pytest.mark.usefixtures("emulated")
def test_command_writes_one_file_and_one_paragraph(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = gpu.measure_on_gpu
    monkeypatch.setattr(gpu, "measure_on_gpu", lambda batch, rounds, _, report: measure(batch, rounds, TINY, report))
    ended = command("bench", "gpu", "--batch", "2", "--rounds", "1")
    assert ended.code == 0, ended.err
    record = json.loads(Path("quatsphere-gpu.json").read_text())
    paragraph = summary(record)
    assert "\n" not in paragraph
    assert paragraph in ended.out
    for fact in (
        "GPU 0 (sm_00, 1 GB, CUDA 0)",
        "Training step, batch 2, median of 1: qsv ",
        "2 launches, 1 waits, 2 MB",
    ):
        assert fact in paragraph
    assert "Failed: gpu qsv compiled (RuntimeError: no compiler)" in paragraph
    again = command("bench", "gpu", "--batch", "2", "--rounds", "1", "--compare", "quatsphere-gpu.json")
    assert "before and after" in again.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_one_line(fails: Callable[..., str]) -> None:
    fails(2, "bench gpu needs a CUDA or ROCm GPU", "bench", "gpu")
    assert not Path("quatsphere-gpu.json").exists()
