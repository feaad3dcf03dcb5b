"""Measure the subjects of a benchmark as rows of plain values.

Peak memory and scaling are measured in fresh processes, `python -m quatsphere.bench.measure REQUEST`: a JSON object as
argument, another one as output.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from quatsphere.bench import gpu, graphs, kernel, step
from quatsphere.bench.step import forward_flops, profiled, training_flops
from quatsphere.bench.timing import Pass, Row, best_and_median, gemm_gflops, gemm_pass, interleave, machine, peak_mb
from quatsphere.errors import ConfigError, ResourceError

BENCH_FORMAT = 1
"""Version of the schema in docs/performance.md."""
TIME_KEYS = dict.fromkeys(("kernel", "step", "inference", "graphs", "gpu", "gpu_inference"), "best_ms")
TIME_KEYS |= {"scaling": "seconds"}
"""subject -> key of its time."""
_MEASURED = {"variant": str, "batch": int, "best_ms": float, "peak_mb?": (float, None)}
RECORD_SHAPE = {
    **{key: [_MEASURED] for key in ("kernel?", "step?", "inference?", "gpu?", "gpu_inference?")},
    "scaling?": [{"vertices": int, "seconds": float, "peak_mb?": (float, None)}],
}
"""Fields of a record that a comparison reads, as `storage.sealed_json.misfit` checks them."""
GEMM = "sgemm"

SubjectRows = dict[str, list[Row]]


def compare_benchmarks(before: Row, after: Row) -> list[Row]:
    """One row per measurement of both records: time before and after, speed-up, and reduction of memory."""
    if before.get("format") != after["format"]:
        raise ConfigError(
            f"cannot compare with format {before.get('format')!r}, this is {after['format']}; "
            "make the file with 'quatsphere bench --json FILE'"
        )
    old = dict(rows_by_key(before))
    rows = []
    for key, row in rows_by_key(after):
        if key in old:
            was, now = (each[TIME_KEYS[key[0]]] for each in (old[key], row))
            had, has = (each.get("peak_mb") for each in (old[key], row))
            times = {"what": " ".join(key), "before": was, "after": now, "faster": was / now}
            rows.append({**times, "smaller": had / has if had and has else None})
    return rows


def rows_by_key(record: Row) -> Iterator[tuple[tuple[str, str], Row]]:
    """Yield ((subject, measurement), row)."""
    for subject in TIME_KEYS:
        for row in record.get(subject, []):
            graph = f", {row['graph']} {row['nodes']:,} x {row['degree']}" if subject == "graphs" else ""
            is_size = subject == "scaling"
            name = f"{row['vertices']:,} vertices" if is_size else f"{row['variant']}{graph}, {row['batch']}"
            yield (subject, name), row


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark."""

    batch: int | None = None
    """Images per pass; by default 16 (kernel), 64 (step), 1 and 256 (inference)."""
    rounds: int = 20
    compiled: bool = False
    bf16: bool = False
    memory: bool = True
    dim: int = 256
    nodes: Sequence[int] = ()
    degrees: Sequence[int] = ()
    """Sizes of graphs; by default several, one varied at a time."""
    vertices: Sequence[int] = field(default_factory=lambda: list(step.SIZES))
    overrides: Row = field(default_factory=dict)
    """Settings of both models that differ from the default; tests measure small models."""


def bench(subjects: Sequence[str], settings: BenchSettings, report: Callable[[str], None]) -> Row:
    """Measure the subjects and return one record, as it is saved."""
    record: Row = {"format": BENCH_FORMAT, "machine": machine(), "settings": {"rounds": settings.rounds}}
    for subject in subjects:
        report(f"measuring {subject}")
        record |= MEASUREMENTS[subject](settings, report)
    return record


def timed(passes: dict[str, Pass], rounds: int) -> tuple[dict[str, Row], float]:
    """Best and median time of every pass, and the GFLOPS of an sgemm interleaved with them."""
    laps = interleave({**passes, GEMM: gemm_pass()}, rounds, kernel.SLOW_CANDIDATES)
    gflops = gemm_gflops(min(laps.pop(GEMM)))
    return {name: best_and_median(times) for name, times in laps.items()}, gflops


def isolated_peak(subject: str, variant: str, batch: int, settings: BenchSettings) -> Row:
    """Peak memory of a variant in a fresh process, or None if memory is not measured."""
    if not settings.memory:
        return {"peak_mb": None}
    request = {"subject": subject, "variant": variant, "batch": batch, "threads": torch.get_num_threads()}
    return run_isolated(request | ({"overrides": settings.overrides} if settings.overrides else {}))


def run_isolated(request: Row) -> Row:
    """Return `measure_request(request)` of a fresh process."""
    command = [sys.executable, "-m", "quatsphere.bench.measure", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message; the system may have ended it for its memory"])[-1]
        name = " ".join(str(request[key]) for key in ("subject", "variant", "vertices") if key in request)
        raise ResourceError(
            f"measuring {name} in its own process ended with {done.returncode} ({last:.200}); try a smaller size"
        )
    return _last_object(done.stdout)


def _last_object(text: str) -> Row:
    """Last line that is a JSON object; libraries may print before and after it."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            if isinstance(row := json.loads(line), dict):
                return row
    raise ResourceError("measuring in a separate process returned no numbers; try again")


def measure_request(request: Row) -> Row:
    """Measure one size of the scaling, or the peak memory of a pass after one with a single image."""
    torch.set_num_threads(request["threads"])
    if request["subject"] == "scaling":
        return step.measure_size(request["vertices"], request["dim"], request["rounds"])
    create, variant, overrides = PASSES[request["subject"]], request["variant"], request.get("overrides", {})
    create(variant, 1, **overrides)()
    return {"peak_mb": peak_mb(create(variant, request["batch"], **overrides))}


PASSES: dict[str, Callable[..., Pass]] = {
    "kernel": lambda variant, batch: kernel.candidates()[variant](batch),
    "step": step.TrainingStep,
    "inference": step.inference,
    "graphs": graphs.graph_pass,
}
"""subject -> function that creates the pass of (variant, batch)."""


def measure_kernel(settings: BenchSettings, report: Callable[[str], None]) -> SubjectRows:
    """Candidates of every operator, with their time and memory as multiples of the fused one's."""
    batch, rows = settings.batch or 16, []
    makers = kernel.candidates()
    for operator in dict.fromkeys(name.partition(": ")[0] for name in makers):
        names = [name for name in makers if name.startswith(f"{operator}: ")]
        times, _ = timed({name: makers[name](batch) for name in names}, settings.rounds)
        found = [
            {"variant": name, "batch": batch, **times[name], **isolated_peak("kernel", name, batch, settings)}
            for name in names
        ]
        fused = next((row for row in found if row["variant"].endswith("numba_cpu")), found[-1])
        for row in found:
            less = row["peak_mb"] / fused["peak_mb"] if row["peak_mb"] and fused["peak_mb"] else None
            rows.append(row | {"times_fused": row["best_ms"] / fused["best_ms"], "times_fused_memory": less})
    return {"kernel": rows}


def measure_step(settings: BenchSettings, report: Callable[[str], None]) -> SubjectRows:
    """Training steps; a tenth of a repulsion step is added if vertices move, because it runs every tenth step."""
    batch = settings.batch or 64
    names = step.variants(compiled=settings.compiled, bf16=settings.bf16)
    steps = {name: step.TrainingStep(name, batch, **settings.overrides) for name in names}
    moving = {f"repulsion of {name}": made.repulse for name, made in steps.items() if made.positions}
    times, gflops = timed({**steps, **moving}, settings.rounds)
    rows = []
    for name, made in steps.items():
        repulsion = times.get(f"repulsion of {name}", {"best_ms": 0.0, "median_ms": 0.0})
        whole = {key: value + repulsion[key] / 10 for key, value in times[name].items()}
        row = {"variant": name, "batch": batch, **whole, "repulsion_ms": repulsion["best_ms"]}
        row |= speed(row, training_flops(made.model.config), gflops)
        rows.append(row | isolated_peak("step", name, batch, settings))
    parts = [{"variant": name, **part} for name in step.EAGER for part in profiled(steps[name])]
    throughput = [{"title": row["variant"], "images_per_second": row["images_per_second"]} for row in rows]
    return {"step": rows, "profile": parts, "throughput": throughput}


def speed(row: Row, flops: int, peak_gflops: float) -> Row:
    """Images per second, operations per image, and fraction of the sgemm peak."""
    seconds = row["best_ms"] / 1000
    gflops = flops * row["batch"] / seconds / 1e9
    return {
        "images_per_second": row["batch"] / seconds,
        "gflop_per_image": flops / 1e9,
        "gflops": gflops,
        "sgemm_gflops": peak_gflops,
        "share_of_sgemm": gflops / peak_gflops,
    }


def measure_inference(settings: BenchSettings, report: Callable[[str], None]) -> SubjectRows:
    """Inference of one image (latency) and of many (throughput)."""
    names, rows = step.variants(compiled=settings.compiled, bf16=settings.bf16), []
    for batch in [settings.batch] if settings.batch else [1, 256]:
        passes = {name: step.inference(name, batch, **settings.overrides) for name in names}
        times, gflops = timed(passes, settings.rounds)
        for name in names:
            flops = forward_flops(step.build(name, **settings.overrides).config)
            row = {"variant": name, "batch": batch, **times[name]}
            rows.append(row | speed(row, flops, gflops) | isolated_peak("inference", name, batch, settings))
    return {"inference": rows}


def measure_scaling(settings: BenchSettings, report: Callable[[str], None]) -> SubjectRows:
    """One training step of QSV at several sizes, each in a fresh process."""
    rows = []
    for vertices in settings.vertices:
        step.scaling_settings(vertices, settings.dim)
    step.compile_kernels(settings.dim)  # here, where a notice can be shown; the subprocesses are silent
    for vertices in settings.vertices:
        report(f"measuring scaling: {vertices:,} vertices")
        request = {"subject": "scaling", "vertices": vertices, "dim": settings.dim, "rounds": min(5, settings.rounds)}
        rows.append(run_isolated(request | {"threads": torch.get_num_threads()}))
    return {"scaling": rows}


def measure_graphs(settings: BenchSettings, report: Callable[[str], None]) -> SubjectRows:
    """Graph layers, with their time as multiples of QuaternionConv's.

    `cpu_ms` is processor time of all threads: with one thread it does not depend on other load.
    """
    rows = []
    for case in graphs.graph_cases(list(settings.nodes), list(settings.degrees), settings.batch):
        graph: Row = {"nodes": case.nodes, "degree": case.degree, "skewed": case.skewed}
        report(f"measuring graphs: {case.nodes:,} nodes, degree {case.degree}, batch {case.batch}")
        passes = {name: graphs.graph_pass(name, case.batch, **graph) for name in case.contenders}
        spent: dict[str, list[float]] = {name: [] for name in passes}
        counted = {name: count_cpu(run, spent[name]) for name, run in passes.items()}
        laps = interleave(counted, settings.rounds, [graphs.DENSE])
        found: list[Row] = [
            {
                "variant": name,
                "graph": "skewed" if case.skewed else "k-NN",
                "nodes": case.nodes,
                "degree": case.degree,
                "batch": case.batch,
                **best_and_median(times),
                "cpu_ms": min(spent[name][-len(times) :]),
                **isolated_peak("graphs", name, case.batch, replace(settings, overrides=graph)),
            }
            for name, times in laps.items()
        ]
        ours = found[0]
        rows += [
            row | {f"times_{key}": row[f"{key}_ms"] / ours[f"{key}_ms"] for key in ("best", "cpu")} for row in found
        ]
    return {"graphs": rows}


def count_cpu(run: Pass, spent: list[float]) -> Pass:
    """Pass that appends the processor time of `run`, in milliseconds, to `spent`."""

    def counted() -> None:
        start = time.process_time()
        run()
        spent.append(1000 * (time.process_time() - start))

    return counted


MEASUREMENTS: dict[str, Callable[[BenchSettings, Callable[[str], None]], Row]] = {
    "kernel": measure_kernel,
    "step": measure_step,
    "inference": measure_inference,
    "graphs": measure_graphs,
    "scaling": measure_scaling,
    "gpu": lambda settings, report: gpu.measure_on_gpu(
        settings.batch or 128, settings.rounds, settings.overrides, report
    ),
}

if __name__ == "__main__":
    print(json.dumps(measure_request(json.loads(sys.argv[1]))))
