"""Between trained models and model folders: pack one, load one with every field checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quatsphere.config import ResNet20Config, RunConfig
from quatsphere.config.resolve import config_from_dict, config_to_dict
from quatsphere.data import FIT_MODES
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.atomic import finite, sha256_bytes
from quatsphere.storage.checkpoint import dump_tensors, parse_tensors
from quatsphere.storage.model_folder import (
    CARD,
    MODEL_CONFIG,
    MODEL_WEIGHTS,
    PREPROCESSING,
    ModelFolder,
    damaged,
    read_model_folder,
    seal_config,
    write_model_folder,
)
from quatsphere.storage.run_folder import RESULT_SHAPE
from quatsphere.storage.sealed_json import misfit
from quatsphere.train.model_card import model_card

if TYPE_CHECKING:
    from quatsphere.train.load import TrainedModel

LARGEST_SIDE = 4096
"""Largest image side of a model that is loaded from a folder."""
MOST_CLASSES = 1_000_000
MOST_SHELLS = 64
RESULT_FACTS = {f"{name.removesuffix('?')}?": shape for name, shape in RESULT_SHAPE.items()} | {
    **dict.fromkeys(("step?", "best_step?", "best_epoch?"), (int, None)),
    "val_accuracy?": (float, None),
}
"""Fields of the recorded result in a model folder: those of `result.json`, as far as the run had them."""


def pack(trained: TrainedModel, folder: str | Path, *, licence: str = "other", overwrite: bool = False) -> Path:
    """Write a model folder and return its path; its README shows the folder's name, accuracy and hashes."""
    path = Path(folder)
    weights = dump_tensors(dict(trained.model.state_dict()))
    preprocessing = {
        "image_size": trained.config.model.image_size,
        "channels": trained.config.model.in_channels,
        "fit": trained.config.data.fit,
        "mean": trained.meta["mean"],
        "std": trained.meta["std"],
        "classes": list(trained.classes),
    }
    fields = {
        "model_type": trained.config.model.name,
        "licence": licence,
        "settings": _portable_settings(trained),
        "result": finite(_result_facts(trained)),
    }
    text = (json.dumps(preprocessing, indent=2) + "\n").encode()
    config = seal_config(fields, weights, text)
    files = {MODEL_WEIGHTS: weights, PREPROCESSING: text, MODEL_CONFIG: config}
    digests = {name: sha256_bytes(data) for name, data in files.items()}
    card = model_card(path.absolute().name, json.loads(config), preprocessing, digests)
    write_model_folder(path, {**files, CARD: card.encode()}, overwrite=overwrite)
    return path


def unpack(path: Path) -> tuple[RunConfig, dict[str, Tensor], int, dict[str, Any]]:
    """Settings, weights, step and meta of a model folder; CheckpointError for anything that is not as it was packed."""
    folder = read_model_folder(path)
    try:
        config = config_from_dict(folder.config["settings"], MODEL_CONFIG)
    except ConfigError as error:
        raise CheckpointError(f"not the settings of a model ({path / MODEL_CONFIG}: {error})") from error
    meta = _checked_preprocessing(folder, config)
    wrong = misfit(folder.config["result"], RESULT_FACTS, "result")
    if wrong is not None:
        raise damaged(path, MODEL_CONFIG, wrong)
    weights = parse_tensors(folder.weights, str(path / MODEL_WEIGHTS))
    wrong = sizes_misfit(config, weights)
    if wrong is not None:
        raise damaged(path, MODEL_WEIGHTS, wrong)
    result = folder.config["result"]
    meta |= {"fingerprint": result.get("fingerprint", ""), "result": result}
    return config, weights, int(result.get("step") or 0), meta


def _portable_settings(trained: TrainedModel) -> dict[str, Any]:
    """Settings without paths of this machine and with a backend that every machine has."""
    config = dataclasses.replace(trained.config, model=trained.model.config)
    settings = config_to_dict(config)
    settings["data"]["root"] = None
    if settings["train"]["init"] is not None:
        settings["train"]["init"] = Path(settings["train"]["init"]).name
    if settings["model"].get("backend") in ("numba_cpu", "triton_gpu"):
        settings["model"]["backend"] = "auto"
    return settings


def _result_facts(trained: TrainedModel) -> dict[str, Any]:
    """Numbers of the run that belong to these weights."""
    facts = {key: value for key, value in trained.result.items() if key != "predictions"}
    facts |= {"step": trained.step, "fingerprint": trained.meta["fingerprint"]}
    facts["parameters"] = sum(p.numel() for p in trained.model.parameters())
    return facts


def _checked_preprocessing(folder: ModelFolder, config: RunConfig) -> dict[str, Any]:
    """Classes, mean and standard deviation, if they fit the model; CheckpointError otherwise."""
    fields, model = folder.preprocessing, config.model
    classes, mean, std = (fields.get(key, []) for key in ("classes", "mean", "std"))
    good = {
        "classes": misfit(classes, [str]) is None
        and len(set(classes)) == len(classes) == model.num_classes <= MOST_CLASSES,
        "mean": misfit(mean, [float, ...]) is None and len(mean) == model.in_channels,
        "std": misfit(std, [float, ...]) is None and len(std) == model.in_channels and min(std) > 0,
        "image_size": fields.get("image_size") == model.image_size <= LARGEST_SIDE,
        "channels": fields.get("channels") == model.in_channels,
        "fit": fields.get("fit") in FIT_MODES and fields.get("fit") == config.data.fit,
    }
    wrong = next((key for key, right in good.items() if not right), None)
    if wrong is not None:
        raise damaged(folder.path, PREPROCESSING, f"{wrong} does not fit the model")
    return {"classes": classes, "mean": mean, "std": std}


def sizes_misfit(config: RunConfig, weights: Mapping[str, Tensor]) -> str | None:
    """Describe, before a model is built, why its sizes are not those of stored weights; None if they are.

    Untrusted settings could require any amount of memory; the size of the weights is known.
    """
    model: Any = config.model
    if getattr(model, "shells", 0) > MOST_SHELLS:
        return f"{model.shells} shells, the limit is {MOST_SHELLS}"
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    expected: dict[str, tuple[int, ...]]
    if isinstance(model, ResNet20Config):
        expected = {"stem.weight": (model.width, model.in_channels, 3, 3)}
        expected["classifier.weight"] = (model.num_classes, 4 * model.width)
    elif model.name == "linear":
        expected = {"classifier.weight": (model.num_classes, 25 * model.base_vertices * model.in_channels)}
    else:
        dim = model.dim
        if dim is None:  # the width is solved from the budget; the next one has at most about four times the parameters
            dim = shapes.get("embed.projection.weight", (0,))[0]
            if (model.budget or 0) > 5 * sum(value.numel() for value in weights.values()):
                return f"its budget of {model.budget:,} parameters is not that of these weights"
        expected = {
            "embed.projection.weight": (dim, 25 * model.in_channels),
            "classifier.weight": (model.num_classes, dim),
            "layout.shells.0.positions": (model.base_vertices, 3 if model.layout == "sphere" else 2),
        }
    wrong = next((name for name, shape in expected.items() if shapes.get(name) != shape), None)
    if wrong is None and hasattr(model, "rounds"):
        last = [f"layout.shells.{model.shells - 1}.", *([f"rounds.{model.rounds - 1}."] if model.rounds else [])]
        wrong = next((f"{prefix}*" for prefix in last if not any(name.startswith(prefix) for name in shapes)), None)
    return None if wrong is None else f"{wrong} does not have the size that the settings state"
