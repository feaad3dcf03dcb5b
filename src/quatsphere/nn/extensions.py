"""Routing and transport rules from outside the package: register a function or an `nn.Module` class under a name.

    @quatsphere.register_routing("nearest")
    def nearest(target, source, beta):                # (B, T, 1, H, 4), (B, T, k, H, 4), (H,) -> (B, T, k, H)
        return torch.softmax(beta * (target * source).sum(-1).square(), dim=2)

    @quatsphere.register_transport("scaled")
    class Scaled(nn.Module):                          # constructed with (heads, channels) in every step
        def forward(self, target, source, features):  # ... and (B, T, k, H, Q, 4) -> (B, T, k, H, Q, 4)

Then `create_model("qsv", routing="nearest")` and `QSVConfig(routing="nearest")` are valid; training, traces, diagnosis
and torch.compile work as for built-in rules. On the command line, `--plugin FILE.py` runs a file that registers rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from quatsphere.config import QSVConfig
from quatsphere.config.checks import add_choice
from quatsphere.errors import ConfigError
from quatsphere.kernels import Rule
from quatsphere.nn.routing import ROUTINGS, Routing
from quatsphere.nn.transport import TRANSPORTS, Transport

RuleSource = TypeVar("RuleSource", bound=Callable[..., Any])
_routings: dict[str, Callable[..., Any]] = {}
_transports: dict[str, Callable[..., Any]] = {}


def register_routing(name: str) -> Callable[[RuleSource], RuleSource]:
    """Register (target, source, beta) -> weights, or a module class with this forward, as a routing."""
    return _register("routing", name, _routings, ROUTINGS)


def register_transport(name: str) -> Callable[[RuleSource], RuleSource]:
    """Register (target, source, features) -> messages, or a module class with this forward, as a transport."""
    return _register("transport", name, _transports, TRANSPORTS)


def _register(
    field: str, name: str, registered: dict[str, Callable[..., Any]], built_in: dict[str, type]
) -> Callable[[RuleSource], RuleSource]:
    if name in built_in:
        raise ConfigError(f"{field} {name!r} is built in; register yours under another name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"the name of a {field} must be a lower-case identifier such as 'my_rule': got {name!r}")

    def register(rule: RuleSource) -> RuleSource:
        if not callable(rule) or (isinstance(rule, type) and not issubclass(rule, nn.Module)):
            raise ConfigError(f"{field} {name!r} must be a function or a subclass of nn.Module: got {rule!r:.80}")
        registered[name] = rule  # a second registration, as when a notebook cell runs again, replaces the first
        add_choice(QSVConfig, field, name)
        return rule

    return register


class RegisteredRouting(Routing):
    """A registered rule; parameters of a module are named `rule.*`."""

    def __init__(self, rule: Rule, heads: int, beta_start: float | None, frozen: bool) -> None:
        super().__init__(heads, beta_start, frozen)
        self.rule = rule


class RegisteredTransport(Transport):
    """A registered rule; parameters of a module are named `rule.*`."""

    def __init__(self, rule: Rule, heads: int, channels: int) -> None:
        super().__init__(heads, channels)
        self.rule = rule


def build_routing(
    name: str, heads: int, channels: int, beta_start: float | None = None, frozen: bool = False
) -> Routing:
    """Build a built-in or registered routing."""
    if name in ROUTINGS:
        return ROUTINGS[name](heads, beta_start, frozen)
    return RegisteredRouting(_build_rule("routing", name, _routings, heads, channels), heads, beta_start, frozen)


def build_transport(name: str, heads: int, channels: int) -> Transport:
    """Build a built-in or registered transport."""
    if name in TRANSPORTS:
        return TRANSPORTS[name](heads, channels)
    return RegisteredTransport(_build_rule("transport", name, _transports, heads, channels), heads, channels)


def _build_rule(
    field: str, name: str, registered: dict[str, Callable[..., Any]], heads: int, channels: int
) -> Callable[..., Any]:
    """Return the registered function, or a module of the registered class."""
    if name not in registered:
        raise ConfigError(f"{field} {name!r} is not registered; import its module, or use --plugin FILE.py")
    rule = registered[name]
    return rule(heads, channels) if isinstance(rule, type) else rule
