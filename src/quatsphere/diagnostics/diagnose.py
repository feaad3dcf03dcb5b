"""Diagnose a trained model: sections of numbers that JSON can hold, explained in docs/diagnostics.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import torch

from quatsphere.data import Dataset
from quatsphere.diagnostics.cost_breakdown import FUSED_NOTE, fractions, runs_fused, time_forward, time_parts
from quatsphere.diagnostics.measures import (
    beta_band,
    effective_share,
    gradient_map,
    head_similarity,
    histogram_edges,
    loop_transport_error,
    metric_agreement,
    pixel_gradients,
    shell_coverage,
    summarize,
    to_json_values,
    triangle_angles,
    triangles,
    weighted_mean,
)
from quatsphere.diagnostics.traced_model import TracedModel, has_field, transport_effects
from quatsphere.errors import ConfigError
from quatsphere.models import Model
from quatsphere.nn.field import LearnedBound, NoPerturbation
from quatsphere.nn.trace import field_motion

SectionValues = dict[str, Any]
MakeSection = Callable[[TracedModel], SectionValues]
GRADIENT_BATCH = 16
"""Images per backward pass of the receptive field."""
LOGGED = ("routing_entropy", "routing_peak", "beta", "bound", "field_motion", "val_accuracy", "images_per_second")
"""Fields of metrics.jsonl that are copied unchanged."""


def absent(reason: str) -> SectionValues:
    """Return a section that does not apply, with the reason."""
    return {"absent": reason}


SECTIONS: dict[str, MakeSection] = {}
"""name -> section, in the order of the output."""


def section(needs: str = "") -> Callable[[MakeSection], MakeSection]:
    """Register a function as the section of its name; it is absent for models without `shells` or `quaternions`."""

    def register(make: MakeSection) -> MakeSection:
        def apply(traced: TracedModel) -> SectionValues:
            lacks = (needs == "shells" and not traced.steps) or (needs == "quaternions" and not has_field(traced.model))
            return absent(f"the model has no {needs}") if lacks else make(traced)

        SECTIONS[make.__name__.removeprefix("_")] = apply
        return apply

    return register


@section()
def _accuracy(traced: TracedModel) -> SectionValues:
    """Accuracy on the held-out split and on as many unaugmented training images, and the gap between them."""
    held_out = traced.evaluate(traced.subset(traced.split, traced.accuracy_images))
    train = traced.evaluate(traced.subset("train", len(held_out.labels)))
    return {
        "split": traced.split,
        "held_out": held_out.report(),
        "train": {"images": len(train.labels), "accuracy": train.accuracy, "nll": train.nll},
        "gap": train.accuracy - held_out.accuracy,
    }


@section("shells")
def _routing(traced: TracedModel) -> SectionValues:
    """Per step: entropy as a fraction of log k, peak and histogram as multiples of 1/k."""
    images = [float(summary.images) for summary in traced.summaries]
    return {
        "entropy": _per_step(traced, "entropy"),
        "peak": _per_step(traced, "peak"),
        "histogram": {
            "edges": histogram_edges(),
            "shares": weighted_mean([summary.histograms for summary in traced.summaries], images),
        },
    }


@section("quaternions")
def _spread(traced: TracedModel) -> SectionValues:
    """Per step: mean rotation angle to the neighbours and standard deviation of their scores."""
    return {"orientation": _per_step(traced, "orientation"), "score": _per_step(traced, "score")}


@section("quaternions")
def _beta(traced: TracedModel) -> SectionValues:
    """Per step: β of every head, and whether the routing rule uses it."""
    heads = torch.stack([step.module.routing.beta.detach() for step in traced.steps])
    used = traced.steps[0].module.routing.rule != "uniform"
    return {"used": used, "heads": heads, "mean": heads.mean(1), "min": heads.amin(1), "max": heads.amax(1)}


@section("quaternions")
def _bound(traced: TracedModel) -> SectionValues:
    """Per shell: ε, |ω|, and |ω|/ε, which is at most √3 because each of ω's three components is bounded by ε."""
    model: Any = traced.model
    if isinstance(traced.steps[0].module.perturbation, NoPerturbation):
        return absent("the field is not perturbed")
    out = []
    for shell, field in enumerate(model.fields, start=1):
        norms = torch.cat([norm for summary in traced.summaries for norm in summary.tangents[shell]])
        value = float(field.bound.value.detach()) if isinstance(field.bound, LearnedBound) else None
        used = None if value is None else summarize(norms / value)
        out.append({"value": value, "tangent": summarize(norms), "used": used})
    return {"shells": out}


@section("quaternions")
def _heads(traced: TracedModel) -> SectionValues:
    """Per shell: similarity of the heads' base quaternions."""
    model: Any = traced.model
    return {"similarity": [head_similarity(field.base.detach()) for field in model.fields]}


@section("quaternions")
def _drift(traced: TracedModel) -> SectionValues:
    """Per shell: mean rotation angle between the base quaternions and their initial values."""
    model: Any = traced.model
    start: Any = traced.start
    if start is None:
        return absent("the seed of the training is unknown")
    now, then = ([field.base.detach().cpu() for field in each.fields] for each in (model, start))
    return {"angle": field_motion(now, then)}


@section("shells")
def _coverage(traced: TracedModel) -> SectionValues:
    """Per shell: evenness of the vertices and their displacement in training."""
    model: Any = traced.model
    start: Any = traced.start
    now = [shell.positions.detach().cpu() for shell in model.layout.shells]
    then = [None] * len(now) if start is None else [shell.positions.detach() for shell in start.layout.shells]
    return {"shells": [shell_coverage(*pair) for pair in zip(now, then, strict=True)]}


@section("shells")
def _graphs(traced: TracedModel) -> SectionValues:
    """Per step: fraction of targets with the same Euclidean, geodesic and cosine neighbours."""
    model: Any = traced.model
    shells = [shell.positions.detach().cpu() for shell in model.layout.shells]
    if shells[0].shape[1] != 3:
        return absent("on the plane there is one metric")
    return {
        "agreement": [
            metric_agreement(shells[step.target - 1], shells[step.source - 1], step.graph.k + step.graph.others)
            for step in traced.steps
        ]
    }


@section("quaternions")
def _holonomy(traced: TracedModel) -> SectionValues:
    """Largest rotation angle around triangles of a shell, and largest change of a feature transported around them."""
    images = next(traced.batches(traced.subset(traced.split, 2), 2))
    with torch.no_grad():
        trace: Any = traced.model(images, return_trace=True)[1]
    index = 0 if traced.steps[-1].source != traced.steps[-1].target else -1
    corners, field = triangles(trace["neighbours"][index]), trace["field"][index]
    if not len(corners):
        return absent("the graph has no triangles")
    step = traced.steps[index]
    with torch.no_grad():
        rule = step.module.transport.rule
        channels = 1 if isinstance(rule, str) else trace["aggregated"][index].shape[3]
        error = loop_transport_error(field, corners, rule, step.module.backend, channels)
    angles = triangle_angles(field, corners)
    return {"step": step.name, "triangles": len(corners), "angle": float(angles.max()), "carried": error}


@section()
def _parts(traced: TracedModel) -> SectionValues:
    """Parameters and time of a forward pass by part; `note` is set if the pass otherwise runs fused."""
    counts = traced.model.parameter_parts()
    images = next(traced.batches(traced.subset(traced.split, 32), 32))
    return {
        "parameters": counts,
        "total": sum(counts.values()),
        "parameter_share": fractions({name: float(count) for name, count in counts.items()}),
        "time_share": fractions(time_parts(traced.model, images)),
        "images_per_second": len(images) / time_forward(traced.model, images),
        "note": FUSED_NOTE if runs_fused(traced.model, images) else None,
    }


@section("quaternions")
def _transport(traced: TracedModel) -> SectionValues:
    """Changes of accuracy and likelihood without a head's, a step's or all transport at test time."""
    if traced.steps[0].module.transport.rule == "identity":
        return absent("the transport rotates nothing")
    effects = transport_effects(traced.model, lambda: traced.evaluate(traced.traced))
    return {"images": len(traced.traced), **effects}


@section()
def _receptive(traced: TracedModel) -> SectionValues:
    """Gradient of the predicted logit by pixel, averaged over images."""
    total = sum(pixel_gradients(traced.model, images) for images in traced.batches(traced.traced, GRADIENT_BATCH))
    gradients = gradient_map(torch.as_tensor(total).cpu())
    return {"images": len(traced.traced), "map": gradients, "effective_share": effective_share(gradients)}


@section()
def _training(traced: TracedModel) -> SectionValues:
    """Measures logged during training, by epoch."""
    if not traced.metrics:
        return absent("there are no metrics of the training")
    records = [record for record in traced.metrics if "epoch" in record]
    out: SectionValues = {"epoch": [record["epoch"] for record in records]}
    for name in LOGGED:
        out[name] = [record.get(name) for record in records]
    out |= beta_band(records)
    for name in ("loss", "accuracy"):
        out[f"train_{name}"] = [record.get("train", {}).get(name) for record in records]
    return out


def _per_step(traced: TracedModel, name: str) -> torch.Tensor:
    images = [float(summary.images) for summary in traced.summaries]
    return weighted_mean([summary.measures[name] for summary in traced.summaries], images)


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
