"""From words to a `RunConfig`: --preset < -c config.yaml < environment < command line, all typed by the dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from quatsphere.config import (
    AttentionConfig,
    DataConfig,
    OptimConfig,
    QSVConfig,
    ResNet20Config,
    RunConfig,
    TrainConfig,
)
from quatsphere.errors import ConfigError
from quatsphere.files.safe_yaml import read_yaml
from quatsphere.presets import PRESETS

MODEL_CONFIGS: dict[str, Any] = {"qsv": QSVConfig, "attention": AttentionConfig, "resnet20": ResNet20Config}
ENVIRONMENT = "QUATSPHERE_"
"""QUATSPHERE_TRAIN__EPOCHS=2 is --train.epochs 2."""


def group_types(model: str) -> dict[str, Any]:
    """The dataclass of each group for a named model."""
    return {"data": DataConfig, "model": MODEL_CONFIGS[model], "optim": OptimConfig, "train": TrainConfig}


def known_keys(model: str) -> list[str]:
    """Every `group.field` there is for a named model."""
    return [f"{group}.{f.name}" for group, kind in group_types(model).items() for f in dataclasses.fields(kind)]


def make_parser(verb: str, model: str = "qsv") -> ArgumentParser:
    """A parser with every field of every group, each explained with its paper value."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(
        prog=f"quatsphere {verb}",
        usage=f"quatsphere {verb} [--preset NAME] [-c FILE] [--GROUP.FIELD VALUE ...] --run-dir DIR",
        exit_on_error=False,
        epilog=f"presets: {', '.join(PRESETS)}. --print_config shows the resolved settings as YAML. "
        f"Model fields shown are those of '{model}'; "
        "add --model.name attention (or resnet20) to see another's. "
        "QUATSPHERE_TRAIN__EPOCHS=2 in the environment means --train.epochs 2.",
    )
    for group, kind in group_types(model).items():
        parser.add_argument(f"--{group}", type=kind, default=kind())
    return parser


@dataclasses.dataclass(frozen=True)
class Layer:
    """One source of settings: where it comes from, and `group.field` -> value."""

    source: str
    values: Mapping[str, Any]


def resolve(verb: str, words: list[str], parser_extras: Any = None, base: Layer | None = None) -> Namespace:
    """Parse words into a namespace with `config` (a RunConfig) and whatever `parser_extras(parser)` added.

    `base` lies below everything else: the stored configuration of a run that is resumed.
    """
    words = ["null" if word in ("none", "None") else word for word in words]
    pre = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    pre.add_argument("--preset")
    pre.add_argument("-c", "--config")
    pre.add_argument("--print_config", action="store_true")
    named, rest = pre.parse_known_args(words)
    layers = [base] if base else []
    layers += [Layer("preset", _preset(named.preset))] if named.preset else []
    layers += [Layer(named.config, flatten(read_yaml(Path(named.config)), named.config))] if named.config else []
    layers += [Layer("environment", _environment())]
    typed = Layer("command line", _typed(rest))
    model = next((str(v) for v in (la.values.get("model.name") for la in [typed, *layers[::-1]]) if v), "qsv")
    if model not in MODEL_CONFIGS:
        raise ConfigError(f"unknown model {model!r}; choose one of {', '.join(MODEL_CONFIGS)}")
    parser = make_parser(verb, model)
    parser.add_argument("--preset", help=f"start from one of: {', '.join(PRESETS)}")
    parser.add_argument("-c", "--config", help="YAML file with the same groups and fields")
    if parser_extras is not None:
        parser_extras(parser)
    below = [word for layer in layers for word in _as_words(layer, model, layers)]
    _check_keys(typed, model)
    made = _parse(parser, [*below, *rest])
    made["print_config"] = named.print_config
    return made


def _parse(parser: ArgumentParser, words: list[str]) -> Namespace:
    try:
        parsed = parser.parse_args(words)
        made = parser.instantiate(parsed)
    except argparse.ArgumentError as error:
        raise ConfigError(_one_line(str(error))) from error
    made["config"] = RunConfig(made.data, made.model, made.optim, made.train)
    return made


def _one_line(message: str) -> str:
    """jsonargparse's message on one line, in our words."""
    text = " ".join(message.split()).replace('Parser key "', "").replace('":', ":", 1)
    return text.replace("Expected a <class '", "expected ").replace("'>. Got", "; got") + "; see --help"


def _preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown preset {name!r}{hint}; choose one of {', '.join(PRESETS)}")
    return flatten(PRESETS[name], "preset")


def flatten(groups: Mapping[str, Any], source: str) -> dict[str, Any]:
    """{'train': {'epochs': 2}} -> {'train.epochs': 2}; anything else is a ConfigError that names the source."""
    flat: dict[str, Any] = {}
    for group, fields in groups.items():
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{group!r} must be a group of fields ({source}); groups are data, model, optim, train")
        flat |= {f"{group}.{name}": value for name, value in fields.items()}
    return flat


def _environment() -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT).lower().replace("__", ".", 1): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT) and "__" in name.removeprefix(ENVIRONMENT)
    }


def _typed(words: list[str]) -> dict[str, str]:
    """`--group.field` words of the command line with their values (for names only; jsonargparse reads the rest)."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and "." in key and key.split(".")[0] in group_types("qsv"):
            found[key] = value if equals else following
        elif word.startswith("--") and key in group_types("qsv"):
            raise ConfigError(f"--{key} is a group; set its fields one by one, e.g. --{key}.FIELD, or use -c FILE")
    return found


def _check_keys(layer: Layer, model: str) -> None:
    known = known_keys(model)
    for key in layer.values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else "see --help"
            raise ConfigError(f"unknown key {key!r} ({layer.source}); {hint}")


def _as_words(layer: Layer, model: str, layers: list[Layer]) -> list[str]:
    """A layer as command-line words; model fields of a layer that meant another model are left out."""
    above = layers[layers.index(layer) + 1 :]
    own = layer.values.get("model.name", "qsv" if layer.source == "preset" else model)
    values = dict(layer.values)
    if own != model or any("model.name" in other.values for other in above):
        values = {k: v for k, v in values.items() if k in known_keys(model) and k != "model.name"}
    _check_keys(Layer(layer.source, values), model)
    return [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in values.items()]
