"""The 3-D view of a trained model: compute a trace of some images, store it, and write the page that draws it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError, DataError
from quatsphere.geometry import quaternion
from quatsphere.models import QSV, AttentionNet, build_model
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.report.explanations import VIEW_INTRODUCTIONS, VIEW_TIPS, words_of
from quatsphere.report.image_samples import first_shell_samples, mean_colours, shell_positions
from quatsphere.report.page import inline_script, security_policy, write_page
from quatsphere.storage.atomic import read_regular, write_bytes
from quatsphere.train.load import TrainedModel

TraceArrays = dict[str, NDArray[Any]]
MAX_IMAGES = 2
"""Number of images that the page shows side by side."""
TOP_CLASSES = 3
"""Number of classes with their probabilities per image."""
TRACE_FORMAT = 1
MAX_TRACE_BYTES = 256 << 20
ROUTING_TITLES = {"softmax": "dot product"}
"""Names of routings on the page, if they differ from the setting."""
SCRIPTS = ("tensors", "trace", "algebra", "colours", "stage", "insets", "details", "main")


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


def write_view(page: Path, trained: TrainedModel, images: list[ViewImage]) -> Path:
    """Write the page and, beside it, the trace file that it contains; return the path of the trace."""
    path = page.with_suffix(".safetensors")
    write_trace(path, compute_trace(trained, images))
    write_view_page(page, path)
    return path


def write_view_page(page: Path, trace: Path) -> None:
    """Write the page of a trace file."""
    data = _read_file(trace)
    meta, _ = _parse(data, str(trace))
    script, digest = inline_script(*(f"view/{name}.js" for name in SCRIPTS))
    styles = ("base.css", "view.css")
    values = {"script": script, "policy": security_policy(digest), "trace": Markup(base64.b64encode(data).decode())}
    texts = {"introduction": VIEW_INTRODUCTIONS[meta["model"]], "words": words_of(meta["model"]), "tips": VIEW_TIPS}
    write_page(page, "view.html.j2", styles, meta=meta, **texts, **values)


# Computing a trace


def compute_trace(trained: TrainedModel, images: list[ViewImage]) -> ViewTrace:
    """Return everything that the page draws, for all images."""
    model = trained.model
    if not isinstance(model, QSV | AttentionNet):
        raise ConfigError(f"'{trained.config.model.name}' has no shells to look at; view a run of qsv or attention")
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


def layout_arrays(trained: TrainedModel) -> TraceArrays:
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


def model_facts(trained: TrainedModel) -> dict[str, Any]:
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


# Storing a trace


def _unit(values: NDArray[Any]) -> tuple[type, float]:
    """Encoding of numbers in [0, 1]."""
    return np.uint16, 1 / 65535


def _signed(values: NDArray[Any]) -> tuple[type, float]:
    """Encoding of numbers in [-1, 1]."""
    return np.int16, 1 / 32767


def _scaled(values: NDArray[Any]) -> tuple[type, float]:
    """Encoding of any numbers, relative to the largest."""
    return np.int16, max(float(np.abs(values).max(initial=0.0)), 1e-30) / 32767


ENCODINGS: dict[str, Callable[[NDArray[Any]], tuple[type, float]]] = {
    "weights": _unit,
    "base": _signed,
    "field": _signed,
    "source_field": _signed,
    "features": _scaled,
}
"""First part of an array's name -> integer type and size of one unit."""


def write_trace(path: Path, trace: ViewTrace) -> None:
    """Write a trace file atomically."""
    stored, scales = {}, {}
    for name, values in trace.arrays.items():
        encoding = ENCODINGS.get(name.partition(".")[0])
        if encoding is None:
            stored[name] = np.ascontiguousarray(values)
        else:
            integers, scales[name] = encoding(values)
            limits = np.iinfo(integers)
            rounded = np.rint(values.astype(np.float64) / scales[name])
            stored[name] = np.ascontiguousarray(rounded.clip(limits.min, limits.max).astype(integers))
    meta = {"format": TRACE_FORMAT, "scales": scales, **trace.meta}
    write_bytes(path, save(stored, metadata={"view": json.dumps(meta, allow_nan=False)}))


def read_trace(path: Path) -> ViewTrace:
    """Read a trace file and decode fixed point; DataError if the file is not a trace."""
    meta, stored = _parse(_read_file(path), str(path))
    scales = meta.pop("scales")
    return ViewTrace(
        {name: value for name, value in meta.items() if name != "format"},
        {name: values * np.float64(scales[name]) if name in scales else values for name, values in stored.items()},
    )


def _read_file(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_TRACE_BYTES)
    except OSError as error:
        raise DataError(f"cannot read the trace ({path}: {error.strerror}); make it with 'quatsphere view'") from error


def _parse(data: bytes, where: str) -> tuple[dict[str, Any], TraceArrays]:
    """Return facts and arrays as stored."""
    try:
        length = int.from_bytes(data[:8], "little")
        meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])
        if meta["format"] != TRACE_FORMAT:
            raise ValueError(f"format {meta['format']}, this is {TRACE_FORMAT}")
        return meta, load(data)
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise DataError(f"not the trace of a view ({where}: {reason}); make it again with 'quatsphere view'") from error
