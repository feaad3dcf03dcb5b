"""A trained QSV as one HTML page that runs it in JavaScript, without a network.

The page contains the constants of the frozen module in float32, and examples with the logits of the model. When it is
opened, it classifies the examples and shows a warning if a logit differs.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image, ImageOps
from safetensors.numpy import save
from torch import Tensor

from quatsphere.data.decode import fit_image, to_rgb
from quatsphere.diagnostics.view_trace import layout_arrays, model_facts
from quatsphere.errors import ConfigError
from quatsphere.export.files import file_metadata, frozen_model, verified_difference
from quatsphere.export.frozen import FrozenModel
from quatsphere.export.frozen_qsv import FrozenStep
from quatsphere.models import QSV
from quatsphere.report.explanations import LIVE_INTRODUCTION, LIVE_TITLES, VIEW_TIPS, words_of
from quatsphere.report.page import ASSETS, inline_script, render_page, security_policy
from quatsphere.storage.atomic import write_text
from quatsphere.train.load import TrainedModel
from quatsphere.train.predict import image_pixels

EXAMPLES = 8
"""Maximum number of images in a page."""
PHOTO = ASSETS / "cat.jpg"
"""Photograph that comes with the package: `chelsea.png` of scikit-image, CC0 by Stefan van der Walt, cropped."""
PHOTO_SIZE = 224
LIVE_SCRIPTS = (
    *("view/tensors", "live/model", "view/algebra", "live/forward", "live/trace", "view/colours", "view/stage"),
    *("view/insets", "view/details", "view/main", "live/resize", "live/input", "live/answer"),
)
CELLS_PER_PIXEL = 4
"""Cells of the pad along the side of a pixel; scikit-learn's digits were made from 32 x 32 cells."""


class Example(NamedTuple):
    """An image of a page: uint8 pixels (C, Y, X), its name, and the photograph it was made from as a data URI."""

    pixels: Tensor
    name: str
    photo: str | None = None


def write_live_page(
    path: Path, trained: TrainedModel, images: Tensor, source: str, examples: Sequence[Example] = ()
) -> float:
    """Write the page and return the largest difference of the frozen module's logits on uint8 images (n, C, Y, X).

    Without examples, the page contains one of the images, described by `source`, per predicted class.
    """
    check_exportable(trained)
    frozen = frozen_model(trained)
    with torch.inference_mode():
        difference = verified_difference(frozen, trained, images, path)
    chosen = list(examples)[:EXAMPLES] or examples_by_class(trained, images, source)
    write_text(path, live_page(trained, frozen, chosen))
    return difference


def live_obstacle(trained: TrainedModel) -> str | None:
    """Reason why a page cannot run the model."""
    model = trained.model
    if not isinstance(model, QSV):
        return f"a live page runs qsv, not '{trained.config.model.name}'"
    for role in ("routing", "transport"):
        if not isinstance(getattr(model.within, role).rule, str):
            return f"a live page runs built-in rules, not the {role} '{getattr(model.config, role)}'"
    return None


def check_exportable(trained: TrainedModel) -> None:
    """Raise ConfigError if a page cannot run the model."""
    obstacle = live_obstacle(trained)
    if obstacle is not None:
        raise ConfigError(f"{obstacle}; use 'quatsphere export --to onnx' or '--to pt2'")


def examples_by_class(trained: TrainedModel, images: Tensor, source: str) -> list[Example]:
    """First image of every predicted class, in the order of the images."""
    predicted = trained.logits(images).argmax(1).tolist()
    first = sorted({label: index for index, label in reversed(list(enumerate(predicted)))}.values())
    return [Example(images[index], f"{index + 1} of {source}") for index in first[:EXAMPLES]]


def file_examples(trained: TrainedModel, names: Sequence[str]) -> list[Example]:
    """Image files as examples with their photographs."""
    paths = [Path(name) for name in names[:EXAMPLES]]
    return [Example(image_pixels(p, trained.config), p.name, photo_uri(p, trained.config.data.fit)) for p in paths]


def photo_example(trained: TrainedModel) -> Example:
    """The photograph that comes with the package."""
    (example,) = file_examples(trained, [str(PHOTO)])
    return example._replace(name="a cat (photograph by Stefan van der Walt, CC0)")


def photo_uri(path: Path, fit: str) -> str:
    """Return the part of an image file that a model samples, as a small JPEG in a data URI."""
    with Image.open(path) as image:
        small = fit_image(to_rgb(ImageOps.exif_transpose(image)), PHOTO_SIZE, fit)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def live_page(trained: TrainedModel, frozen: FrozenModel, examples: Sequence[Example]) -> str:
    """Page of a model with examples."""
    body: Any = frozen.body
    same, arrays = without_copies({**layout_arrays(trained), **constants(frozen)})
    pixels = torch.stack([example.pixels for example in examples])
    arrays |= {"examples": pixels.numpy(), "reference": trained.logits(pixels).numpy()}
    config = trained.config.model
    meta = {
        **model_facts(trained),
        "file": file_metadata(trained),
        "same": same,
        "scales": {},
        "images": [{"name": "input"}],
        "examples": [{"name": example.name, "photo": example.photo} for example in examples],
        "cells": CELLS_PER_PIXEL * config.image_size if config.in_channels == 1 else 0,
        "channels": body.steps[0].channels,
        "pooling": {"mean": body.pool.mean, "heads": body.pool.heads},
        "rules": [step_rules(step) for step in body.steps],
    }
    data = save(arrays, metadata={"view": json.dumps(meta, allow_nan=False)})
    script, digest = inline_script(*(f"{name}.js" for name in LIVE_SCRIPTS))
    test = trained.result.get("test")
    return render_page(
        "live.html.j2",
        ("base.css", "view.css", "live.css"),
        meta=meta,
        title=LIVE_TITLES["drawing" if meta["cells"] else "picture"],
        accuracy=f"right on {100 * test['accuracy']:.1f} % of {test['images']:,} test images" if test else "",
        introduction=LIVE_INTRODUCTION,
        words=words_of("qsv"),
        tips=VIEW_TIPS,
        model=Markup(base64.b64encode(gzip.compress(data, mtime=0)).decode()),
        script=script,
        policy=security_policy(digest),
    )


def step_rules(step: FrozenStep) -> dict[str, Any]:
    """Rules of a step, and the parts of its two perturbation networks."""
    networks = {"source": step.source, "target": step.source if step.target is None else step.target}
    parts = {end: {"perturbed": net.perturbed, "bounded": net.bounded} for end, net in networks.items()}
    return {
        **parts,
        "routing": step.routing,
        "transport": step.transport,
        "within": step.within,
        "sharedFirst": step.shared_first,
    }


def constants(frozen: FrozenModel) -> dict[str, NDArray[Any]]:
    """Constants of the frozen module by name; of a Hamilton matrix only the quaternion weights."""
    out = {}
    for name, values in frozen.state_dict().items():
        key = name.removeprefix("body.")
        if key.endswith(("base", "neighbours")):  # also in `layout_arrays`
            continue
        quaternions = frozen.body.steps[0].channels
        if key.endswith((".up", ".skip")):
            values = values[:, :quaternions]
        elif key.endswith(".down"):
            values = values[:, ::4]
        array = values.numpy()
        integer = np.issubdtype(array.dtype, np.integer)
        kind = np.float32 if not integer else np.uint16 if array.max(initial=0) < 1 << 16 else np.uint32
        out[key] = np.ascontiguousarray(array.astype(kind))
    return out


def without_copies(arrays: dict[str, NDArray[Any]]) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Return name -> name of the first equal array, for repeated arrays, and the distinct arrays."""
    first: dict[Any, str] = {}
    same, kept = {}, {}
    for name, array in arrays.items():
        key = (str(array.dtype), array.shape, array.tobytes())
        if key in first:
            same[name] = first[key]
        else:
            first[key] = name
            kept[name] = array
    return same, kept
