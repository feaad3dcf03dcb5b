"""What a model on shells does with a few images, step by step: the trace that the 3-D view draws."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion
from quatsphere.models import QSV, AttentionNet, build_model
from quatsphere.report.pictures import to_rgb
from quatsphere.report.run_pictures import sampled, shell_positions
from quatsphere.report.view import Trace
from quatsphere.train.load import Trained

Arrays = dict[str, np.ndarray[Any, Any]]
LIKELIEST = 3
ROUTINGS = {"softmax": "dot product"}
"""How the view calls a routing, where not by the setting's name."""


class Shown(NamedTuple):
    """An image to look at: its name, uint8 pixels (C, H, W), and what it shows where that is known."""

    name: str
    pixels: Tensor
    label: int | None


def compute_trace(trained: Trained, shown: list[Shown]) -> Trace:
    """Everything the view draws, for all images at once."""
    model = trained.model
    if not isinstance(model, QSV | AttentionNet):
        raise ConfigError(f"'{trained.config.model.name}' has no shells to look at; view a run of qsv or attention")
    pixels = torch.stack([image.pixels for image in shown])
    images = normalize(pixels, torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"]))
    logits, trace = model(images, return_trace=True)
    arrays: Arrays = {"pixels": pixels.numpy(), "pool": to_array(pool_weights(trace).mean(-1))}
    arrays |= {f"positions.{shell}": places for shell, places in enumerate(shell_positions(model))}
    steps = step_facts(model)
    for step in range(len(steps)):
        weights = to_array(trace["weights"][step])
        arrays[f"weights.{step}"] = weights
        arrays[f"neighbours.{step}"] = trace["neighbours"][step].numpy().astype(index_type(model))
        arrays[f"norm.{step}"] = to_array(trace["hidden"][step].norm(dim=-1))
    arrays |= evidence(model, trace, logits)
    arrays |= colours(model, pixels, arrays, steps)
    if isinstance(model, QSV):
        arrays |= quaternions(trained, model, trace)
    return Trace(facts(trained, shown, logits.detach(), steps), arrays)


def index_type(model: QSV | AttentionNet) -> type:
    """Two bytes for every shell that fits."""
    return np.uint16 if max(model.layout.vertex_counts) <= 1 << 16 else np.uint32


def to_array(values: Tensor) -> np.ndarray[Any, Any]:
    """Plain float32 numbers."""
    return values.detach().float().numpy()


def step_facts(model: QSV | AttentionNet) -> list[dict[str, Any]]:
    """Every step in order: its name, and the shells it goes from and to (counted from 0)."""
    last = len(model.layout.shells) - 1
    cross = [{"name": f"shell {s + 1} → {s + 2}", "source": s, "target": s + 1} for s in range(last)]
    rounds = [
        {"name": f"round {r + 1} on shell {last + 1}", "source": last, "target": last} for r in range(len(model.rounds))
    ]
    return [{"name": "within shell 1", "source": 0, "target": 0}, *cross, *rounds]


def facts(trained: Trained, shown: list[Shown], logits: Tensor, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Names and numbers that are no arrays."""
    config, classes = trained.config.model, trained.meta["classes"]
    routing = getattr(config, "routing", "")
    model: Any = trained.model
    best = logits.softmax(1).topk(min(LIKELIEST, logits.shape[1]))
    return {
        "run": trained.run.name,
        "checkpoint": trained.step,
        "model": config.name,
        "layout": getattr(config, "layout", ""),
        "routing": ROUTINGS.get(routing, routing),
        "transport": getattr(config, "transport", None),
        "heads": model.config.heads,
        "steps": steps,
        "images": [
            {
                "name": image.name,
                "truth": None if image.label is None else classes[image.label],
                "said": [{"name": classes[i], "probability": p} for i, p in zip(ids, ps, strict=True)],
            }
            for image, ids, ps in zip(shown, best.indices.tolist(), best.values.tolist(), strict=True)
        ],
    }


def evidence(model: QSV | AttentionNet, trace: Any, logits: Tensor) -> Arrays:
    """How much each vertex adds to the logit of the predicted class.

    After the last step exactly: the pool weight times ⟨W_c, x_v⟩, which sums to the logit minus its bias. Before it
    to first order: the token times the gradient of that logit.
    """
    said = logits.argmax(1)
    gradients = torch.autograd.grad(logits.gather(1, said[:, None]).sum(), trace["hidden"])
    shares = [(hidden * gradient).sum(-1) for hidden, gradient in zip(trace["hidden"], gradients, strict=True)]
    pool = pool_weights(trace)
    added = trace["hidden"][-1] * model.classifier.weight[said][:, None]
    shares[-1] = (pool * added.unflatten(-1, (pool.shape[-1], -1)).sum(-1)).sum(-1)
    return {f"evidence.{step}": to_array(share) for step, share in enumerate(shares)}


def pool_weights(trace: Any) -> Tensor:
    """(B, V, H) where each head has its own, else (B, V, 1)."""
    weights: Tensor = trace["pool_weights"]
    return weights if weights.ndim == 3 else weights.unsqueeze(-1)


def colours(model: Any, pixels: Tensor, arrays: Arrays, steps: list[dict[str, Any]]) -> Arrays:
    """The image on the first shell (mean of each vertex's samples), and what the routing carries inwards of it."""
    found: Arrays = {}
    heard = np.stack([to_rgb(sampled(model, image.float() / 255)[1]) for image in pixels])
    for step, _ in enumerate(steps):
        if step > 0:
            weights = arrays[f"weights.{step}"].mean(axis=-1)
            heard = np.einsum("itk,itkc->itc", weights, heard[:, arrays[f"neighbours.{step}"]])
        found[f"colour.{step}"] = np.rint(255 * heard.clip(0, 1)).astype(np.uint8)
    return found


def quaternions(trained: Trained, model: QSV, trace: Any) -> Arrays:
    """Frames before and after the perturbation, how far they drifted from their start, and what the sources send."""
    start = build_model(trained.config.model, seed=trained.config.train.seed)
    assert isinstance(start, QSV)
    found: Arrays = {}
    for shell, (field, first) in enumerate(zip(model.fields, start.fields, strict=True)):
        found[f"base.{shell}"] = to_array(field.base)
        found[f"drift.{shell}"] = to_array(quaternion.distance(field.base, first.base))
    sent = [trace["tokens"], *trace["hidden"][:-1]]
    for step, (module, tokens) in enumerate(zip([model.within, *model.cross, *model.rounds], sent, strict=True)):
        found[f"field.{step}"] = to_array(trace["field"][step])
        found[f"source_field.{step}"] = to_array(trace["source_field"][step])
        found[f"features.{step}"] = to_array(module.features(tokens, model.config.heads))
    return found
