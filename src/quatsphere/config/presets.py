"""Named presets: the settings that each changes from the defaults, which are the paper's; settings for own images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from quatsphere.config.resolve import Layer, flatten, parse_changes, resolve_config
from quatsphere.config.schema import RunConfig
from quatsphere.errors import ConfigError, did_you_mean

PAPER_RECIPE: dict[str, dict[str, Any]] = {
    "data": {"name": "cifar10"},
    "optim": {"repulsion_start": 0.001},
    "train": {"head_diversity_pairs": "mean", "compile": True},
}
"""Settings of the paper; two values that it does not state are fitted to its diagnostics (docs/fingerprints.md)."""
BASELINE: dict[str, dict[str, Any]] = {**PAPER_RECIPE, "train": {**PAPER_RECIPE["train"], "patience": None}}
"""The paper's baselines run the full horizon without early stopping."""

LITE_SHELLS: dict[str, Any] = {"base_vertices": 48, "shells": 3, "plane_rows": 6}
LITE: dict[str, dict[str, Any]] = {
    "data": {"name": "cifar10", "trivial_augment": False},
    "optim": {"peak_lr": 2e-3},
    "train": {"epochs": 6, "batch_size": 32, "patience": None, "head_diversity": 0.0},
}
"""Size and schedule that two CPU cores train on CIFAR-10 in about ten minutes (docs/log.md gives reasons)."""
NO_DROPOUT: dict[str, Any] = {"attention_dropout": 0.0, "output_dropout": 0.0}
"""Short runs underfit: without dropout and head diversity they learn twice as fast (docs/log.md)."""
LITE_QSV: dict[str, Any] = {"name": "qsv", "dim": 128, "heads": 8, **NO_DROPOUT, **LITE_SHELLS}
LITE_BUDGET = 126_519
"""Parameters of the lite QSV at 3 channels and 10 classes: the budget of its matched baselines (pinned by a test)."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "paper-cifar10": PAPER_RECIPE,
    "paper-cifar100": {
        **PAPER_RECIPE,
        "data": {"name": "cifar100"},
        "model": {"num_classes": 100},
        "optim": {**PAPER_RECIPE["optim"], "repulsion_neighbours": 16},
    },
    "paper-attention": {**BASELINE, "model": {"name": "attention"}},
    "paper-flat": {**BASELINE, "model": {"name": "attention", "layout": "plane"}},
    "paper-resnet20": {**BASELINE, "model": {"name": "resnet20"}},
    "paper-linear": {**BASELINE, "model": {"name": "linear"}},
    "lite": {**LITE, "model": LITE_QSV},
    "lite-attention": {**LITE, "model": {"name": "attention", "budget": LITE_BUDGET, **LITE_SHELLS}},
    "lite-flat": {**LITE, "model": {"name": "attention", "layout": "plane", "budget": LITE_BUDGET, **LITE_SHELLS}},
    "lite-resnet20": {**LITE, "model": {"name": "resnet20", "width": 10}},
    "demo": {
        "data": {"name": "digits", "crop_pad": 1, "flip": False, "trivial_augment": False},
        "model": {
            "name": "qsv",
            "dim": 64,
            "heads": 4,
            "base_vertices": 32,
            "shells": 3,
            "plane_rows": 8,
            **NO_DROPOUT,
        },
        "optim": {"peak_lr": 8e-3},
        "train": {"epochs": 30, "batch_size": 32, "patience": None, "threads": 1, "head_diversity": 0.0},
    },
}


def load_preset(name: str, changes: Iterable[str] = ()) -> RunConfig:
    """Return the configuration of a named preset with changes, e.g. `load_preset("lite", ["train.epochs=2"])`."""
    return resolve_config([Layer("preset", preset_settings(name)), Layer("changes", parse_changes(changes))])


def preset_settings(name: str) -> dict[str, Any]:
    """Settings that a preset changes, `group.field` -> value; an unknown name is a ConfigError."""
    if name not in PRESETS:
        near = did_you_mean(name, PRESETS)
        raise ConfigError(f"unknown preset {name!r}{near or '; choose one of ' + ', '.join(PRESETS)}")
    return flatten(PRESETS[name], "preset")


# Own images: one rule that gives every size from the side S of the image, and a recipe for CPUs.
#
#    base_vertices  4 S             paper: 128 at 32 pixels; demo: 32 at 8 pixels
#    shells         floor(log2 S)   paper: 5 at 32 pixels; demo: 3 at 8 pixels
#    crop_pad       S / 8           paper: 4 at 32 pixels; demo: 1 at 8 pixels
#    plane_rows     S / 2           for `layout plane`; paper's sizes: 16
#
# The stencil and the numbers of neighbours follow from the number of vertices, as always: a vertex samples 5 x 5 points
# in a square with half the side 2 / sqrt(V_1) of image coordinates, sqrt(S) / 4 pixels apart (1.4 at 32, 2 at 64).

IMAGE_SIDES = (8, 64)
"""Sides that are chosen from the images, powers of two; any other side can be given."""
EPOCHS = 30
LARGEST_BATCH = 32


def side_for(median_side: int) -> int:
    """Largest power of two up to the median of the images' shorter sides, within `IMAGE_SIDES`."""
    return min(max(1 << (max(1, median_side).bit_length() - 1), IMAGE_SIDES[0]), IMAGE_SIDES[1])


def sizes_for(side: int) -> dict[str, int]:
    """Settings that follow from the side of the image, as `group.field` -> value."""
    return {
        "data.image_size": side,
        "data.crop_pad": side // 8,
        "model.base_vertices": max(4, 4 * side),
        "model.shells": max(2, int(math.log2(side))),
        "model.plane_rows": side // 2 if side % 2 == 0 else side,
    }


def own_image_settings(side: int, images: int, channels: int) -> dict[str, Any]:
    """Settings for `images` own images in class folders: width and rates of the preset `lite`, sizes by the rule."""
    recipe = flatten({**LITE, "data": {"name": "folder"}, "model": LITE_QSV})
    batch = min(LARGEST_BATCH, max(1, images // 8))
    own = {"data.channels": channels, "train.epochs": EPOCHS, "train.batch_size": batch}
    return {**recipe, **own, **sizes_for(side)}
