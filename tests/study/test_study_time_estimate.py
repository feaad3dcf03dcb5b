"""Estimates of time: images over images per second, several cells at a time."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

import pytest
from helpers.study_records import make_record
from rich.console import Console
from torch.nn.modules.module import register_module_forward_pre_hook

from quatsphere.models import QSV
from quatsphere.report.study_display import StudyDisplay
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.results import Results
from quatsphere.study.runner import Outcome, make_request
from quatsphere.study.time_estimate import (
    MAX_STEPS,
    MIN_STEPS,
    SpeedEstimator,
    format_seconds,
    images_of,
    median_seconds,
    probe_speed,
)


def lite_cells(*only: str, **settings: Any) -> list[Any]:
    changes = {"train.epochs": 10, "data.max_train_images": 15_000}
    return plan_cells(PLANS["lite"], seeds=[42], only=[f"cifar10.{row}.s42" for row in only], settings=changes)


def speed_row(row: str, speed: float) -> dict[str, Any]:
    return make_record(row, 42, 50.0, trajectory={"images_per_second": [speed] * 10})


def test_images_of_a_cell() -> None:
    (cell,) = plan_cells(PLANS["lite"], only=["cifar10.full.s42"], settings={"train.epochs": 2})
    assert images_of(cell) == 2 * min(45_000, cell.config.data.max_train_images or 45_000)
    (part,) = plan_cells(PLANS["lite"], only=["cifar100-part.full.s42"])
    assert images_of(part) == part.config.train.epochs * 9_000


def test_speed_of_a_row_precedes_that_of_its_model() -> None:
    speeds = SpeedEstimator([speed_row("full", 100.0), speed_row("routing_uniform", 200.0)])
    full, uniform, identity = lite_cells("full", "routing_uniform", "transport_identity")
    images = images_of(full)
    assert speeds.seconds(full) == pytest.approx(images / 100)
    assert speeds.seconds(identity) == pytest.approx(images / 200)
    assert speeds.remaining([full, uniform], jobs=2) == pytest.approx((images / 100 + images / 200) / 2)
    assert speeds.remaining([full], jobs=2, done=50.0) == pytest.approx(images / 100 - 50)
    assert speeds.remaining([], jobs=2) is None
    assert SpeedEstimator().seconds(full) is None


def test_model_without_known_speed_is_timed() -> None:
    (cell,) = plan_cells(PLANS["smoke"], only=["digits.full.s1"])
    assert probe_speed(cell.config) > 0
    speeds = SpeedEstimator()
    speeds.measure([cell])
    assert speeds.seconds(cell) is None


def test_median_ignores_slow_outliers() -> None:
    """A first step that compiles and a step delayed by other work do not change the median."""
    waits = iter([0.3, 0.01, 0.3, *[0.01] * 100])
    assert 0.01 <= median_seconds(lambda: time.sleep(next(waits))) < 0.03


def test_number_of_timed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    median_seconds(lambda: steps.append(time.sleep(0.001)))
    assert len(steps) == 1 + MAX_STEPS
    monkeypatch.setattr("quatsphere.study.time_estimate.PROBE_SECONDS", 0.1)
    slow = iter(range(10))
    median_seconds(lambda: time.sleep(0.06 if next(slow) else 0))
    assert next(slow) == 1 + MIN_STEPS


def test_probe_uses_the_plans_batch_size() -> None:
    sizes = []
    (cell,) = plan_cells(PLANS["smoke"], only=["digits.full.s1"], settings={"train.epochs": 20, "train.batch_size": 24})
    hook = register_module_forward_pre_hook(
        lambda module, inputs: sizes.append(len(inputs[0])) if isinstance(module, QSV) else None
    )
    said: list[str] = []
    speeds = SpeedEstimator()
    with contextlib.ExitStack() as stack:
        stack.callback(hook.remove)
        speeds.measure([cell, cell], said.append)
    assert set(sizes) == {24}
    assert len(sizes) > 1 + MIN_STEPS
    assert said[0] == "timing a few training steps of qsv, 24 images each ..."
    assert said[1] == f"qsv: {speeds.speeds['model qsv']:.0f} images/s"
    assert len(said) == 2


def test_duration_format() -> None:
    assert [format_seconds(s) for s in (5, 65, 3 * 3600 + 120)] == ["5 s", "1 min 5 s", "3 h 2 min"]


def test_display_of_progress(tmp_path: Any) -> None:
    cells = lite_cells("full", "both_off", "attention")
    display = StudyDisplay(cells, 2, SpeedEstimator([speed_row("full", 100.0)]))
    display.console = Console(file=io.StringIO(), width=200)
    requests = [make_request(cell, Results(tmp_path)) for cell in cells]
    with display:
        for request in requests:
            display.started(request.id)
        display.progress(requests[0].id, 50, 100, 99.0)
        assert display.summary().startswith("0 of 3, about ")
        shown = io.StringIO()
        Console(file=shown, width=120).print(display.table())
        assert "50/100" in shown.getvalue()
        display.ended(Outcome(requests[0], speed_row("full", 100.0)))
        display.ended(Outcome(requests[1], None, "no memory"))
        diverged = make_record("attention", 42, 0.0) | {"status": "diverged", "reason": "loss is not finite"}
        display.ended(Outcome(requests[2], diverged))
    assert display.summary() == "3 of 3, 1 failed"
    text = display.console.file.getvalue()
    assert "cifar10.full.s42: test 0.5000" in text
    assert "failed: no memory" in text
    assert "diverged: loss is not finite" in text
