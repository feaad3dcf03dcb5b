"""The four subjects: what is measured, as rows of plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from quatsphere.bench import isolated as alone
from quatsphere.bench import kernel, scaling, step
from quatsphere.bench.step import forward_flops, profiled, training_flops
from quatsphere.bench.timing import Pass, gemm_gflops, gemm_pass, interleave, machine, summary
from quatsphere.errors import ConfigError

TIMES = {"kernel": "best_ms", "step": "best_ms", "inference": "best_ms", "scaling": "seconds"}
"""subject -> its time."""

Row = dict[str, Any]


def compare(before: Row, after: Row) -> list[Row]:
    """One row per measurement in both: time before, after, and how many times faster; memory likewise."""
    if before.get("format") != after["format"]:
        raise ConfigError(
            f"cannot compare with format {before.get('format')!r}, this is {after['format']}; "
            "make the file with 'quatsphere bench --json FILE'"
        )
    old = dict(keyed(before))
    rows = []
    for key, row in keyed(after):
        if key in old:
            time = TIMES[key[0]]
            memory = (old[key].get("peak_mb"), row.get("peak_mb"))
            rows.append(
                {
                    "what": " ".join(map(str, key)),
                    "before": old[key][time],
                    "after": row[time],
                    "faster": old[key][time] / row[time],
                    "smaller": memory[0] / memory[1] if memory[0] and memory[1] else None,
                }
            )
    return rows


def keyed(record: Row) -> Iterator[tuple[tuple[str, str], Row]]:
    """(subject, what) -> row."""
    for subject in TIMES:
        for row in record.get(subject, []):
            what = f"{row['vertices']:,} vertices" if subject == "scaling" else f"{row['variant']}, {row['batch']}"
            yield (subject, what), row


Rows = dict[str, list[Row]]
FORMAT = 1
"""Number of the schema in docs/performance.md."""
GEMM = "sgemm"


@dataclass(frozen=True)
class Settings:
    """What a user may choose."""

    batch: int | None = None
    """Images per pass; none takes each subject's own: 16, 64, 1 and 256."""
    rounds: int = 20
    compiled: bool = False
    bf16: bool = False
    memory: bool = True
    dim: int = 256
    vertices: Sequence[int] = field(default_factory=lambda: list(scaling.SIZES))
    overrides: Row = field(default_factory=dict)
    """Seams of both models that differ from the default: tests measure small ones."""


def bench(subjects: Sequence[str], settings: Settings, say: Callable[[str], None]) -> Row:
    """Everything asked for in one record, as it is saved."""
    record: Row = {"format": FORMAT, "machine": machine(), "settings": {"rounds": settings.rounds}}
    for subject in subjects:
        say(f"measuring {subject}")
        record |= SUBJECTS[subject](settings, say)
    return record


def timed(passes: dict[str, Pass], rounds: int) -> tuple[dict[str, Row], float]:
    """Best and median of every pass, and the GFLOPS of the sgemm that ran among them."""
    laps = interleave({**passes, GEMM: gemm_pass()}, rounds, kernel.SELDOM)
    gflops = gemm_gflops(min(laps.pop(GEMM)))
    return {name: summary(times) for name, times in laps.items()}, gflops


def peak(subject: str, variant: str, batch: int, settings: Settings) -> Row:
    """Peak memory of a variant in a process of its own, unless it is not wanted."""
    if not settings.memory:
        return {"peak_mb": None}
    request = {"subject": subject, "variant": variant, "batch": batch, "threads": torch.get_num_threads()}
    return alone.ask(request | ({"overrides": settings.overrides} if settings.overrides else {}))


def measure_kernel(settings: Settings, say: Callable[[str], None]) -> Rows:
    """Every operator's contenders, and how many times the fused one's time and memory they take."""
    batch, rows = settings.batch or 16, []
    makers = kernel.contenders()
    for operator in dict.fromkeys(name.partition(": ")[0] for name in makers):
        names = [name for name in makers if name.startswith(f"{operator}: ")]
        times, _ = timed({name: makers[name](batch) for name in names}, settings.rounds)
        found = [
            {"variant": name, "batch": batch, **times[name], **peak("kernel", name, batch, settings)} for name in names
        ]
        fused = next((row for row in found if row["variant"].endswith("numba_cpu")), found[-1])
        rows += [row | against(row, fused) for row in found]
    return {"kernel": rows}


def against(row: Row, fused: Row) -> Row:
    """How many times the time and memory of the fused one."""
    less = row["peak_mb"] / fused["peak_mb"] if row["peak_mb"] and fused["peak_mb"] else None
    return {"times_fused": row["best_ms"] / fused["best_ms"], "times_fused_memory": less}


def measure_step(settings: Settings, say: Callable[[str], None]) -> Rows:
    """Training steps; a tenth of a repulsion is added to the step of a model whose vertices move."""
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
        rows.append(row | peak("step", name, batch, settings))
    parts = [{"variant": name, **part} for name in step.EAGER for part in profiled(steps[name])]
    throughput = [{"title": row["variant"], "images_per_second": row["images_per_second"]} for row in rows]
    return {"step": rows, "profile": parts, "throughput": throughput}


def speed(row: Row, flops: int, peak_gflops: float) -> Row:
    """Images per second, the operation count per image, and the share of the sgemm peak it runs at."""
    seconds = row["best_ms"] / 1000
    gflops = flops * row["batch"] / seconds / 1e9
    return {
        "images_per_second": row["batch"] / seconds,
        "gflop_per_image": flops / 1e9,
        "gflops": gflops,
        "sgemm_gflops": peak_gflops,
        "share_of_sgemm": gflops / peak_gflops,
    }


def measure_inference(settings: Settings, say: Callable[[str], None]) -> Rows:
    """Logits of one image (latency) and of many (throughput)."""
    names, rows = step.variants(compiled=settings.compiled, bf16=settings.bf16), []
    for batch in [settings.batch] if settings.batch else [1, 256]:
        passes = {name: step.inference(name, batch, **settings.overrides) for name in names}
        times, gflops = timed(passes, settings.rounds)
        for name in names:
            flops = forward_flops(step.build(name, **settings.overrides).config)
            row = {"variant": name, "batch": batch, **times[name]}
            rows.append(row | speed(row, flops, gflops) | peak("inference", name, batch, settings))
    return {"inference": rows}


def measure_scaling(settings: Settings, say: Callable[[str], None]) -> Rows:
    """One training step of QSV at several sizes, each in a process of its own."""
    rows = []
    for vertices in settings.vertices:
        scaling.settings_of(vertices, settings.dim)
    scaling.compile_kernels(settings.dim)  # here, where a notice can be shown; the processes below are silent
    for vertices in settings.vertices:
        say(f"measuring scaling: {vertices:,} vertices")
        request = {"subject": "scaling", "vertices": vertices, "dim": settings.dim, "rounds": min(5, settings.rounds)}
        rows.append(alone.ask(request | {"threads": torch.get_num_threads()}))
    return {"scaling": rows}


SUBJECTS: dict[str, Callable[[Settings, Callable[[str], None]], Rows]] = {
    "kernel": measure_kernel,
    "step": measure_step,
    "inference": measure_inference,
    "scaling": measure_scaling,
}
