"""Trace of some images through a trained model: samples, graphs, routing, quaternions and evidence as plain arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError
from quatsphere.geometry import quaternion
from quatsphere.models import QSV, AttentionNet, build_model
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.nn.patch_embedding import sample_image

TraceArrays = dict[str, NDArray[Any]]
MAX_IMAGES = 2
"""Number of images that the page shows side by side."""
TOP_CLASSES = 3
"""Number of classes with their probabilities per image."""
ROUTING_TITLES = {"softmax": "dot product"}
"""Names of routings on the page, if they differ from the setting."""


class ViewImage(NamedTuple):
    """An image to trace: its name, uint8 pixels (C, H, W), and its class if that is known."""

    name: str
    pixels: Tensor
    label: int | None


class ViewTrace(NamedTuple):
    """Content of a trace file: names and other facts, and arrays in the units of the model."""

    meta: dict[str, Any]
    arrays: TraceArrays

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {values.shape}" for name, values in list(self.arrays.items())[:4])
        return f"ViewTrace({len(self.meta.get('images', []))} images, {len(self.arrays)} arrays: {shapes}, ...)"


def example_images(dataset: Dataset) -> list[ViewImage]:
    """Return the first test images of two different classes."""
    test = dataset.test
    others = (test.labels != test.labels[0]).nonzero().flatten()
    chosen = [0, *others[: MAX_IMAGES - 1].tolist()]
    return [ViewImage(f"test image {index}", test.images[index], int(test.labels[index])) for index in chosen]


def first_shell_samples(model: Any, image: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return image coordinates (V, S, 2) and samples (V, S, C) that the model takes of an image (C, H, W) in [0, 1]."""
    with torch.no_grad():
        points = model.layout.image_coords().unsqueeze(1) + model.embed.stencil
        samples = sample_image(image.unsqueeze(0), points, model.embed.wrap)[0]
    return points.numpy(), samples.numpy()


def shell_positions(model: Any) -> list[NDArray[Any]]:
    """Return the vertex positions of every shell, outer shell first."""
    return [shell.positions.detach().numpy() for shell in model.layout.shells]


def mean_colours(samples: NDArray[Any]) -> NDArray[Any]:
    """Return RGB (V, 3) in [0, 1], the mean of each vertex's samples (V, S, C); one channel becomes grey."""
    mean = samples.mean(axis=1).clip(0, 1)
    return mean[:, :3] if mean.shape[1] >= 3 else np.repeat(mean[:, :1], 3, axis=1)


def compute_trace(trained: Any, images: list[ViewImage]) -> ViewTrace:
    """Return everything that the page draws, for all images."""
    model = trained.model
    if not isinstance(model, QSV | AttentionNet):
        raise ConfigError(f"'{trained.config.model.name}' has no shells to show; view a run of qsv or attention")
    pixels = torch.stack([image.pixels for image in images])
    inputs = normalize(pixels, torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"]))
    logits, trace = model(inputs, return_trace=True)
    arrays: TraceArrays = {"pixels": pixels.numpy(), "pool": _to_array(_pool_weights(trace).mean(-1))}
    arrays |= layout_arrays(trained)
    for step in range(len(model_steps(model))):
        arrays[f"weights.{step}"] = _to_array(trace["weights"][step])
        arrays[f"norm.{step}"] = _to_array(trace["hidden"][step].norm(dim=-1))
    arrays |= _evidence(model, trace, logits)
    arrays |= _colours(model, pixels, arrays)
    if isinstance(model, QSV):
        arrays |= _quaternions(model, trace)
    top = logits.detach().softmax(1).topk(min(TOP_CLASSES, logits.shape[1]))
    said = [
        [{"name": trained.classes[i], "probability": p} for i, p in zip(ids, ps, strict=True)]
        for ids, ps in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
    shown = [
        {"name": image.name, "truth": None if image.label is None else trained.classes[image.label], "said": classes}
        for image, classes in zip(images, said, strict=True)
    ]
    return ViewTrace({**model_facts(trained), "images": shown}, arrays)


def layout_arrays(trained: Any) -> TraceArrays:
    """Return what is the same for every image: positions, neighbours, base quaternions and their drift in training."""
    model: Any = trained.model
    model.layout.refresh()  # loaded positions have other neighbours than those of the start
    index_type = np.uint16 if max(model.layout.vertex_counts) <= 1 << 16 else np.uint32
    out: TraceArrays = {f"positions.{shell}": values for shell, values in enumerate(shell_positions(model))}
    for index, step in enumerate(model_steps(model)):
        out[f"neighbours.{index}"] = step.graph.neighbours.numpy().astype(index_type)
    if isinstance(model, QSV):
        start: Any = build_model(trained.config.model, seed=trained.config.train.seed)
        for shell, (field, first) in enumerate(zip(model.fields, start.fields, strict=True)):
            out[f"base.{shell}"] = _to_array(field.base)
            out[f"drift.{shell}"] = _to_array(quaternion.distance(field.base, first.base))
    return out


def _to_array(values: Tensor) -> NDArray[Any]:
    return values.detach().float().numpy()


def _step_title(step: ModelStep) -> str:
    if step.source != step.target:
        return f"shell {step.source} → {step.target}"
    return f"within shell {step.target}" if step.name == "within" else f"{step.name} on shell {step.target}"


def model_facts(trained: Any) -> dict[str, Any]:
    """Return names and numbers of a model that are not arrays; shells are counted from 0."""
    config = trained.config.model
    routing = getattr(config, "routing", "")
    model: Any = trained.model
    steps = model_steps(model)
    return {
        "run": trained.run.name,
        "checkpoint": trained.step,
        "model": config.name,
        "layout": getattr(config, "layout", ""),
        "routing": ROUTING_TITLES.get(routing, routing),
        "transport": getattr(config, "transport", None),
        "heads": model.config.heads,
        "steps": [{"name": _step_title(s), "source": s.source - 1, "target": s.target - 1} for s in steps],
    }


def _evidence(model: QSV | AttentionNet, trace: Any, logits: Tensor) -> TraceArrays:
    """Return the contribution of each vertex to the logit of the predicted class.

    After the last step it is exact: the pool weight times ⟨W_c, x_v⟩, which sums to the logit minus its bias. Before
    that it is first order: the token times the gradient of that logit.
    """
    predicted = logits.argmax(1)
    gradients = torch.autograd.grad(logits.gather(1, predicted[:, None]).sum(), trace["hidden"])
    terms = [(hidden * gradient).sum(-1) for hidden, gradient in zip(trace["hidden"], gradients, strict=True)]
    pool = _pool_weights(trace)
    products = trace["hidden"][-1] * model.classifier.weight[predicted][:, None]
    terms[-1] = (pool * products.unflatten(-1, (pool.shape[-1], -1)).sum(-1)).sum(-1)
    return {f"evidence.{step}": _to_array(term) for step, term in enumerate(terms)}


def _pool_weights(trace: Any) -> Tensor:
    """Return pool weights (B, V, H), or (B, V, 1) if all heads share them."""
    weights: Tensor = trace["pool_weights"]
    return weights if weights.ndim == 3 else weights.unsqueeze(-1)


def _colours(model: Any, pixels: Tensor, arrays: TraceArrays) -> TraceArrays:
    """Return the mean sample of each first-shell vertex, and these colours averaged by the routing of every step."""
    out: TraceArrays = {}
    colours = np.stack([mean_colours(first_shell_samples(model, image.float() / 255)[1]) for image in pixels])
    for step in range(len(model_steps(model))):
        if step > 0:
            weights = arrays[f"weights.{step}"].mean(axis=-1)
            colours = np.einsum("itk,itkc->itc", weights, colours[:, arrays[f"neighbours.{step}"]])
        out[f"colour.{step}"] = np.rint(255 * colours.clip(0, 1)).astype(np.uint8)
    return out


def _quaternions(model: QSV, trace: Any) -> TraceArrays:
    """Return frames after the perturbation, and the features of the sources."""
    out: TraceArrays = {}
    inputs = [trace["tokens"], *trace["hidden"][:-1]]
    for index, (step, tokens) in enumerate(zip(model_steps(model), inputs, strict=True)):
        out[f"field.{index}"] = _to_array(trace["field"][index])
        out[f"source_field.{index}"] = _to_array(trace["source_field"][index])
        out[f"features.{index}"] = _to_array(step.module.features(tokens, model.config.heads))
    return out
