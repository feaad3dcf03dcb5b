"""One model, every section: plain numbers that JSON can hold (docs/diagnostics.md says what each means)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from quatsphere.data import Dataset
from quatsphere.diagnostics.measures import plain
from quatsphere.diagnostics.sections import SECTIONS
from quatsphere.diagnostics.traced_model import Subject
from quatsphere.errors import ConfigError
from quatsphere.models import Model

SCHEMA = 1
"""Version of the layout below; a reader refuses a later one."""

PAPER: dict[str, str] = {
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
"""What the paper reports of its QSV on CIFAR-10 at full size (section 4), by section and field."""


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
    """Every section of a trained model, each with its numbers or with `absent` and the reason.

    `images` of the split are traced; accuracy takes `accuracy_images` of it (none: all) and as many training images.
    `seed` is the training's: with it the start is rebuilt and drift and displacement can be measured. `metrics` are
    the records of metrics.jsonl. `only` names the sections to compute.
    """
    unknown = sorted(set(only) - set(SECTIONS))
    if unknown or images < 1:
        what = f"no section {unknown[0]!r}; choose from {', '.join(SECTIONS)}" if unknown else "images must be >= 1"
        raise ConfigError(f"cannot diagnose: {what}")
    current = ""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(current, done, total)

    subject = Subject(model, dataset, split, images, accuracy_images, seed, metrics, tell)
    out = {"schema": SCHEMA, **identity(subject)}
    was_training = model.training
    model.eval()
    try:
        for current in (name for name in SECTIONS if name in only):
            out[current] = SECTIONS[current](subject)
    finally:
        model.train(was_training)
    return dict(plain(out))


def identity(subject: Subject) -> dict[str, Any]:
    """Which model was looked at, on what, and what its steps and shells are called."""
    model: Any = subject.model
    return {
        "paper": PAPER if (model.config.name, subject.dataset.name) == ("qsv", "cifar10") else {},
        "model": model.config.name,
        "layout": getattr(model.config, "layout", None),
        "data": subject.dataset.name,
        "split": subject.split,
        "images": len(subject.traced),
        "steps": [{"name": s.name, "source": s.source, "target": s.target, "k": s.graph.k} for s in subject.steps],
        "shells": [{"vertices": shell.count} for shell in model.layout.shells] if subject.steps else [],
    }
