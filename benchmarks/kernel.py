"""The coupled kernel alone, and whole models beside it: time and peak memory of one forward and backward pass.

Kernel: 16 images, 320 -> 384 vertices, k = 16, 16 heads, 4 quaternion channels: the largest cross-shell step. Times
are interleaved: every round runs every contender once, so that whatever else the machine does falls on all alike.
Peak memory is what one pass adds to a process of its own, which has done nothing but a small pass before.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from quatsphere import create_model
from quatsphere.geometry import quaternion, sphere
from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.kernels import quaternion_attention
from quatsphere.kernels.attention import backends_on

SOURCES, TARGETS, K, HEADS, CHANNELS = 320, 384, 16, 16, 4
WANTED = {"time": 5.0, "memory": 6.0}
"""How many times less than `reference` the `factored` backend must need."""
Pass = Callable[[], object]


def kernel_pass(backend: str, batch: int) -> Pass:
    """The kernel on the real graph, with gradients of everything that has one."""
    neighbours = nearest_neighbours(sphere.fibonacci_sphere(TARGETS, 0.4), sphere.fibonacci_sphere(SOURCES, 0.55), K)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        quaternion.random_unit(batch, TARGETS, HEADS, generator=generator),
        quaternion.random_unit(batch, SOURCES, HEADS, generator=generator),
        torch.randn(batch, SOURCES, HEADS, CHANNELS, 4, generator=generator),
        torch.ones(HEADS),
    ]
    target, source, features, beta = leaves = [x.requires_grad_() for x in inputs]
    upstream = torch.randn(batch, TARGETS, HEADS, CHANNELS, 4, generator=generator)

    def run() -> object:
        out = quaternion_attention(target, source, features, neighbours, beta, backend=backend)
        return torch.autograd.grad(out, leaves, upstream)

    return run


def model_pass(name: str, batch: int) -> Pass:
    """A whole model of the paper's size in training mode: `attention`, or `qsv` with a backend."""
    kind, _, backend = name.partition(" ")
    model = create_model(kind, **({"backend": backend} if backend else {}))
    images = torch.rand(batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    keys = torch.arange(batch)

    def run() -> object:
        model.zero_grad()
        logits: Tensor = model(images, sample_keys=keys)
        return logits.square().sum().backward()

    return run


SUBJECTS: dict[str, tuple[Callable[[str, int], Pass], list[str]]] = {
    "kernel": (kernel_pass, backends_on("cpu")),
    "model": (model_pass, [*(f"qsv {backend}" for backend in backends_on("cpu")), "attention"]),
}
"""subject -> (how to make a pass, contenders; the first is the one the others are measured against)."""


def times(subject: str, batch: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every contender in every round, after one round that does not count."""
    make, names = SUBJECTS[subject]
    passes = {name: make(name, batch) for name in names}
    laps: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        for name, run in passes.items():
            start = time.perf_counter()
            run()
            laps[name].append(1000 * (time.perf_counter() - start))
    return {name: lap[1:] for name, lap in laps.items()}


def resident() -> tuple[int, int]:
    """(bytes held now, most ever held); where the system cannot tell what is held now, the most ever held twice."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return tuple(1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
    except (OSError, KeyError):
        unit = 1 if sys.platform == "darwin" else 1024
        peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak, peak


def forget_peak() -> None:
    """Let the most ever held start again from what is held now (Linux; elsewhere the loading of torch stays in it)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_here(subject: str, name: str, batch: int) -> int:
    """Bytes that one pass adds to this process at its peak."""
    make, _ = SUBJECTS[subject]
    make(name, 1)()  # libraries loaded, threads started, loops compiled
    run = make(name, batch)
    forget_peak()
    before, _ = resident()
    run()
    return resident()[1] - before


def peak_alone(subject: str, name: str, batch: int, threads: int) -> int:
    """The same in a fresh process."""
    words = ["--peak-of", subject, name, "--batch", str(batch), "--threads", str(threads)]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


def measure(subject: str, batch: int, rounds: int, threads: int) -> list[dict[str, object]]:
    """One row per contender, with how many times less than the first it needs."""
    laps = times(subject, batch, rounds)
    peaks = {name: peak_alone(subject, name, batch, threads) for name in laps}
    first = next(iter(laps))
    return [
        {
            "subject": subject,
            "contender": name,
            "batch": batch,
            "best_ms": min(lap),
            "median_ms": statistics.median(lap),
            "peak_mb": peaks[name] / 1e6,
            "times_faster": min(laps[first]) / min(lap),
            "times_smaller": peaks[first] / peaks[name],
        }
        for name, lap in laps.items()
    ]


def machine(threads: int) -> dict[str, object]:
    """What the figures were measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return {
        "processor": model,
        "threads": threads,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def show(record: dict[str, object], rows: list[dict[str, object]]) -> None:
    """The figures for people."""
    print(", ".join(f"{name} {value}" for name, value in record.items()))
    print("float32, forward + backward; ratios are to the first line of each group, best time and peak memory\n")
    print(f"{'':<24}{'batch':>6}{'best ms':>10}{'median ms':>11}{'peak MB':>10}{'faster':>9}{'smaller':>9}")
    for row in rows:
        print(
            f"{row['subject']:<8}{row['contender']:<16}{row['batch']:>6}{row['best_ms']:>10.1f}{row['median_ms']:>11.1f}"
            f"{row['peak_mb']:>10.1f}{row['times_faster']:>8.1f}x{row['times_smaller']:>8.1f}x"
        )
    factored = next(row for row in rows if (row["subject"], row["contender"]) == ("kernel", "factored"))
    for key, what in (("times_faster", "time"), ("times_smaller", "memory")):
        verdict = "met" if float(str(factored[key])) >= WANTED[what] else "NOT met"
        print(f"\nkernel, factored: {factored[key]:.1f}x less {what}; wanted {WANTED[what]:.0f}x: {verdict}", end="")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="images per pass of the kernel (default 16)")
    parser.add_argument("--model-batch", type=int, default=4, help="images per pass of the models; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds that count (default 7)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch and the kernels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file as well")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.peak_of:
        print(peak_here(*asked.peak_of, asked.batch))
        return
    rows = measure("kernel", asked.batch, asked.rounds, asked.threads)
    if asked.model_batch:
        rows += measure("model", asked.model_batch, asked.rounds, asked.threads)
    show(machine(asked.threads), rows)
    if asked.json:
        asked.json.write_text(json.dumps({"machine": machine(asked.threads), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
