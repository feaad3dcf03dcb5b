"""A JSON object that notices its own damage: one field is the SHA-256 of the text with that field's digits zeroed.

The rule is about the bytes, not about the values, so that even a flipped bit that means the same in JSON (`\\u00e9`
and `\\u00E9`) is seen. It is the same for every format version, for ever: only a manifest that passes is asked for
its version, so damage is never mistaken for a newer program.
"""

from __future__ import annotations

import json
import re
from typing import Any

from quatsphere.files.hashing import sha256_bytes

_FIELD = "sha256"
_ZEROS = "0" * 64


def seal(fields: dict[str, Any]) -> bytes:
    """JSON text of `fields` with its own digest; ValueError for what JSON cannot hold, NaN and infinities included."""
    text = json.dumps({_FIELD: _ZEROS, **fields}, indent=2, allow_nan=False) + "\n"
    return text.replace(_ZEROS, sha256_bytes(text.encode()), 1).encode()


def unseal(data: bytes) -> dict[str, Any]:
    """The fields of a sealed text; ValueError when a single bit of it differs from what was sealed."""
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    digest = fields.pop(_FIELD, None) if isinstance(fields, dict) else None
    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("no sha256")
    if sha256_bytes(data.replace(digest.encode(), _ZEROS.encode(), 1)) != digest:
        raise ValueError("sha256 differs")
    return fields
