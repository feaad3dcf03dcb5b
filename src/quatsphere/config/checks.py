"""Checks of settings: a broken rule raises one ConfigError with the rule and the value."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from quatsphere.errors import ConfigError


def require(condition: bool, message: str) -> None:
    """Raise ConfigError(message) unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def require_fractions(config: object, *names: str, closed: bool = False) -> None:
    """Require fields that are fractions in [0, 1), or in [0, 1] if closed."""
    for name in names:
        value = getattr(config, name)
        ok = 0 <= value <= 1 if closed else 0 <= value < 1
        require(ok, f"{name} must lie in [0, {'1]' if closed else '1)'}: got {value}")


def require_finite(config: object, *names: str, minimum: float = 0.0) -> None:
    """Require fields that are finite numbers not below the minimum."""
    for name in names:
        value = getattr(config, name)
        ok = math.isfinite(value) and value >= minimum
        require(ok, f"{name} must be a finite number >= {minimum:g}: got {value}")


def require_at_least(config: object, minimum: int, *names: str, also: str = "") -> None:
    """Require fields that are not below the minimum; None is allowed where the type allows it."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= minimum, f"{name} must be >= {minimum}{also}: got {value}")


_ADDED: dict[Any, list[str]] = {}
"""Literal of a field -> choices registered by users."""


def add_choice(config: type, field: str, choice: str) -> None:
    """Make `choice` a valid value of a dataclass field whose type is a Literal."""
    kind = get_type_hints(config)[field]
    if choice not in alternatives(kind):
        _ADDED.setdefault(kind, []).append(choice)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Types of a union, choices of a Literal with those added by users, or the type itself."""
    return (*get_args(kind), *_ADDED.get(kind, ())) if get_origin(kind) in (UnionType, Literal) else (kind,)


def fits(value: object, kind: Any) -> bool:
    """Check a value against a field's type; whole numbers count as floats, booleans never as numbers."""
    if get_origin(kind) is Literal:
        return value in alternatives(kind)
    if get_origin(kind) is UnionType:
        return any(fits(value, part) for part in get_args(kind))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


SPELLED = {NoneType: "none", int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def spell_type(kind: Any) -> str:
    """A field's type or choices in words."""
    return " or ".join(SPELLED.get(part, str(part)) for part in alternatives(kind))


UNREGISTERED = "; a rule of your own must be registered first: import its module, or use --plugin FILE.py"


def check_types(config: object) -> None:
    """Raise ConfigError unless every field holds a value of its type or one of its choices."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        hint = UNREGISTERED if name in getattr(type(config), "EXTENSIBLE", ()) else ""
        require(fits(value, kind), f"{name} must be {spell_type(kind)}: got {value!r}{hint}")
        require(not isinstance(value, int) or abs(value) < 2**63, f"{name} must fit in 64 bits: got {value}")
