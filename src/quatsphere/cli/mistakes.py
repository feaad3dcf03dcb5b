"""What a mistaken setting is told: the rule, the value, where it came from, and the likely intention."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from quatsphere.rules import spell_type


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
