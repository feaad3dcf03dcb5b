"""Scales: a preset for each model, the data sets with their shapes, and the length of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quatsphere.config.presets import LITE, LITE_SHELLS, NO_DROPOUT, PAPER_RECIPE, PRESETS
from quatsphere.data.cache import search_paths

_PresetGroups = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Scale:
    """Settings that a row starts from."""

    presets: Mapping[str, _PresetGroups]
    """model -> preset."""
    datasets: Mapping[str, Mapping[str, Any]]
    """data set -> its settings: name, shape, schedule."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every cell; they override the presets."""


TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cifar100-part": "CIFAR-100 part"}
"""Names in headings; other data sets keep their name."""
STANDS_FOR = {"cifar10": "cifar10", "cifar100": "cifar100", "cifar100-part": "cifar100"}
"""data set -> the paper's data set whose claims its cells may decide, preferred first; others decide none."""
ARCHIVES = {"cifar100-part": "cifar100-part.zip"}
"""Data sets that are a single file in the data folder; the others are found by their reader."""

TRAIN_IMAGES = {"cifar10": 45_000, "cifar100": 45_000, "cifar100-part": 9_000, "digits": 1_295}
"""Number of training images without the validation part, for estimates of training time."""

_CIFAR10 = {"data.name": "cifar10", "model.image_size": 32, "model.in_channels": 3, "model.num_classes": 10}
_CIFAR100 = {**_CIFAR10, "data.name": "cifar100", "model.num_classes": 100, "optim.repulsion_neighbours": 16}
_DIGITS = {"data.name": "digits", "model.image_size": 8, "model.in_channels": 1, "model.num_classes": 10}

LITE_SCHEDULE = {"train.epochs": 5, "data.max_train_images": 8_000, "data.val_fraction": 0.04}
"""40,000 images seen, two to three minutes on one core: short cells, so that many seeds are possible."""
PART_SCHEDULE = {"train.epochs": 4}
"""36,000 images seen: the part of CIFAR-100 has 9,000 training images."""
LITE_SIZE = {"dim": 64, "heads": 4}
"""Half the width of preset `lite`, with Q = 4 as in the paper."""
LITE_WIDTH = 6
"""Width of a ResNet-20 with fewer parameters than that QSV: 38,512 of 43,111."""

CURVE_SETTINGS = {
    "train.threads": 1,
    "train.head_diversity": 1e-2,
    "train.head_diversity_pairs": PAPER_RECIPE["train"]["head_diversity_pairs"],
    "optim.repulsion_start": PAPER_RECIPE["optim"]["repulsion_start"],
}
"""The paper's losses; the plan sets the length of a run, over all 45,000 training images."""

SMOKE: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "crop_pad": 1, "flip": False, "trivial_augment": False},
    "optim": {"peak_lr": 16e-3},
    "train": {"epochs": 2, "batch_size": 32, "patience": None, "head_diversity": 0.0},
}
"""Two epochs of all digits, two seconds per cell; the full model reaches about 73 %, chance is 10 %."""
SMOKE_SHELLS: dict[str, Any] = {"base_vertices": 16, "shells": 2, "plane_rows": 4, "neighbours": 4}

LITE_MODELS: dict[str, _PresetGroups] = {
    "qsv": {**PRESETS["lite"], "model": {**PRESETS["lite"]["model"], **LITE_SIZE}},
    "attention": PRESETS["lite-attention"],
    "resnet20": {**PRESETS["lite-resnet20"], "model": {"name": "resnet20", "width": LITE_WIDTH}},
    "linear": {**LITE, "model": {"name": "linear", **LITE_SHELLS}},
}

CURVE_RATES = {"attention": 4e-3, "resnet20": 4e-3}
"""Peak learning rates found by the search of docs/protocol.md; the other models keep 2e-3."""
CURVE_MODELS: dict[str, _PresetGroups] = {
    name: {**groups, "optim": {**groups["optim"], "peak_lr": CURVE_RATES.get(name, groups["optim"]["peak_lr"])}}
    for name, groups in LITE_MODELS.items()
}

SCALES: dict[str, Scale] = {
    "paper": Scale(
        {
            "qsv": PRESETS["paper-cifar10"],
            "attention": PRESETS["paper-attention"],
            "resnet20": PRESETS["paper-resnet20"],
            "linear": PRESETS["paper-linear"],
        },
        {"cifar10": _CIFAR10, "cifar100": _CIFAR100},
    ),
    "lite": Scale(
        LITE_MODELS,
        {"cifar10": {**_CIFAR10, **LITE_SCHEDULE}, "cifar100-part": {**_CIFAR100, **PART_SCHEDULE}},
        {"train.threads": 1},
    ),
    "curve": Scale(CURVE_MODELS, {"cifar10": _CIFAR10}, CURVE_SETTINGS),
    "smoke": Scale(
        {
            "qsv": {
                **SMOKE,
                "model": {"name": "qsv", "dim": 32, "heads": 4, "rounds": 1, **NO_DROPOUT, **SMOKE_SHELLS},
            },
            "attention": {**SMOKE, "model": {"name": "attention", **SMOKE_SHELLS}},
            "resnet20": {**SMOKE, "model": {"name": "resnet20", "width": 4}},
            "linear": {**SMOKE, "model": {"name": "linear", "base_vertices": 16}},
        },
        {"digits": _DIGITS},
        {"train.threads": 1},
    ),
}


def dataset_title(dataset: str) -> str:
    """Name of a data set in headings."""
    return TITLES.get(dataset, dataset)


def data_location(dataset: str, data_root: str | None) -> str | None:
    """Value of `data.root` for a data set: the given folder, or the archive in it or in QUATSPHERE_DATA."""
    if dataset not in ARCHIVES:
        return data_root
    folders = search_paths(None if data_root is None else Path(data_root))
    found = [folder / ARCHIVES[dataset] for folder in folders if (folder / ARCHIVES[dataset]).is_file()]
    return str(found[0] if found else folders[0] / ARCHIVES[dataset])
