"""Timing, memory, fits and comparison, with models that take seconds."""

from __future__ import annotations

import math

import pytest
import torch

from quatsphere.bench import measure, step, timing
from quatsphere.bench.measure import compare_benchmarks, run_isolated
from quatsphere.bench.step import group_of, profiled
from quatsphere.bench.timing import WARM_UP, best_and_median, interleave, peak_mb
from quatsphere.errors import ConfigError, ResourceError
from quatsphere.models import create_model

SMALL = {"base_vertices": 16, "shells": 2, "neighbours": 4}
TINY = {**SMALL, "dim": 32, "heads": 2}


def test_every_round_runs_all_candidates_and_the_warm_up_is_not_counted() -> None:
    calls: list[str] = []
    laps = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 5)
    assert calls == ["a", "b"] * (WARM_UP + 5)
    assert {name: len(times) for name, times in laps.items()} == {"a": 5, "b": 5}
    laps = interleave({"a": lambda: None, "slow": lambda: None}, 6, ["slow"])
    assert {name: len(times) for name, times in laps.items()} == {"a": 6, "slow": 2}
    assert best_and_median([3.0, 1.0, 2.0, 10.0]) == {"best_ms": 1.0, "median_ms": 2.5}


def test_peak_memory_includes_temporary_allocations() -> None:
    """200 MB, written and freed again."""
    assert peak_mb(lambda: torch.ones(50_000_000).sum()) > 150


@pytest.mark.parametrize("power", [1.0, 1.7])
def test_the_exponent_of_a_power_law(power: float) -> None:
    points = [{"vertices": v, "seconds": 3e-4 * v**power} for v in (100, 1000, 20_000)]
    assert step.exponent(points, "seconds") == pytest.approx(power)
    assert math.isnan(step.exponent(points[:1], "seconds"))


@pytest.mark.parametrize("variant", ["qsv", "attention fused", "attention dense", "qsv bf16", "attention dense bf16"])
def test_a_training_step_moves_every_kind_of_parameter(variant: str) -> None:
    training = step.TrainingStep(variant, 2, **TINY)
    before = {name: p.detach().clone() for name, p in training.model.named_parameters()}
    training()
    training()
    moved = {name for name, p in training.model.named_parameters() if not torch.equal(p, before[name])}
    assert {"classifier.weight", "embed.projection.weight"} <= moved
    roles = training.model.parameter_roles()
    assert all(set(names) & moved for role, names in roles.items() if names), roles


def test_dense_attention_equals_the_baseline() -> None:
    """The model with torch's attention computes the same logits."""
    ours, dense = create_model("attention", dim=24, **SMALL), step.build("attention dense", dim=24, **SMALL)
    images = torch.randn(2, 3, 32, 32)
    assert torch.allclose(ours.eval()(images), dense.eval()(images), atol=1e-5)


def test_repulsion_spreads_and_keeps_radii() -> None:
    training = step.TrainingStep("qsv", 1, **TINY)
    before = [p.detach().clone() for p in training.positions]
    training.repulse()
    assert all(not torch.equal(p, old) for p, old in zip(training.positions, before, strict=True))
    assert all(torch.allclose(p.norm(dim=1), o.norm(dim=1)) for p, o in zip(training.positions, before, strict=True))
    assert step.TrainingStep("attention fused", 1, **SMALL, dim=24).positions == []


def test_variants() -> None:
    assert step.variants() == ["qsv", "attention fused", "attention dense"]
    assert len(step.variants(compiled=True, bf16=True)) == 12


def test_operators_count_for_the_outermost_part() -> None:
    assert group_of(["aten::mm"]) == "GEMM"
    assert group_of(["aten::mul", "aten::grid_sampler_2d", "Optimizer.step#AdamW.step"]) == "optimisers"
    assert group_of(["aten::sum", "quatsphere::attend_backward"]) == "kernel"
    assert group_of(["aten::mul"]) == "rest"


def test_a_profile_is_a_partition() -> None:
    parts = profiled(step.TrainingStep("qsv", 1, **TINY), 1)
    assert sum(part["share"] for part in parts) == pytest.approx(1)
    assert {"GEMM", "optimisers", "graph", "rest"} <= {part["part"] for part in parts}


def test_rows_of_step_and_inference_are_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "GEMM_SIZE", 64)
    settings = measure.BenchSettings(batch=2, rounds=1, memory=False, overrides=TINY)
    record = measure.bench(["step", "inference"], settings, lambda _: None)
    for row in record["step"] + record["inference"]:
        assert row["images_per_second"] == pytest.approx(2000 / row["best_ms"])
        gflops = row["gflop_per_image"] * row["images_per_second"]
        assert row["share_of_sgemm"] == pytest.approx(gflops / row["sgemm_gflops"])
    qsv = [next(row for row in record[name] if row["variant"] == "qsv") for name in ("step", "inference")]
    assert qsv[0]["gflop_per_image"] == pytest.approx(3 * qsv[1]["gflop_per_image"])
    assert qsv[0]["repulsion_ms"] > 0
    assert [row["title"] for row in record["throughput"]] == step.variants()


@pytest.mark.slow
def test_a_fresh_process_measures_memory_and_sizes() -> None:
    one = run_isolated({"subject": "step", "variant": "qsv", "batch": 8, "threads": 1, "overrides": TINY})
    assert one["peak_mb"] > 0
    size = run_isolated({"subject": "scaling", "vertices": 320, "dim": 64, "rounds": 1, "threads": 1})
    assert size["vertices"] == 320
    assert size["seconds"] > 0
    with pytest.raises(ResourceError, match=r"scaling 3 in its own process ended with 1 .*160 vertices or more"):
        run_isolated({"subject": "scaling", "vertices": 3, "dim": 64, "rounds": 1, "threads": 1})


def test_comparison_matches_equal_measurements() -> None:
    def record(ms: float, batch: int) -> dict[str, object]:
        rows = [{"variant": "qsv", "batch": batch, "best_ms": ms, "peak_mb": 8.0}]
        sizes = [{"vertices": 1280, "seconds": ms, "peak_mb": None}]
        return {"format": 1, "step": rows, "scaling": sizes}

    rows = compare_benchmarks(record(8.0, 4), record(2.0, 4))
    assert [row["faster"] for row in rows] == [4.0, 4.0]
    assert [row["smaller"] for row in rows] == [1.0, None]
    assert len(compare_benchmarks(record(8.0, 4), record(2.0, 5))) == 1
    with pytest.raises(ConfigError, match="cannot compare with format None"):
        compare_benchmarks({}, record(2.0, 4))
