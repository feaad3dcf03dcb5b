"""The sections of a diagnosis: each a function from a subject to plain numbers, or to the reason why it is absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from quatsphere.diagnostics.cost_breakdown import FUSED, runs_fused, shares, time_parts, time_whole
from quatsphere.diagnostics.interventions import transport_effects
from quatsphere.diagnostics.measures import (
    as_map,
    carried_error,
    effective_share,
    head_similarity,
    histogram_edges,
    metric_agreement,
    pixel_gradients,
    shell_coverage,
    summary,
    triangle_angles,
    triangles,
    weighted_mean,
)
from quatsphere.diagnostics.traced_model import Subject, has_field
from quatsphere.nn.field import LearnedBound, NoPerturbation
from quatsphere.nn.measures import field_motion

Section = dict[str, Any]
GRADIENTS = 16
"""Images whose gradients are taken at once."""
LOGGED = ("routing_entropy", "routing_peak", "beta", "bound", "field_motion", "val_accuracy", "images_per_second")
"""Fields of metrics.jsonl that are passed on as they are."""
NO_SHELLS, NO_FIELD = "the model has no shells", "the model has no quaternions"


def absent(why: str) -> Section:
    """A section that does not apply, and why."""
    return {"absent": why}


def accuracy(subject: Subject) -> Section:
    """The held-out split whole, as many clean training images, and the gap between them."""
    held_out = subject.evaluate(subject.part(subject.split, subject.accuracy_images))
    train = subject.evaluate(subject.part("train", len(held_out.labels)))
    return {
        "split": subject.split,
        "held_out": held_out.report(),
        "train": {"images": len(train.labels), "accuracy": train.accuracy, "nll": train.nll},
        "gap": train.accuracy - held_out.accuracy,
    }


def routing(subject: Subject) -> Section:
    """Per step: entropy as a share of log k, peak and histogram as multiples of 1/k."""
    if not subject.steps:
        return absent(NO_SHELLS)
    images = [float(seen.images) for seen in subject.seen]
    return {
        "entropy": _per_step(subject, "entropy"),
        "peak": _per_step(subject, "peak"),
        "histogram": {
            "edges": histogram_edges(),
            "shares": weighted_mean([seen.histograms for seen in subject.seen], images),
        },
    }


def spread(subject: Subject) -> Section:
    """Per step: rotation angles to the neighbours, and how much their scores differ."""
    if not has_field(subject.model):
        return absent(NO_FIELD)
    return {"orientation": _per_step(subject, "orientation"), "score": _per_step(subject, "score")}


def beta(subject: Subject) -> Section:
    """Per step: β of every head, and whether the routing uses it."""
    if not has_field(subject.model):
        return absent(NO_FIELD)
    heads = torch.stack([step.module.routing.beta.detach() for step in subject.steps])
    used = subject.steps[0].module.routing.rule != "uniform"
    return {"used": used, "heads": heads, "mean": heads.mean(1), "min": heads.amin(1), "max": heads.amax(1)}


def bound(subject: Subject) -> Section:
    """Per shell: ε, |ω|, and |ω|/ε, which is at most √3 because each of ω's three components is bounded by ε."""
    model: Any = subject.model
    if not has_field(model):
        return absent(NO_FIELD)
    if isinstance(subject.steps[0].module.perturbation, NoPerturbation):
        return absent("the field is not perturbed")
    out = []
    for shell, field in enumerate(model.fields, start=1):
        norms = torch.cat([norm for seen in subject.seen for norm in seen.tangents[shell]])
        value = float(field.bound.value.detach()) if isinstance(field.bound, LearnedBound) else None
        used = None if value is None else summary(norms / value)
        out.append({"value": value, "tangent": summary(norms), "used": used})
    return {"shells": out}


def heads(subject: Subject) -> Section:
    """Per shell: how alike the heads' base quaternions are."""
    model: Any = subject.model
    if not has_field(model):
        return absent(NO_FIELD)
    return {"similarity": [head_similarity(field.base.detach()) for field in model.fields]}


def drift(subject: Subject) -> Section:
    """Per shell: mean rotation angle of the base quaternions from where they started."""
    model: Any = subject.model
    start: Any = subject.start
    if not has_field(model):
        return absent(NO_FIELD)
    if start is None:
        return absent("the seed of the start is not known")
    now, then = ([field.base.detach().cpu() for field in each.fields] for each in (model, start))
    return {"angle": field_motion(now, then)}


def coverage(subject: Subject) -> Section:
    """Per shell: how evenly vertices lie, and how far they moved."""
    model: Any = subject.model
    start: Any = subject.start
    if not subject.steps:
        return absent(NO_SHELLS)
    now = [shell.positions.detach().cpu() for shell in model.layout.shells]
    then = [None] * len(now) if start is None else [shell.positions.detach() for shell in start.layout.shells]
    return {"shells": [shell_coverage(*pair) for pair in zip(now, then, strict=True)]}


def graphs(subject: Subject) -> Section:
    """Per step: the share of targets for which Euclidean, geodesic and cosine neighbours are the same."""
    model: Any = subject.model
    if not subject.steps:
        return absent(NO_SHELLS)
    shells = [shell.positions.detach().cpu() for shell in model.layout.shells]
    if shells[0].shape[1] != 3:
        return absent("on the plane there is one metric")
    return {
        "agreement": [
            metric_agreement(shells[step.target - 1], shells[step.source - 1], step.graph.k + step.graph.others)
            for step in subject.steps
        ]
    }


def holonomy(subject: Subject) -> Section:
    """Triangles within a shell: largest rotation left over after a walk round, and what the kernel leaves over."""
    if not has_field(subject.model):
        return absent(NO_FIELD)
    images = next(subject.batches(subject.part(subject.split, 2), 2))
    with torch.no_grad():
        trace: Any = subject.model(images, return_trace=True)[1]
    index = 0 if subject.steps[-1].source != subject.steps[-1].target else -1
    corners, field = triangles(trace["neighbours"][index]), trace["field"][index]
    if not len(corners):
        return absent("the graph has no triangles")
    step = subject.steps[index]
    with torch.no_grad():
        rule = step.module.transport.rule
        channels = 1 if isinstance(rule, str) else trace["aggregated"][index].shape[3]
        error = carried_error(field, corners, rule, step.module.backend, channels)
    angles = triangle_angles(field, corners)
    return {"step": step.name, "triangles": len(corners), "angle": float(angles.max()), "carried": error}


def parts(subject: Subject) -> Section:
    """Parameters and time of a forward pass, by part; `note` says where the pass otherwise runs fused."""
    counts = subject.model.parameter_parts()
    images = next(subject.batches(subject.part(subject.split, 32), 32))
    return {
        "parameters": counts,
        "total": sum(counts.values()),
        "parameter_share": shares({name: float(count) for name, count in counts.items()}),
        "time_share": shares(time_parts(subject.model, images)),
        "images_per_second": len(images) / time_whole(subject.model, images),
        "note": FUSED if runs_fused(subject.model, images) else None,
    }


def transport(subject: Subject) -> Section:
    """Changes of accuracy and likelihood without a head's, a step's or all transport at test time."""
    if not has_field(subject.model):
        return absent(NO_FIELD)
    if subject.steps[0].module.transport.rule == "identity":
        return absent("the transport turns nothing")
    effects = transport_effects(subject.model, lambda: subject.evaluate(subject.traced))
    return {"images": len(subject.traced), **effects}


def receptive(subject: Subject) -> Section:
    """Which pixels the predicted logit leans on, averaged over images."""
    total = sum(pixel_gradients(subject.model, images) for images in subject.batches(subject.traced, GRADIENTS))
    shown = as_map(torch.as_tensor(total).cpu())
    return {"images": len(subject.traced), "map": shown, "effective_share": effective_share(shown)}


def training(subject: Subject) -> Section:
    """How the logged measures went, epoch by epoch."""
    if not subject.metrics:
        return absent("no metrics of the training are known")
    records = [record for record in subject.metrics if "epoch" in record]
    out: Section = {"epoch": [record["epoch"] for record in records]}
    for name in LOGGED:
        out[name] = [record.get(name) for record in records]
    for name, pick in {"beta_min": min, "beta_max": max}.items():
        out[name] = [[pick(heads) for heads in record.get("beta_heads", [])] for record in records]
    for name in ("loss", "accuracy"):
        out[f"train_{name}"] = [record.get("train", {}).get(name) for record in records]
    return out


def _per_step(subject: Subject, name: str) -> torch.Tensor:
    images = [float(seen.images) for seen in subject.seen]
    return weighted_mean([seen.measures[name] for seen in subject.seen], images)


SECTIONS: dict[str, Callable[[Subject], Section]] = {
    "accuracy": accuracy,
    "routing": routing,
    "spread": spread,
    "beta": beta,
    "bound": bound,
    "heads": heads,
    "drift": drift,
    "coverage": coverage,
    "graphs": graphs,
    "holonomy": holonomy,
    "parts": parts,
    "transport": transport,
    "receptive": receptive,
    "training": training,
}
"""name -> section, in the order of the file."""
