"""Errors shown to users: one line each, with the exit code of the command."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.65) -> str:
    """`; did you mean 'x'?` with the most similar known word, or an empty string where none is similar."""
    near = difflib.get_close_matches(word, list(known), 1, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


class QuatsphereError(Exception):
    """Base of all errors, each one line: what is wrong, where, what to do. Raised itself, it is a bug of quatsphere."""

    exit_code = 1


class ConfigError(QuatsphereError, ValueError):
    """A setting, shape or name breaks a rule; the message states the rule and the nearest legal value."""

    exit_code = 2


class DataError(QuatsphereError):
    """A data file is missing, damaged, unsafe or not what it claims to be."""

    exit_code = 3


class CheckpointError(QuatsphereError):
    """A checkpoint or run folder cannot be used."""

    exit_code = 4


class NumericsError(QuatsphereError, ArithmeticError):
    """A loss, gradient or parameter is not finite, or a quaternion has no direction."""

    exit_code = 5


class ResourceError(QuatsphereError):
    """Disk or memory ran out, or a file cannot be written."""

    exit_code = 6


class DistributedError(QuatsphereError):
    """The processes of one run disagree, or one of them is gone."""

    exit_code = 7


class StudyError(QuatsphereError):
    """Cells of a study failed, or a cell trained again has other results; everything else of the study is saved."""

    exit_code = 8


def printable(name: str | os.PathLike[str]) -> str:
    """Return a name as one printable line; undecodable bytes, newlines and terminal escapes become `\\x1b` etc."""
    text = os.fspath(name).encode("utf-8", "backslashreplace").decode()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
