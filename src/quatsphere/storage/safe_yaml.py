"""YAML for settings: maps, lists, text, numbers, true/false and null; everything else is refused.

There are no tags (no objects), no aliases (no bombs) and no repeated keys. `1e-3` is a number, as in YAML 1.2; PyYAML
alone reads it as text.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError, SafeConstructor

from quatsphere.errors import ConfigError
from quatsphere.storage.atomic import read_regular, write_text

SIZE_LIMIT = 1_000_000
_DEPTH_LIMIT = 50
_NUMBER_LIMIT = 400
"""Characters of a number; longer ones take quadratic time, and Python refuses to print them."""
_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings in a file ({} if it is empty); ConfigError with file and line for anything else."""
    try:
        text = read_regular(path, SIZE_LIMIT).decode()
    except OSError as error:
        raise ConfigError(f"cannot read settings ({path}: {error.strerror}); check the file") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"not UTF-8 text ({path}, line {line}); save the file as UTF-8") from error
    try:
        settings = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise ConfigError(f"{error.problem} ({path}, line {line}); correct the file") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{error.reason} ({path}, line {line}); correct the file") from error
    if settings is not None and not isinstance(settings, dict):
        raise ConfigError(
            f"settings must be 'key: value' lines, not {settings!r:.60} ({path}, line 1); correct the file"
        )
    return settings or {}


def write_yaml(path: Path, settings: dict[str, Any]) -> None:
    """Write settings atomically, keys in their order; inverse of `read_yaml`."""
    write_text(path, yaml.dump(settings, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


class _Loader(yaml.SafeLoader):
    """SafeLoader without tags, aliases, merges, repeated keys, keys that are not text, and deep nesting."""

    yaml_constructors = {
        _TAG + "null": SafeConstructor.construct_yaml_null,
        _TAG + "bool": SafeConstructor.construct_yaml_bool,
        _TAG + "int": lambda loader, node: loader.construct_integer(node),
        _TAG + "float": SafeConstructor.construct_yaml_float,
        _TAG + "str": SafeConstructor.construct_yaml_str,
        _TAG + "timestamp": SafeConstructor.construct_yaml_str,
        _TAG + "seq": SafeConstructor.construct_yaml_seq,
        _TAG + "map": SafeConstructor.construct_yaml_map,
        None: SafeConstructor.construct_undefined,
    }
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, "aliases are refused; write the value out", mark)
        if self._depth >= _DEPTH_LIMIT:
            raise ComposerError(None, None, f"nested more than {_DEPTH_LIMIT} deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ConstructorError(None, None, f"not a valid {node.tag.removeprefix(_TAG)}", node.start_mark) from error

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        if node.tag in (_TAG + "int", _TAG + "float") and len(node.value) > _NUMBER_LIMIT:
            raise ValueError("too long")
        return super().construct_scalar(node)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        value = self.construct_yaml_int(node)
        if not -(2**63) <= value < 2**64:
            raise ValueError("beyond 64 bits")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConstructorError(None, None, f"key {key!r} is not text; quote it", key_node.start_mark)
            if key in mapping:
                raise ConstructorError(None, None, f"key '{key}' is there twice", key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes a repeated value out instead of an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _cls in (_Loader, _Dumper):
    _cls.add_implicit_resolver(_TAG + "float", _EXPONENT, list("-+0123456789."))
