"""From words to a `RunConfig`: --preset < -c config.yaml < environment < command line, all typed by the dataclasses."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_parsing_settings

from quatsphere.config import (
    AttentionConfig,
    DataConfig,
    LinearConfig,
    OptimConfig,
    QSVConfig,
    ResNet20Config,
    RunConfig,
    TrainConfig,
)
from quatsphere.config.checks import spell_type
from quatsphere.config.presets import PRESETS
from quatsphere.errors import ConfigError
from quatsphere.storage.safe_yaml import read_yaml


def explain(message: str, given: Mapping[str, tuple[Any, str]], fields: Mapping[str, Any], options: list[str]) -> str:
    """jsonargparse's message in our words: a value of the wrong type, or an option that is none."""
    key = re.search(r'key "([^"]+)"', message)
    if key and key[1] in given:
        value, source = given[key[1]]
        return wrong_type(key[1], value, source, fields[key[1]])
    unknown = re.search(r"unrecognized arguments: (\S+)", message, re.IGNORECASE)
    if unknown:
        return unknown_option(unknown[1].partition("=")[0], options)
    flag = re.search(r'key "([^"]+)":.*bool.*Got value: (.*)', message, re.DOTALL)
    if flag:
        return f"--{flag[1].replace('_', '-')} must be true or false: got {flag[2]!r:.80}; see --help"
    return " ".join(message.split()) + "; see --help"


def wrong_type(key: str, value: Any, source: str, kind: Any) -> str:
    """`train.epochs must be a whole number: got 'two' (command line)`."""
    near = suggest(str(value), [choice for choice in get_args(kind) if isinstance(choice, str)])
    return f"{key} must be {spell_type(kind)}: got {value!r:.80} ({source}){near or '; see --help'}"


def unknown_option(word: str, options: Sequence[str]) -> str:
    """`unknown option '--epochs'; did you mean '--train.epochs'?`."""
    if not word.startswith("-"):
        return f"unexpected word {word!r}; options start with --, see --help"
    near = suggest(word, _ending_in(word.lstrip("-"), options), 0) or suggest(word, options)
    return f"unknown option {word!r}{near or '; see --help'}"


def unknown_key(key: str, source: str, known: Sequence[str], model: str, owners: Sequence[str]) -> str:
    """`unknown key 'model.bonud' (command line); did you mean 'model.bound'?`; fields of other models are named so."""
    if owners:
        return (
            f"model {model!r} has no field {key.partition('.')[2]!r} ({source}); "
            f"it belongs to {' and '.join(map(repr, owners))}: choose with --model.name"
        )
    group, _, field = key.partition(".")
    same_group = {name.partition(".")[2]: name for name in known if name.startswith(f"{group}.")}
    near = [same_group[name] for name in difflib.get_close_matches(field, same_group, 1, 0.55)]
    hint = suggest(key, near or _ending_in(field, known), 0) or suggest(key, known, 0.75)
    return f"unknown key {key!r:.80} ({source}){hint or '; see --help'}"


def _ending_in(end: str, known: Sequence[str]) -> list[str]:
    """`lr` -> `optim.peak_lr` and the like: users leave out the group."""
    return [name for name in known if end and f"_{name.rpartition('.')[2]}".endswith(f"_{end}")]


def suggest(word: str, known: Sequence[str], cutoff: float = 0.65) -> str:
    """`; did you mean 'x'?`, or nothing where nothing is near."""
    near = difflib.get_close_matches(word, known, 1, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


GROUPS = ("data", "model", "optim", "train")
WIDEST = 100
METAVARS = {"int": "N", "float": "X", "str": "TEXT"}

DESCRIPTION = """\
Train a model and test it at its best validation accuracy.
[Brackets] hold the defaults, which are the paper's.

two minutes, no download:
  quatsphere train --run-dir first-run --preset demo
what two cores train on CIFAR-10 in ten minutes:
  quatsphere train --run-dir lite-run --preset lite --data.root cifar10.zip
go on where it stopped:
  quatsphere train --run-dir lite-run --resume
"""
EPILOG = """\
Settings come from --preset, then -c FILE, then the environment, then the
command line: the later one wins, and --print_config shows what comes out.
QUATSPHERE_TRAIN__EPOCHS=2 in the environment means --train.epochs 2.
Model fields shown are those of '{model}'; add --model.name {others}
to see another's.
"""


class FieldHelp(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """jsonargparse's formatter without its noise: no Python types, no group options, defaults in brackets."""

    def __init__(self, prog: str, **_: Any) -> None:
        width = min(WIDEST, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, max_help_position=8, width=width)

    def add_arguments(self, actions: Iterable[argparse.Action]) -> None:
        """The fields of a group, its name first; a group itself is not an option here."""
        shown = [action for action in actions if action.dest not in GROUPS]
        super().add_arguments(sorted(shown, key=lambda action: not action.dest.endswith(".name")))

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        return f"{text} [{spell_default(action.default)}]" if "." in action.dest else text

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kinds = (self._get_type_str(action) or "").split(" | ")
        return METAVARS.get(kinds[0], super()._get_default_metavar_for_optional(action))


def spell_default(value: object) -> str:
    """A default as a user would type it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


MODEL_CONFIGS: dict[str, Any] = {
    "qsv": QSVConfig,
    "attention": AttentionConfig,
    "resnet20": ResNet20Config,
    "linear": LinearConfig,
}
ENVIRONMENT = "QUATSPHERE_"
"""QUATSPHERE_TRAIN__EPOCHS=2 is --train.epochs 2."""
NOTHING = ("none", "null")
"""How a user writes that a field has no value."""


def group_types(model: str) -> dict[str, Any]:
    """The dataclass of each group for a named model."""
    return dict(zip(GROUPS, (DataConfig, MODEL_CONFIGS[model], OptimConfig, TrainConfig), strict=True))


@functools.cache
def known_fields(model: str) -> dict[str, Any]:
    """`group.field` -> its type, for a named model."""
    return {f"{g}.{name}": kind for g, c in group_types(model).items() for name, kind in get_type_hints(c).items()}


Extras = Callable[[ArgumentParser], None]
"""Adds a verb's own options to a parser."""


@functools.cache
def make_parser(verb: str, model: str = "qsv", extras: Extras | None = None) -> ArgumentParser:
    """A parser with every field of every group, each explained with its paper value; made once."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    others = " or ".join(name for name in MODEL_CONFIGS if name != model)
    parser = ArgumentParser(
        prog=f"quatsphere {verb}",
        usage=f"quatsphere {verb} --run-dir DIR [--preset NAME] [-c FILE] [--GROUP.FIELD X]",
        description=DESCRIPTION,
        epilog=EPILOG.format(model=model, others=others),
        formatter_class=FieldHelp,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--preset", metavar="NAME", help=f"start from one of: {', '.join(PRESETS)}")
    parser.add_argument("-c", "--config", metavar="FILE", help="YAML file with the same groups and fields")
    parser.add_argument("--print_config", action="store_true", help="show the resolved settings as YAML and stop")
    for group, kind in group_types(model).items():
        parser.add_argument(f"--{group}", type=kind, default=kind())
    for group, section in (parser.groups or {}).items():
        section.title = f"{group}: {section.title}"
    if extras is not None:
        extras(parser)
    return parser


@dataclasses.dataclass(frozen=True)
class Layer:
    """One source of settings: where it comes from, and `group.field` -> value."""

    source: str
    values: Mapping[str, Any]


def resolve(verb: str, words: list[str], extras: Extras | None = None, base: Layer | None = None) -> Namespace:
    """Parse words into a namespace with `config` (a RunConfig), `sources` and whatever `extras` added.

    `sources` lists where settings came from. `base` lies below everything else: the stored configuration of a run that
    is resumed.
    """
    named, rest = _named(words)
    typed, rest = _typed(rest)
    layers = [base] if base else []
    layers += [Layer("preset", _preset(named.preset))] if named.preset else []
    layers += [Layer(path, flatten(read_yaml(Path(path)), path)) for path in named.config or []]
    layers += [Layer("environment", _environment()), Layer("command line", typed)]
    model = next((str(la.values["model.name"]) for la in layers[::-1] if la.values.get("model.name")), "qsv")
    if model not in MODEL_CONFIGS:
        raise ConfigError(f"unknown model {model!r}; choose one of {', '.join(MODEL_CONFIGS)}")
    layers = [_for_model(layer, model) for layer in layers]
    made = _parse(make_parser(verb, model, extras), layers, rest, model)
    made["config"] = RunConfig(**{group: _build(group, kind, made) for group, kind in group_types(model).items()})
    made["print_config"] = named.print_config
    made["sources"] = [layer.source for layer in layers if layer.values]
    return made


def _named(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What decides the other settings, and the words that are left."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset")
    parser.add_argument("-c", "--config", action="append")
    parser.add_argument("--print_config", action="store_true")
    try:
        return parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; see --help") from error


def _typed(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """`group.field` -> value of the command line, and the words that are left."""
    found: dict[str, str] = {}
    rest: list[str] = []
    waiting = words[::-1]
    while waiting:
        word = waiting.pop()
        key, equals, value = word.removeprefix("--").partition("=")
        group, dot, _ = key.partition(".")
        if not word.startswith("--") or group not in GROUPS:
            rest.append(word)
        elif not dot:
            raise ConfigError(f"--{key} is a group; set its fields one by one, e.g. --{key}.FIELD, or use -c FILE")
        elif not equals and (not waiting or waiting[-1].startswith("--")):
            raise ConfigError(f"--{key} needs a value; see --help")
        else:
            found[key] = value if equals else waiting.pop()
    return found, rest


def _parse(parser: ArgumentParser, layers: list[Layer], rest: list[str], model: str) -> Namespace:
    fields = known_fields(model)
    below = [_word(key, value, fields[key]) for layer in layers for key, value in layer.values.items()]
    try:
        return parser.parse_args([*below, *rest])
    except argparse.ArgumentError as error:
        given = {key: (value, layer.source) for layer in layers for key, value in layer.values.items()}
        options = [f"--{key}" for key in fields] + [o for a in parser._actions for o in a.option_strings]
        raise ConfigError(explain(str(error), given, fields, options)) from error


def _build(group: str, kind: Any, parsed: Namespace) -> Any:
    """One group's dataclass; a rule that is broken is reported with the full name of the field."""
    try:
        return kind(**parsed[group].as_dict())
    except ConfigError as error:
        first = str(error).split()[0]
        glue = "." if first in get_type_hints(kind) else ": "
        raise ConfigError(f"{group}{glue}{error}") from error


def _preset(name: str) -> dict[str, Any]:
    if name not in PRESETS:
        near = suggest(name, list(PRESETS))
        raise ConfigError(f"unknown preset {name!r}{near or '; choose one of ' + ', '.join(PRESETS)}")
    return flatten(PRESETS[name], "preset")


def flatten(groups: Mapping[str, Any], source: str) -> dict[str, Any]:
    """{'train': {'epochs': 2}} -> {'train.epochs': 2}; anything else is a ConfigError that names the source."""
    flat: dict[str, Any] = {}
    for group, fields in groups.items():
        if not isinstance(fields, Mapping | None):
            raise ConfigError(f"{group!r} must be a group of fields ({source}); groups are {', '.join(GROUPS)}")
        flat |= {f"{group}.{name}": value for name, value in (fields or {}).items()}
    return flat


def _environment() -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT).lower().replace("__", ".", 1): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT) and "__" in name.removeprefix(ENVIRONMENT)
    }


def _for_model(layer: Layer, model: str) -> Layer:
    """The layer's settings, checked for the model it meant; what the model in use lacks is left out: fields, and
    choices of a field."""
    meant = str(layer.values.get("model.name", "qsv" if layer.source == "preset" else model))
    if meant not in MODEL_CONFIGS:
        raise ConfigError(f"unknown model {meant!r} ({layer.source}); choose one of {', '.join(MODEL_CONFIGS)}")
    for key in layer.values:
        if key not in known_fields(meant):
            owners = [name for name in MODEL_CONFIGS if key in known_fields(name)]
            raise ConfigError(unknown_key(key, layer.source, list(known_fields(meant)), meant, owners))
    if meant == model:
        return layer
    own, theirs = known_fields(model), known_fields(meant)
    kept = {
        key: value
        for key, value in layer.values.items()
        if key in own
        and key != "model.name"
        and not (value in get_args(theirs[key]) and value not in get_args(own[key]))
    }
    return Layer(layer.source, kept)


def _word(key: str, value: Any, kind: Any) -> str:
    """A setting as a command-line word; `none` and `null` mean no value, unless `none` is one of the choices."""
    empty = value is None or (isinstance(value, str) and value.lower() in NOTHING)
    if empty and "none" in get_args(kind):
        value = "none"
    elif empty and NoneType in get_args(kind):
        value = None
    return f"--{key}={value if isinstance(value, str) else json.dumps(value)}"
