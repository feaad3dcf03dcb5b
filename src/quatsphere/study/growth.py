"""How differences between rows change in the course of training: the validation accuracy of every epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quatsphere.study.statistics import Samples, by_seed, mean
from quatsphere.study.tables import CROSSED, NONE, Table

QUESTIONS: dict[str, Mapping[str, float]] = {
    "transport -> identity": {"transport_identity": 1.0, "full": -1.0},
    "routing -> uniform": {"routing_uniform": 1.0, "full": -1.0},
    "both roles off": {"both_off": 1.0, "full": -1.0},
    "both off against the additive prediction": CROSSED[
        "routing x transport (both off against the additive prediction)"
    ],
    "frozen random field": {"frozen_random": 1.0, "full": -1.0},
    "attention over QSV": {"attention": 1.0, "full": -1.0},
    "flat lattice over sphere (attention)": {"flat": 1.0, "attention": -1.0},
    "W_V -> identity (sphere)": {"attention_value_identity": 1.0, "attention": -1.0},
    "attention at QSV's width over the matched one": {"attention_wide": 1.0, "attention": -1.0},
}
"""Contrasts of the paper's main statements: question -> weights."""
SHOWN = 8
"""Largest number of epochs shown, evenly spread from the first to the last that all cells have."""


def growth(records: Sequence[Mapping[str, Any]]) -> Table:
    """Each contrast after several epochs, in points of validation accuracy, over the seeds that all its rows have."""
    cells = [record for record in records if record["dataset"] == "cifar10" and record["status"] == "finished"]
    count = min((len(record["trajectory"]["val_accuracy"]) for record in cells), default=0)
    epochs = sorted({round(place * (count - 1) / (SHOWN - 1)) for place in range(SHOWN)}) if count else []
    after = [_accuracies(cells, epoch) for epoch in epochs]
    rows = [(question, *(_mean(samples, weights) for samples in after)) for question, weights in QUESTIONS.items()]
    head = ("Contrast, validation accuracy in points", *(f"epoch {epoch + 1}" for epoch in epochs))
    return Table("growth", "Differences by epoch", head, tuple(rows))


def _accuracies(records: Sequence[Mapping[str, Any]], epoch: int) -> Samples:
    found: dict[str, dict[int, float]] = {}
    for record in records:
        value = record["trajectory"]["val_accuracy"][epoch]
        if value is not None:
            found.setdefault(record["variant"], {})[record["seed"]] = 100 * value
    return found


def _mean(samples: Samples, weights: Mapping[str, float]) -> str:
    found = mean(by_seed(samples, weights))
    return NONE if found is None else f"{found.value:+.1f}"
