"""Time: images over images per second, side by side."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

import pytest
from made_up_results import make_row
from rich.console import Console
from torch.nn.modules.module import register_module_forward_pre_hook

from quatsphere.cli.study_board import Board
from quatsphere.models import QSV
from quatsphere.study.estimate import (
    FEWEST_STEPS,
    MOST_STEPS,
    Pace,
    images_of,
    median_seconds,
    probe_speed,
    spell_seconds,
)
from quatsphere.study.launch import Outcome
from quatsphere.study.plan import PLANS, plan_cells
from quatsphere.study.results import Results
from quatsphere.study.runner import request_of


def lite_cells(*only: str, **settings: Any) -> list[Any]:
    changes = {"train.epochs": 10, "data.max_train_images": 15_000}
    return plan_cells(PLANS["lite"], seeds=[42], only=[f"cifar10.{row}.s42" for row in only], settings=changes)


def speed_row(row: str, speed: float) -> dict[str, Any]:
    return make_row(row, 42, 50.0, trajectory={"images_per_second": [speed] * 10})


def test_images_of_a_cell() -> None:
    (cell,) = plan_cells(PLANS["lite"], only=["cifar10.full.s42"], settings={"train.epochs": 2})
    assert images_of(cell) == 2 * min(45_000, cell.config.data.max_train_images or 45_000)
    (part,) = plan_cells(PLANS["lite"], only=["cifar100-part.full.s42"])
    assert images_of(part) == part.config.train.epochs * 9_000


def test_the_speed_of_a_row_is_better_known_than_that_of_its_model() -> None:
    pace = Pace([speed_row("full", 100.0), speed_row("routing_uniform", 200.0)])
    full, uniform, identity = lite_cells("full", "routing_uniform", "transport_identity")
    images = images_of(full)
    assert pace.seconds(full) == pytest.approx(images / 100)
    assert pace.seconds(identity) == pytest.approx(images / 200)
    assert pace.left([full, uniform], jobs=2) == pytest.approx((images / 100 + images / 200) / 2)
    assert pace.left([full], jobs=2, done=50.0) == pytest.approx(images / 100 - 50)
    assert pace.left([], jobs=2) is None
    assert Pace().seconds(full) is None


def test_a_model_nobody_has_heard_of_is_probed() -> None:
    (cell,) = plan_cells(PLANS["smoke"], only=["digits.full.s1"])
    assert probe_speed(cell.config) > 0
    pace = Pace()
    pace.measure([cell])
    assert pace.seconds(cell) is None


def test_a_disturbed_step_does_not_count() -> None:
    """A first step that compiles and one that other work holds up: the median is that of the others."""
    waits = iter([0.3, 0.01, 0.3, *[0.01] * 100])
    assert 0.01 <= median_seconds(lambda: time.sleep(next(waits))) < 0.03


def test_a_slow_step_is_timed_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    median_seconds(lambda: steps.append(time.sleep(0.001)))
    assert len(steps) == 1 + MOST_STEPS
    monkeypatch.setattr("quatsphere.study.estimate.PROBE_SECONDS", 0.1)
    slow = iter(range(10))
    median_seconds(lambda: time.sleep(0.06 if next(slow) else 0))
    assert next(slow) == 1 + FEWEST_STEPS


def test_a_probe_takes_batches_of_the_plans_size_and_says_so() -> None:
    sizes = []
    (cell,) = plan_cells(PLANS["smoke"], only=["digits.full.s1"], settings={"train.epochs": 20, "train.batch_size": 24})
    hook = register_module_forward_pre_hook(
        lambda module, inputs: sizes.append(len(inputs[0])) if isinstance(module, QSV) else None
    )
    said: list[str] = []
    pace = Pace()
    with contextlib.ExitStack() as stack:
        stack.callback(hook.remove)
        pace.measure([cell, cell], said.append)
    assert set(sizes) == {24}
    assert len(sizes) > 1 + FEWEST_STEPS
    assert said[0] == "timing a few training steps of qsv, 24 images each ..."
    assert said[1] == f"qsv: {pace.speeds['model qsv']:.0f} images/s"
    assert len(said) == 2


def test_time_for_people() -> None:
    assert [spell_seconds(s) for s in (5, 65, 3 * 3600 + 120)] == ["5 s", "1 min 5 s", "3 h 2 min"]


def test_the_board_counts_and_tells(tmp_path: Any) -> None:
    cells = lite_cells("full", "both_off", "attention")
    board = Board(cells, 2, Pace([speed_row("full", 100.0)]))
    board.console = Console(file=io.StringIO(), width=200)
    requests = [request_of(cell, Results(tmp_path)) for cell in cells]
    with board:
        for request in requests:
            board.started(request.id)
        board.news(requests[0].id, 50, 100, 99.0)
        assert board.summary().startswith("0 of 3, about ")
        shown = io.StringIO()
        Console(file=shown, width=120).print(board.table())
        assert "50/100" in shown.getvalue()
        board.ended(Outcome(requests[0], speed_row("full", 100.0)))
        board.ended(Outcome(requests[1], None, "no memory"))
        diverged = make_row("attention", 42, 0.0) | {"status": "diverged", "reason": "loss is not finite"}
        board.ended(Outcome(requests[2], diverged))
    assert board.summary() == "3 of 3, 1 failed"
    text = board.console.file.getvalue()
    assert "cifar10.full.s42: test 0.5000" in text
    assert "failed: no memory" in text
    assert "diverged: loss is not finite" in text
