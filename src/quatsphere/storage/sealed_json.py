"""JSON files that hold their own SHA-256, and checks of the types of their fields.

A sealed file has the field `sha256`: the digest of its text with 64 zeros in this field. Files older than their seal
are read too. Fields are checked once, against a shape, when a file is read, so that no later code meets a foreign type.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import EllipsisType, NoneType
from typing import Any

from quatsphere.storage.atomic import finite, read_regular, sha256_bytes, write_bytes

SEAL = "sha256"
"""The field that holds the digest."""
MAX_JSON_BYTES = 64 << 20
"""Maximum size of a file of fields."""
UNSEALED = "0" * 64
"""Value of the field in the text whose digest is taken."""


def seal(fields: dict[str, Any], to_text: Callable[[dict[str, Any]], str] | None = None) -> bytes:
    """JSON text of `fields` with its own digest; ValueError for what JSON cannot hold, including NaN and infinities.

    `to_text` writes the fields in the order it gets them; the default indents by two.
    """
    unsealed = {SEAL: UNSEALED, **fields}
    text = to_text(unsealed) if to_text else json.dumps(unsealed, indent=2, allow_nan=False) + "\n"
    return text.replace(UNSEALED, sha256_bytes(text.encode()), 1).encode()


def describe_files(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """Size and digest of each file, as the sealed file beside them lists them."""
    return {name: {"size": len(data), "sha256": sha256_bytes(data)} for name, data in files.items()}


def write_sealed(path: Path, fields: dict[str, Any]) -> None:
    """Replace the content of `path` by the sealed fields atomically; numbers that are not finite become null."""
    write_bytes(path, seal(finite(fields)))


def unseal(data: bytes) -> dict[str, Any]:
    """Fields of a sealed text; ValueError if a single bit of it has changed."""
    fields = _parse(data)
    digest = fields.pop(SEAL, None)
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(f"no {SEAL}")
    if sha256_bytes(data.replace(digest.encode(), UNSEALED.encode(), 1)) != digest:
        raise ValueError(f"{SEAL} differs")
    return fields


def unseal_any(data: bytes, sealed_since: int) -> tuple[dict[str, Any], bool]:
    """Fields of a text, and True if it was sealed; a text of a `format` before `sealed_since` need not be.

    ValueError for a damaged text. A single flipped bit cannot make a sealed text look like an older one, because
    either the seal or the format remains.
    """
    fields = _parse(data)
    written = fields.get("format", 1)
    if SEAL in fields or type(written) is not int or written >= sealed_since:
        return unseal(data), True
    return fields, False


def _parse(data: bytes) -> dict[str, Any]:
    """JSON object in a text; ValueError for anything else."""
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    return fields


def read_sealed(
    path: Path, sealed_since: int, shape: Any = dict, limit: int = MAX_JSON_BYTES
) -> tuple[dict[str, Any], bool]:
    """Read a file of at most `limit` bytes with `unseal_any` and check its fields.

    OSError if it cannot be read, ValueError, which names the field, if it is damaged.
    """
    fields, sealed = unseal_any(read_regular(path, limit), sealed_since)
    wrong = misfit(fields, shape)
    if wrong is not None:
        raise ValueError(wrong)
    return fields, sealed


def misfit(value: Any, shape: Any, path: str = "") -> str | None:
    """Describe the first part of a JSON value that does not have its shape; None if all have.

    Shapes: `int`, `float` (finite, integers too), `str`, `bool`, `None`, `dict`, `list`, `object` (anything); a tuple
    of alternatives; a set of allowed values; a function that returns True; `[shape]` and `[shape, ...]` (at least one
    item); `{str: shape}`; `{"name": shape, "optional?": shape}`, where more fields are allowed.
    """
    if isinstance(shape, dict) and isinstance(value, dict):
        return _field_misfit(value, shape, path)
    if isinstance(shape, list) and isinstance(value, list) and (value or len(shape) == 1):
        found = (misfit(item, shape[0], f"{path}[{index}]") for index, item in enumerate(value))
        return next((wrong for wrong in found if wrong is not None), None)
    if isinstance(shape, tuple):
        return None if any(misfit(value, one) is None for one in shape) else _wrong(value, path)
    return None if _has_type(value, shape) else _wrong(value, path)


def _field_misfit(value: dict[str, Any], shape: dict[Any, Any], path: str) -> str | None:
    wanted = dict.fromkeys(value, shape[str]) if str in shape else shape
    for key, inner in wanted.items():
        name = key if str in shape else key.removesuffix("?")
        where = f"{path}.{name}" if path else name
        if name not in value and not key.endswith("?"):
            return f"field {where} is missing"
        wrong = misfit(value[name], inner, where) if name in value else None
        if wrong is not None:
            return wrong
    return None


def _has_type(value: Any, shape: Any) -> bool:
    if shape is object:
        return True
    if shape is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    if isinstance(shape, set | frozenset):
        return isinstance(value, str | int | NoneType) and value in shape
    if isinstance(shape, type | NoneType):
        return type(value) is (NoneType if shape is None else shape)
    return not isinstance(shape, list | dict | EllipsisType) and bool(shape(value))


def _wrong(value: Any, path: str) -> str:
    return f"field {path or 'of the file'} is wrong: {json.dumps(value, default=str)[:40]}"


def positive(value: Any) -> bool:
    """Shape of an integer above zero."""
    return type(value) is int and value > 0


def natural(value: Any) -> bool:
    """Shape of an integer that is not negative."""
    return type(value) is int and value >= 0
