"""How `quatsphere train --help` reads: one field after the other, each with its choices, meaning and default."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter

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
