"""Settings by name: the only module that maps `group.field` to the dataclasses of a run.

A setting is called `group.field`, for example `train.epochs`. `resolve_config` merges layers of settings (a preset,
files, the environment, the command line) into a `RunConfig`; `flatten` and `flat_settings` go the other way.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Literal, get_origin, get_type_hints

from quatsphere.config.checks import UNREGISTERED, alternatives, fits, spell_type
from quatsphere.config.schema import (
    AttentionConfig,
    DataConfig,
    LinearConfig,
    OptimConfig,
    QSVConfig,
    ResNet20Config,
    RunConfig,
    TrainConfig,
)
from quatsphere.errors import ConfigError, did_you_mean

SETTING_GROUPS = ("data", "model", "optim", "train")
MODEL_CONFIGS: dict[str, Any] = {
    "qsv": QSVConfig,
    "attention": AttentionConfig,
    "resnet20": ResNet20Config,
    "linear": LinearConfig,
}
RENAMED = {
    "data.train_limit": "data.max_train_images",
    "model.field": "model.field_mode",
    "model.wrap": "model.wrap_longitude",
    "optim.div": "optim.initial_div",
    "train.keep": "train.keep_checkpoints",
    "train.tensorboard": "train.track",
}
"""Former name of a setting -> its name; former names are still read everywhere, and never written."""
FORMER_VALUES: dict[str, dict[str, Any]] = {"train.track": {"true": "tensorboard", "false": "none"}}
"""Setting -> values that it had under its former name, in lower case, and their current equivalents."""
NONE_WORDS = ("none", "null")
"""Spellings of a missing value."""
TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def group_types(model: str) -> dict[str, Any]:
    """Dataclass of each group for a named model."""
    return {"data": DataConfig, "model": MODEL_CONFIGS[model], "optim": OptimConfig, "train": TrainConfig}


@functools.cache
def field_types(model: str) -> dict[str, Any]:
    """`group.field` -> type, for a named model."""
    return {f"{g}.{name}": kind for g, c in group_types(model).items() for name, kind in get_type_hints(c).items()}


@functools.cache
def field_docs(kind: Any) -> dict[str, str]:
    """Field -> the docstring below it, on one line, for a dataclass and its bases."""
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        body: list[Any] = ast.parse(inspect.getsource(owner)).body[:1]
        for field, text in pairwise(body[0].body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docs[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return docs


def config_to_dict(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Groups and fields as plain values, in the order of the dataclasses; the model's name comes first."""
    plain = dataclasses.asdict(config)
    plain["model"] = {"name": config.model.name, **plain["model"]}
    return plain


def config_from_dict(groups: Mapping[str, Any], source: str = "settings") -> RunConfig:
    """Inverse of `config_to_dict`; fields that are missing have their defaults, groups must not be missing."""
    flat = flatten(groups, source)
    missing = [group for group in SETTING_GROUPS if group not in groups] or ["model.name"][: "model.name" not in flat]
    if missing:
        raise ConfigError(f"no {missing[0]!r} ({source}); groups are {', '.join(SETTING_GROUPS)}")
    return resolve_config([Layer(source, flat)])


def flatten(groups: Mapping[str, Any], source: str = "settings") -> dict[str, Any]:
    """{'train': {'epochs': 2}} -> {'train.epochs': 2}, under current names; ConfigError unless groups hold fields."""
    flat: dict[str, Any] = {}
    for group, fields in groups.items():
        if not isinstance(fields, Mapping | None):
            raise ConfigError(f"{group!r} must be a group of fields ({source}); groups are {', '.join(SETTING_GROUPS)}")
        flat |= {f"{group}.{name}": value for name, value in (fields or {}).items()}
    return rename(flat)


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """A configuration as `group.field` -> value."""
    return flatten(dataclasses.asdict(config))


def rename(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings under their current names, `prefix` put before each."""
    pairs = [(RENAMED.get(f"{prefix}{key}", f"{prefix}{key}"), value) for key, value in settings.items()]
    return {key: current_value(key, value) for key, value in pairs}


def current_value(key: str, value: Any) -> Any:
    """Return the value of a setting, translated if it is one of the values under its former name."""
    return FORMER_VALUES[key].get(str(value).lower(), value) if key in FORMER_VALUES else value


def parse_changes(words: Iterable[str]) -> dict[str, str]:
    """['train.epochs=2'] -> {'train.epochs': '2'}, under current names."""
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong:
        raise ConfigError(f"a change is written GROUP.FIELD=VALUE, e.g. train.epochs=2: got {wrong[0]!r:.80}")
    return rename({key: value for key, _, value in pairs})


@dataclasses.dataclass(frozen=True)
class Layer:
    """One source of settings: its name for messages, and `group.field` -> value."""

    source: str
    values: Mapping[str, Any]


def model_name(layers: Sequence[Layer]) -> str:
    """Name of the model that the last layer with `model.name` chooses; `qsv` by default."""
    model = next((str(layer.values["model.name"]) for layer in layers[::-1] if layer.values.get("model.name")), "qsv")
    if model not in MODEL_CONFIGS:
        raise ConfigError(f"unknown model {model!r}; choose one of {', '.join(MODEL_CONFIGS)}")
    return model


def resolve_config(layers: Sequence[Layer]) -> RunConfig:
    """Merge layers, later ones winning, into a configuration; ConfigError names the setting and its source."""
    model = model_name(layers)
    types, groups = field_types(model), group_types(model)
    fields: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for layer in layers:
        for key, value in _for_model(layer, model).items():
            group, _, name = key.partition(".")
            fields[group][name] = parse_value(key, value, types[key], layer.source)
    return RunConfig(**{group: _build(group, kind, fields[group]) for group, kind in groups.items()})


def parse_value(key: str, value: Any, kind: Any, source: str) -> Any:
    """Value of a field's type from text or from a YAML value; ConfigError for anything else.

    `none` and `null` mean no value, unless `none` is one of the field's choices.
    """
    try:
        converted = _convert(current_value(key, value), kind)
    except (ValueError, KeyError, OverflowError):
        converted = value
    else:
        if fits(converted, kind):
            return converted
    near = did_you_mean(str(value), [choice for choice in alternatives(kind) if isinstance(choice, str)])
    help_text = UNREGISTERED if key in (f"model.{name}" for name in QSVConfig.EXTENSIBLE) else "; see --help"
    raise ConfigError(f"{key} must be {spell_type(kind)}: got {value!r:.80} ({source}){near or help_text}")


def _convert(value: Any, kind: Any) -> Any:
    if value is None or (isinstance(value, str) and value.lower() in NONE_WORDS):
        if NoneType in alternatives(kind):
            return None
        if "none" in alternatives(kind):
            return "none"
    if get_origin(kind) is Literal:
        return value
    main = alternatives(kind)[0]
    if isinstance(value, str) and main is bool:
        return TRUTH[value.lower()]
    if isinstance(value, str) and main is int:
        return int(value)
    if isinstance(value, str) and main is float:
        return float(re.sub(r"\.(?=inf|nan)", "", value.lower()))  # YAML writes .inf and .nan
    if (main is float and type(value) is int) or (main is str and type(value) in (int, float)):
        return main(value)
    return value


def _build(group: str, kind: Any, fields: dict[str, Any]) -> Any:
    """One group's dataclass; a broken rule is reported with the full name of the field."""
    try:
        return kind(**fields)
    except ConfigError as error:
        first = str(error).split()[0]
        glue = "." if first in get_type_hints(kind) else ": "
        raise ConfigError(f"{group}{glue}{error}") from error


def _for_model(layer: Layer, model: str) -> dict[str, Any]:
    """Settings of a layer, checked for the model it was written for, without fields and choices `model` lacks."""
    written_for = str(layer.values.get("model.name", "qsv" if layer.source == "preset" else model))
    if written_for not in MODEL_CONFIGS:
        raise ConfigError(f"unknown model {written_for!r} ({layer.source}); choose one of {', '.join(MODEL_CONFIGS)}")
    own, theirs = field_types(model), field_types(written_for)
    for key in layer.values:
        if key not in theirs:
            raise ConfigError(unknown_setting(key, layer.source, written_for))
    if written_for == model:
        return dict(layer.values)
    return {
        key: value
        for key, value in layer.values.items()
        if key in own
        and key != "model.name"
        and not (value in alternatives(theirs[key]) and value not in alternatives(own[key]))
    }


def unknown_setting(key: str, source: str, *models: str) -> str:
    """`unknown key 'model.bonud' (command line); did you mean 'model.bound'?`, or the models that have the field.

    Only fields of the named models are suggested.
    """
    group, _, field = key.partition(".")
    owners = [name for name in MODEL_CONFIGS if key in field_types(name)]
    if owners:
        return (
            f"model {models[0]!r} has no field {field!r} ({source}); "
            f"it belongs to {' and '.join(map(repr, owners))}: choose with --model.name"
        )
    known = [name for model in models for name in field_types(model)]
    same_group = {name.partition(".")[2]: name for name in known if name.startswith(f"{group}.")}
    near = [same_group[name] for name in difflib.get_close_matches(field, same_group, 1, 0.55)]
    hint = did_you_mean(key, near or names_ending_in(field, known), 0) or did_you_mean(key, known, 0.75)
    return f"unknown key {key!r:.80} ({source}){hint or '; see --help'}"


def names_ending_in(end: str, known: Sequence[str]) -> list[str]:
    """Names whose field ends in `end`, such as `optim.peak_lr` for `lr`: users often omit the group."""
    return [name for name in known if end and f"_{name.rpartition('.')[2]}".endswith(f"_{end}")]
