"""The parser of the small verbs: argparse whose errors are our one-line errors."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from quatsphere.errors import ConfigError


class Options(argparse.ArgumentParser):
    """argparse that raises ConfigError instead of printing its usage, and takes no option by half its name."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kinds})

    def error(self, message: str) -> NoReturn:
        """A mistake in the words."""
        raise ConfigError(f"{message}; see --help")


def at_least(minimum: int) -> Any:
    """A type for whole numbers from `minimum` on."""

    def number(word: str) -> int:
        if not word.isdecimal() or int(word) < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {minimum}: got {word!r}")
        return int(word)

    return number


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Which checkpoint of the run is loaded."""
    parser.add_argument(
        "--checkpoint", type=checkpoint_name, metavar="best|last|STEP", default="best", help="checkpoint to load [best]"
    )


def checkpoint_name(word: str) -> str:
    """A type for `best`, `last` or the number of a step."""
    if word not in ("best", "last") and not word.isdecimal():
        raise argparse.ArgumentTypeError(f"must be best, last or the number of a step: got {word!r:.40}")
    return word
