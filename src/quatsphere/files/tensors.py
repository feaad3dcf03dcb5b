"""Named tensors as safetensors bytes, and back: data only, never code."""

from __future__ import annotations

import json
import struct

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from quatsphere.errors import CheckpointError

_FOREIGN = ((b"PK\x03\x04", "a zip archive (torch.save or TorchScript)"), (b"\x80", "a pickle"), (b"\x1f\x8b", "gzip"))


def dump_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Safetensors bytes; equal tensors give equal bytes.

    Each tensor is copied: safetensors refuses views that share memory, and optimisers keep their moments as views.
    """
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return save(copies)


def parse_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """The tensors of safetensors bytes; CheckpointError naming `where` for anything else, pickles and zips included.

    The header is looked at before the parser sees it; the parser itself refuses gaps and trailing bytes, so that a
    file that is also a valid zip does not pass.
    """
    reason = _why_not_safetensors(data)
    if reason is None:
        try:
            return load(data)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
    raise CheckpointError(f"refused: not a safetensors file ({where}: {reason}); only safetensors are read")


def _why_not_safetensors(data: bytes) -> str | None:
    """What is wrong with the frame: 8 bytes of header length, then a JSON object of that length."""
    for magic, name in _FOREIGN:
        if data.startswith(magic) and data[8:9] != b"{":
            return f"it is {name}"
    if len(data) < 10:
        return f"only {len(data)} bytes"
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8 or data[8:9] != b"{":
        return "no header"
    try:
        json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return "its header is not JSON"
    return None
