"""Losses of eight steps of every variant against stored values.

A difference is a change of the computation: data order, augmentation, initial weights, model, losses or optimisers. If
it is intended, write the file again with QUATSPHERE_WRITE_GOLDEN=1 and pytest -m "".
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import tiny_config, trace_of

from quatsphere.config import AttentionConfig, ModelConfig, QSVConfig, ResNet20Config
from quatsphere.train import train

pytestmark = pytest.mark.usefixtures("unchecked")
GOLDEN = Path(__file__).with_name("golden_losses.json")
TOLERANCE = 1e-3
"""Relative tolerance over eight steps: processors and backends differ only in the last bits."""
QUICK = ("full", "attention", "resnet20")


def qsv(**changes: Any) -> QSVConfig:
    return dataclasses.replace(tiny_config().model, **changes)


ATTENTION = AttentionConfig(dim=16, heads=2, base_vertices=16, shells=2, neighbours=4, plane_rows=8)
VARIANTS: dict[str, ModelConfig] = {
    "full": qsv(),
    "absolute": qsv(routing="absolute"),
    "uniform": qsv(routing="uniform"),
    "geometric": qsv(routing="geometric"),
    "transport identity": qsv(transport="identity"),
    "both off": qsv(routing="uniform", transport="identity"),
    "frozen random": qsv(field_mode="frozen_random"),
    "on the plane": qsv(layout="plane", plane_rows=8),
    "attention": ATTENTION,
    "flat attention": dataclasses.replace(ATTENTION, layout="plane"),
    "resnet20": ResNet20Config(width=4),
}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in VARIANTS])
def test_losses_equal_the_stored_ones(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(epochs=2), model=VARIANTS[name])
    train(config, tmp_path / "run")
    found = [record["train"] for record in trace_of(tmp_path / "run")["metrics"]]
    stored = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("QUATSPHERE_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**stored, name: found}, indent=1, sort_keys=True) + "\n")
        return
    for epoch, losses in enumerate(stored[name]):
        assert found[epoch].keys() == losses.keys()
        for loss, value in losses.items():
            slack = 0.05 if loss == "accuracy" else 1e-7
            assert found[epoch][loss] == pytest.approx(value, rel=TOLERANCE, abs=slack), f"epoch {epoch + 1}: {loss}"
