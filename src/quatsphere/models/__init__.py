"""Image -> logits: QSV, the matched attention baseline, ResNet-20, softmax regression, and `create_model`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import nn

from quatsphere.config import ModelConfig
from quatsphere.config.resolve import MODEL_CONFIGS, rename
from quatsphere.errors import ConfigError, did_you_mean
from quatsphere.models.attention_net import AttentionNet
from quatsphere.models.linear import LinearModel
from quatsphere.models.qsv import QSV
from quatsphere.models.resnet20 import ResNet20
from quatsphere.nn.layout import Layout
from quatsphere.randomness import name_seed

__all__ = [
    "MODELS",
    "QSV",
    "AttentionNet",
    "LinearModel",
    "Model",
    "ResNet20",
    "build_model",
    "create_model",
    "model_config",
]

MODELS: dict[str, type] = {"qsv": QSV, "attention": AttentionNet, "resnet20": ResNet20, "linear": LinearModel}
"""name -> model; `MODEL_CONFIGS` has the configuration with its options."""

Model = QSV | AttentionNet | ResNet20 | LinearModel


def create_model(name: str, *, seed: int = 0, layout: str | Layout | None = None, **overrides: Any) -> Model:
    """Create a model by name, with the paper's defaults; overrides are fields of its configuration.

    `layout` is "sphere", "plane" or a `Layout`. `seed` determines the initial weights: those of each parameter depend
    on the seed and its name only, so parts common to two variants start equal.
    """
    if isinstance(layout, str):
        overrides["layout"] = layout
    config = model_config(name, **overrides)
    return build_model(config, seed=seed, layout=layout if isinstance(layout, Layout) else None)


def model_config(name: str, **overrides: Any) -> ModelConfig:
    """Return the configuration of a named model; unknown names and options raise ConfigError."""
    if name not in MODELS:
        raise ConfigError(f"unknown model {name!r}{did_you_mean(name, MODELS)}; choose one of {', '.join(MODELS)}")
    kind = MODEL_CONFIGS[name]
    known = [f.name for f in fields(kind) if f.name != "name"]
    overrides = {key.removeprefix("model."): value for key, value in rename(overrides, "model.").items()}
    for key in overrides:
        if key not in known:
            raise ConfigError(
                f"model {name!r} has no setting {key!r}{did_you_mean(key, known)}; it has {', '.join(known)}"
            )
    return kind(**overrides)


def build_model(config: ModelConfig, *, seed: int = 0, layout: Layout | None = None) -> Model:
    """Build the model of a configuration, with initial weights drawn from (seed, name)."""
    build = MODELS[config.name]
    model: Model = build(config, layout) if layout is not None else build(config)
    seed_parameters(model, seed)
    return model


def seed_parameters(model: nn.Module, seed: int) -> None:
    """Redraw the initial weights of each module from a generator seeded by (seed, name of the module)."""
    with torch.random.fork_rng(devices=[]):
        for name, module in model.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                torch.manual_seed(name_seed(seed, name))
                reset()
