"""The parser of every verb: argparse with one-line errors and, for verbs that train, an option per setting."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_origin

from quatsphere.config.checks import alternatives
from quatsphere.config.presets import PRESETS, preset_settings
from quatsphere.config.resolve import (
    MODEL_CONFIGS,
    RENAMED,
    SETTING_GROUPS,
    TRUTH,
    Layer,
    config_to_dict,
    field_docs,
    field_types,
    flatten,
    group_types,
    model_name,
    names_ending_in,
    rename,
    resolve_config,
    unknown_setting,
)
from quatsphere.errors import ConfigError, did_you_mean
from quatsphere.storage.run_folder import print_note as note
from quatsphere.storage.safe_yaml import read_yaml

WIDEST = 100
METAVARS = {int: "N", float: "X", str: "TEXT", bool: "{true,false}"}
AS_TYPED = {"None": "none", "True": "true", "False": "false"}
"""Defaults as a user types them."""
ENVIRONMENT = "QUATSPHERE_"
"""QUATSPHERE_TRAIN__EPOCHS=2 is --train.epochs 2."""
OLD_OPTIONS = {
    "--print_config": "--print-config",
    "--data-root": "--data.root",
    "--root": "--data.root",
    "--out": "--output",
    "--folder": "--output",
    **{f"--{old}": f"--{new}" for old, new in RENAMED.items()},
}
"""Former spelling of an option -> its spelling; accepted with a note until the next release."""
SETTINGS_EPILOG = """\
Settings come from --preset, then -c FILE, then the environment, then the
command line: the later one wins, and --print-config shows what comes out.
QUATSPHERE_TRAIN__EPOCHS=2 in the environment means --train.epochs 2.
Model fields shown are those of '{model}'; add --model.name {others}
to see another's.
"""


class Parser(argparse.ArgumentParser):
    """argparse that raises ConfigError instead of printing its usage, and does not accept abbreviated options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with argparse's message as one line."""
        message = re.sub(r"^argument (\S+): (?=must )", r"\1 ", message)
        message = re.sub(r"^argument (\S+): expected one argument$", r"\1 needs a value", message)
        raise ConfigError(f"{message}; see --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; an unknown one is an error that suggests a known one."""
        found, unknown = super().parse_known_args(None if args is None else current_words(args), namespace)
        if unknown:
            raise ConfigError(self._unknown(unknown[0].partition("=")[0]))
        return found, unknown

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected word {word!r}; options start with --, see --help"
        options = list(self._option_string_actions)
        near = did_you_mean(word, names_ending_in(word.lstrip("-"), options), 0) or did_you_mean(word, options)
        return f"unknown option {word!r}{near or '; see --help'}"


def current_words(words: Sequence[str]) -> list[str]:
    """Words with current spellings, a note for each former one, and `--group.field VALUE` as `--group.field=VALUE`.

    argparse would read a separate value that starts with a dash as an option; a joined value is accepted.
    """
    found: list[str] = []
    waiting = list(words)[::-1]
    while waiting:
        option, equals, value = waiting.pop().partition("=")
        if option in OLD_OPTIONS:
            note(f"{option} is now {OLD_OPTIONS[option]}; the old spelling will be removed in the next release")
            option = OLD_OPTIONS[option]
        if option.startswith("--") and "." in option and not equals and waiting and not waiting[-1].startswith("--"):
            equals, value = "=", waiting.pop()
        found.append(f"{option}{equals}{value}")
    return found


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an option type for whole numbers of at least `minimum`."""

    def number(word: str) -> int:
        if not word.isdecimal() or int(word) < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {minimum}: got {word!r}")
        return int(word)

    return number


def truth(word: str) -> bool:
    """Option type for true or false."""
    if word.lower() not in TRUTH:
        raise argparse.ArgumentTypeError(f"must be true or false: got {word!r:.80}")
    return TRUTH[word.lower()]


def checkpoint_name(word: str) -> str:
    """Option type for `best`, `last` or the number of a step."""
    if word not in ("best", "last") and not word.isdecimal():
        raise argparse.ArgumentTypeError(f"must be best, last or the number of a step: got {word!r:.40}")
    return word


def add_run(
    parser: argparse.ArgumentParser, name: str = "run", text: str = "folder of a run, model folder or name of a model"
) -> None:
    """Add the model to load and its checkpoint."""
    parser.add_argument(name, metavar=name.upper(), help=text)
    add_checkpoint(parser)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Add `--checkpoint`."""
    parser.add_argument(
        "--checkpoint", type=checkpoint_name, metavar="best|last|STEP", default="best", help="checkpoint to load [best]"
    )


def add_data_root(parser: argparse.ArgumentParser, text: str = "location of the data, if it has moved") -> None:
    """Add `--data.root`."""
    parser.add_argument("--data.root", dest="data_root", metavar="PATH", help=text)


def add_json(parser: argparse.ArgumentParser, text: str = "print everything as JSON") -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=text)


def add_open(parser: argparse.ArgumentParser) -> None:
    """Add `--open`."""
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def open_page(page: Path | str) -> None:
    """Open a page in the user's browser; without one, print a note with its address."""
    import webbrowser

    address = Path(page).absolute().as_uri()
    if not webbrowser.open(address):
        note(f"no browser found; open {address} in one")


class SettingsHelp(argparse.RawDescriptionHelpFormatter):
    """Help with each option's text below it, at most `WIDEST` columns."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=8, width=min(WIDEST, shutil.get_terminal_size().columns - 2))


class SettingsParser(Parser):
    """Parser of a verb that takes the settings of a run; `show_fields` explains every `--group.field` in the help."""

    def __init__(self, *, show_fields: bool = False, preset: str | None = None, **options: Any) -> None:
        super().__init__(add_help=False, formatter_class=SettingsHelp, **options)
        self.show_fields = show_fields
        self.add_argument("-h", "--help", action="store_true", help="show this help message and exit")
        self.add_argument("--preset", metavar="NAME", default=preset, help=f"start from one of: {', '.join(PRESETS)}")
        self.add_argument(
            "-c", "--config", metavar="FILE", action="append", default=[],
            help="YAML file with the same groups and fields",
        )  # fmt: skip
        self.add_argument("--print-config", action="store_true", help="show the resolved settings as YAML and stop")
        for key in dict.fromkeys(key for model in MODEL_CONFIGS for key in field_types(model)):
            self.add_argument(f"--{key}", default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def parse_config(
        self, words: Sequence[str], base: Callable[[argparse.Namespace], Layer | None] = lambda args: None
    ) -> argparse.Namespace:
        """Parse words into options with `config` (a RunConfig) and `sources` (names of the layers it came from).

        `base` returns the layer below all others, such as the stored settings of a run that is resumed.
        `--help` and `--print-config` are answered here and end the command.
        """
        args = self.parse_args(words)
        typed = {key: value for key, value in vars(args).items() if "." in key}
        layers = [layer for layer in (base(args),) if layer is not None]
        layers += [Layer("preset", preset_settings(args.preset))] if args.preset else []
        layers += [Layer(path, flatten(read_yaml(Path(path)), path)) for path in args.config]
        layers += [Layer("environment", environment_settings()), Layer("command line", typed)]
        if args.help:
            self._explain(model_name(layers))
            self.print_help()
            self.exit()
        args.config = resolve_config(layers)
        args.sources = [layer.source for layer in layers if layer.values]
        if args.print_config:
            import yaml

            print(yaml.safe_dump(config_to_dict(args.config), sort_keys=False, allow_unicode=True), end="")
            self.exit()
        return args

    def _explain(self, model: str) -> None:
        """Put the fields of a model, each with its text and default, into the help."""
        if not self.show_fields:
            return
        others = " or ".join(name for name in MODEL_CONFIGS if name != model)
        self.epilog, self.conflict_handler = SETTINGS_EPILOG.format(model=model, others=others), "resolve"
        for group, kind in group_types(model).items():
            section = self.add_argument_group(f"{group}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}")
            docs, defaults = field_docs(kind), vars(kind())
            for name in sorted(defaults, key=lambda name: name != "name"):
                kind, value = field_types(model)[f"{group}.{name}"], defaults[name]
                parts = alternatives(kind)
                metavar = f"{{{','.join(parts)}}}" if get_origin(kind) is Literal else METAVARS[parts[0]]
                default = f"{value:g}" if isinstance(value, float) else AS_TYPED.get(str(value), str(value))
                text = f"{docs[name]} [{default}]".replace("%", "%%")
                section.add_argument(f"--{group}.{name}", metavar=metavar, help=text)

    def _unknown(self, word: str) -> str:
        group, dot, _ = word.removeprefix("--").partition(".")
        if not word.startswith("--") or group not in SETTING_GROUPS:
            return super()._unknown(word)
        if not dot:
            return f"--{group} is a group; set its fields one by one, e.g. --{group}.FIELD, or use -c FILE"
        return unknown_setting(word.removeprefix("--"), "command line", *MODEL_CONFIGS)


def environment_settings() -> dict[str, str]:
    """Settings of the environment: QUATSPHERE_TRAIN__EPOCHS=2 -> {'train.epochs': '2'}."""
    names = [name for name in os.environ if name.startswith(ENVIRONMENT) and "__" in name.removeprefix(ENVIRONMENT)]
    return rename({n.removeprefix(ENVIRONMENT).lower().replace("__", ".", 1): os.environ[n] for n in names})
