"""Lower precision, compiled models and other optimisers in the training loop."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import as_words, tiny_config, trace_of

from quatsphere.train import train

pytestmark = pytest.mark.usefixtures("unchecked")


def three_steps(**more: Any) -> dict[str, Any]:
    few = {"max_train_images": 30, "val_fraction": 0.02, "test_fraction": 0.02}
    return {"epochs": 1, "batch_size": 10, "data": few} | more


def first_losses(run: Path, **more: Any) -> dict[str, float]:
    train(tiny_config(**three_steps(**more)), run)
    losses: dict[str, float] = trace_of(run)["metrics"][0]["train"]
    return losses


@pytest.fixture(scope="module")
def exact(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return first_losses(tmp_path_factory.mktemp("exact") / "run")


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), ("fp16", 5e-3)])
def test_autocast_trains_and_stays_close(
    precision: str, tolerance: float, exact: dict[str, float], tmp_path: Path
) -> None:
    losses = first_losses(tmp_path / "run", precision=precision)
    assert losses["loss"] == pytest.approx(exact["loss"], rel=tolerance)
    assert losses["loss"] != exact["loss"]


SCRIPT = """
import sys
from quatsphere.cli import main
main(["info", *sys.argv[2:-1]])
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="disables instructions of x86")
def test_slow_bf16_is_noted_once_at_the_start(tmp_path: Path) -> None:
    """Restrict the matrix library to AVX2, as on older processors: info and train both warn, once each."""
    words = as_words(tiny_config(**three_steps(precision="bf16")), tmp_path / "run")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    )
    warning = "train.precision bf16 is slow on this processor"
    for output in (run.stdout, run.stderr):
        lines = [line for line in output.splitlines() if warning in line]
        assert len(lines) == 1
        assert "use --train.precision fp32" in lines[0]


@pytest.mark.parametrize(
    "optim",
    [
        {"quaternion_optimizer": "adamw_renormalise"},
        {"quaternion_schedule": "annealed", "schedule": "constant", "repulsion": False},
    ],
)
def test_other_optimisers_and_schedules_train(optim: dict[str, Any], exact: dict[str, float], tmp_path: Path) -> None:
    losses = first_losses(tmp_path / "run", optim=optim)
    assert math.isfinite(losses["loss"])
    assert losses["loss"] != exact["loss"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on CPUs")
def test_compiled_model_has_the_same_losses(exact: dict[str, float], tmp_path: Path) -> None:
    losses = first_losses(tmp_path / "run", compile=True, deterministic=False)
    assert losses == pytest.approx(exact, rel=1e-3)
