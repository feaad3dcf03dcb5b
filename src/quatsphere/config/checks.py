"""What a setting must satisfy, and how a broken rule is said: one ConfigError with the rule and the value."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quatsphere.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_fraction(value: float, name: str, *, closed: bool) -> None:
    """A share in [0, 1], or in [0, 1) unless closed."""
    upper = "1]" if closed else "1)"
    ok = 0 <= value <= 1 if closed else 0 <= value < 1
    require(ok, f"{name} must lie in [0, {upper}: got {value}")


def require_finite(value: float, name: str, minimum: float = 0.0) -> None:
    """A number that is one, and not below the minimum."""
    require(
        math.isfinite(value) and value >= minimum,
        f"{name} must be a finite number >= {minimum:g}: got {value}",
    )


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a field's type; whole numbers count as floats, booleans never as numbers."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is UnionType:
        return any(_fits(value, part) for part in get_args(kind))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


SPELLED = {NoneType: "none", int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def spell_type(kind: Any) -> str:
    """A field's type or choices in words."""
    parts = get_args(kind) if get_origin(kind) in (UnionType, Literal) else (kind,)
    return " or ".join(SPELLED.get(part, str(part)) for part in parts)


UNREGISTERED = "; register a rule of your own first: import its module, or pass --plugin FILE.py to the command"


def check_types(config: object) -> None:
    """Every field holds a value of its type or one of its choices; else ConfigError with the choices."""
    extensible = getattr(type(config), "EXTENSIBLE", ())
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        hint = UNREGISTERED if name in extensible and isinstance(value, str) else ""
        require(_fits(value, kind), f"{name} must be {spell_type(kind)}: got {value!r}{hint}")
        require(not isinstance(value, int) or abs(value) < 2**63, f"{name} must fit in 64 bits: got {value}")


def add_choice(config: type, name: str, choice: str) -> None:
    """Add a choice to a field's Literal type, so that every check and parser accepts it."""
    choices = get_args(get_type_hints(config)[name])
    if choice not in choices:
        config.__annotations__[name] = Literal.__getitem__((*choices, choice))
