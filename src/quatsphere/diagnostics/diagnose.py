"""Diagnose a trained model: sections of numbers that JSON can hold, explained in docs/diagnostics.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from quatsphere.data import Dataset
from quatsphere.diagnostics.measures import to_json_values
from quatsphere.diagnostics.sections import SECTIONS
from quatsphere.diagnostics.traced_model import TracedModel
from quatsphere.errors import ConfigError
from quatsphere.models import Model

SCHEMA = 1
"""Version of the output; readers refuse a later one."""

PAPER_VALUES: dict[str, str] = {
    "accuracy.train": "0.957",
    "accuracy.held_out": "0.865",
    "accuracy.gap": "about 0.09",
    "accuracy.per_class": "automobile, truck, ship, frog easiest; cat hardest",
    "routing.entropy": "about 0.99",
    "routing.peak": "1.2-1.4",
    "spread.orientation": "0.9-1.8",
    "spread.score": "0.24-0.46",
    "beta.mean": "0.50-0.76",
    "beta.training": "falling",
    "bound.value": "0.01-0.785",
    "coverage.displacement": "very little",
    "graphs.agreement": "identical",
    "parts.total": "0.64M",
}
"""Values that the paper reports for QSV on CIFAR-10 at full size (section 4), by section and field."""


class Diagnosis(dict[str, Any]):
    """Sections of a diagnosis by name; prints as one line."""

    def __repr__(self) -> str:
        """Model, data, and names of the sections."""
        sections = ", ".join(name for name in SECTIONS if name in self)
        source = f"{self.get('model')} on {self.get('images')} {self.get('split')} images of {self.get('data')}"
        return f"Diagnosis({source}: {sections})"


def diagnose(
    model: Model,
    dataset: Dataset,
    *,
    split: Literal["train", "val", "test"] = "val",
    images: int = 256,
    accuracy_images: int | None = None,
    seed: int | None = None,
    metrics: Sequence[dict[str, Any]] = (),
    only: Collection[str] = tuple(SECTIONS),
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Return every section of a trained model, each with its numbers or with `absent` and the reason.

    Args:
        model: the trained model; its mode (train or eval) is restored afterwards.
        dataset: the data it was trained on.
        split: split to trace and to classify.
        images: number of images of the split to trace.
        accuracy_images: number of images of the split to classify (None: all); as many training images are.
        seed: seed of the training; needed for drift and displacement, which compare with the initial weights.
        metrics: records of metrics.jsonl, for the section `training`.
        only: names of the sections to compute.
        progress: called with (section, done, total).
    """
    unknown = sorted(set(only) - set(SECTIONS))
    if unknown or images < 1:
        what = f"no section {unknown[0]!r}; choose from {', '.join(SECTIONS)}" if unknown else "images must be >= 1"
        raise ConfigError(f"cannot diagnose: {what}")
    current = ""

    def report_progress(done: int, total: int) -> None:
        if progress is not None:
            progress(current, done, total)

    traced = TracedModel(model, dataset, split, images, accuracy_images, seed, metrics, report_progress)
    out = {"schema": SCHEMA, **_identity(traced)}
    was_training = model.training
    model.eval()
    try:
        for current in (name for name in SECTIONS if name in only):
            out[current] = SECTIONS[current](traced)
    finally:
        model.train(was_training)
    return Diagnosis(to_json_values(out))


def _identity(traced: TracedModel) -> dict[str, Any]:
    """Return the names of model, data, steps and shells."""
    model: Any = traced.model
    return {
        "paper": PAPER_VALUES if (model.config.name, traced.dataset.name) == ("qsv", "cifar10") else {},
        "model": model.config.name,
        "layout": getattr(model.config, "layout", None),
        "data": traced.dataset.name,
        "split": traced.split,
        "images": len(traced.traced),
        "steps": [{"name": s.name, "source": s.source, "target": s.target, "k": s.graph.k} for s in traced.steps],
        "shells": [{"vertices": shell.count} for shell in model.layout.shells] if traced.steps else [],
    }
