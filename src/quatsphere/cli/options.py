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
