"""Training steps and inference of QSV and of its matched baseline on a GPU: time, launches, host waits, memory.

`quatsphere bench gpu` is meant for users who can report results of a GPU: a variant that fails is listed with its error
and does not stop the others, and `summary` is a paragraph to paste into an issue.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from quatsphere.bench.step import TrainingStep, inference
from quatsphere.bench.timing import Pass, Row, best_and_median, interleave
from quatsphere.errors import ConfigError
from quatsphere.kernels import explain_backend
from quatsphere.train.cuda_graph import WARM_UP, RecordedPass

GPU_VARIANTS = ["qsv", "attention fused"]
"""Models in eager mode; each is also measured compiled, and its training step recorded as a CUDA graph."""
LAUNCHES = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"}
LAUNCHES |= {"hipLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel"}
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "hipStreamSynchronize", "hipMemcpyWithStream")
GRAPHS = ("cudaGraphLaunch", "hipGraphLaunch")
"""Functions of the CUDA and HIP runtimes, as the profiler names them."""


class Cuda:
    """A CUDA or ROCm device, timed by its own events."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cuda", torch.cuda.current_device())

    def facts(self) -> Row:
        """Name, architecture, memory and versions, and which kernel runs."""
        properties = torch.cuda.get_device_properties(self.device)
        backend, reason = explain_backend("auto", str(self.device))
        return {
            "name": properties.name,
            "architecture": getattr(properties, "gcnArchName", f"sm_{properties.major}{properties.minor}"),
            "memory_gb": properties.total_memory / 1e9,
            "runtime": f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}",
            "triton": importlib.metadata.version("triton") if importlib.util.find_spec("triton") else None,
            "backend": backend,
            "backend_reason": reason,
        }

    def lap(self, run: Pass) -> float:
        """Milliseconds between two events of the device around a pass, host time included where the device waits."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def counts(self, run: Pass) -> Row:
        """Launches of kernels and of recorded graphs, and waits of the host, of one pass."""
        torch.cuda.synchronize(self.device)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
            run()
        return count_calls([event.name for event in record.events() or []])

    def peak_mb(self, run: Pass) -> float:
        """Peak of allocated memory during a pass, in megabytes."""
        torch.cuda.reset_peak_memory_stats(self.device)
        run()
        return torch.cuda.max_memory_allocated(self.device) / 1e6


def count_calls(names: Sequence[str]) -> Row:
    """Numbers of calls of the runtime that launch kernels, launch graphs and wait."""
    return {
        "launches": sum(name in LAUNCHES for name in names),
        "graph_launches": sum(name in GRAPHS for name in names),
        "waits": sum(name in WAITS for name in names),
    }


def gpu() -> Cuda:
    """The current GPU; ConfigError if there is none."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "bench gpu needs a CUDA or ROCm GPU and a torch built for it; measure the CPU with bench step"
        )
    return Cuda()


def measure_on_gpu(batch: int, rounds: int, overrides: Row, report: Callable[[str], None]) -> dict[str, Any]:
    """Rows of both models, eager, compiled and recorded, fp32 and bf16; what fails is listed with its message."""
    device = gpu()
    names = [f"{name}{how}" for how in ("", " compiled", " bf16", " compiled bf16") for name in GPU_VARIANTS]
    found: dict[str, Any] = {"gpu_device": device.facts(), "gpu_failures": []}
    subjects: dict[str, Callable[[str], Pass]] = {
        "gpu": lambda name: TrainingStep(name, batch, device=device.device, **overrides),
        "gpu_inference": lambda name: inference(name, batch, device=device.device, **overrides),
    }
    for subject, make in subjects.items():
        passes: dict[str, Pass] = {}
        for name in names + [f"{name} recorded" for name in GPU_VARIANTS if subject == "gpu"]:
            report(f"measuring {subject}: {name}")
            try:
                made = make(name)
                warm_up(name, made)
            except Exception as error:  # any failure on this machine is part of the result
                message = f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
                found["gpu_failures"].append({"subject": subject, "variant": name, "error": message[:300]})
            else:
                passes[name] = made
        laps = interleave(passes, rounds, lap=device.lap)
        found[subject] = [row_of(name, batch, laps[name], passes[name], device) for name in passes]
    return found


def warm_up(name: str, run: Pass) -> None:
    """Call a pass until everything is compiled or recorded; RuntimeError if a recording failed."""
    for _ in range(WARM_UP + 2):
        run()
    if isinstance(run, TrainingStep) and name.endswith("recorded"):
        recorded = run.optimise.propagate
        if not isinstance(recorded, RecordedPass) or recorded.recording is None:
            raise RuntimeError("no CUDA graph was recorded")


def row_of(name: str, batch: int, laps: Sequence[float], run: Pass, device: Cuda) -> Row:
    """One variant: times, throughput, calls of the runtime, memory."""
    times = best_and_median(laps)
    row = {"variant": name, "batch": batch, **times, "images_per_second": 1000 * batch / times["median_ms"]}
    return {**row, **device.counts(run), "peak_mb": device.peak_mb(run)}


def summary(record: Mapping[str, Any]) -> str:
    """One paragraph for an issue: machine, versions, speeds, launches, memory, failures."""
    device, versions = record["gpu_device"], record["machine"]["versions"]
    commit = record["machine"]["commit"] or "no commit"
    head = (
        f"quatsphere {versions['quatsphere']} ({commit[:7]}) on {device['name']} ({device['architecture']}, "
        f"{device['memory_gb']:.0f} GB, {device['runtime']}), torch {versions['torch']}, triton {device['triton']}, "
        f"kernel {device['backend']} ({device['backend_reason']})."
    )
    parts = [head]
    for subject, title in (("gpu", "Training step"), ("gpu_inference", "Inference")):
        rows = [
            f"{row['variant']} {row['images_per_second']:,.0f} images/s ({row['median_ms']:.1f} ms, "
            f"{row['launches']} launches, {row['waits']} waits, {row['peak_mb']:,.0f} MB)"
            for row in record.get(subject, [])
        ]
        if rows:
            parts.append(f"{title}, batch {record[subject][0]['batch']}, median of {record['settings']['rounds']}:")
            parts.append("; ".join(rows) + ".")
    failures = [f"{row['subject']} {row['variant']} ({row['error']})" for row in record["gpu_failures"]]
    return " ".join([*parts, f"Failed: {'; '.join(failures)}." if failures else "Nothing failed."])
