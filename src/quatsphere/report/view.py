"""The 3-D view: one page that carries its trace and draws it, without a server or a network."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from quatsphere.errors import DataError
from quatsphere.report.page import inline_script, policy, write_page
from quatsphere.storage.atomic import read_regular, write_bytes

Array = NDArray[Any]
FORMAT = 1
LARGEST = 256 << 20
"""Bytes of the largest trace that is read."""


class Trace(NamedTuple):
    """What a view shows: facts and names, and arrays in the units of the model."""

    meta: dict[str, Any]
    arrays: dict[str, Array]


def _unit(values: Array) -> tuple[type, float]:
    """Numbers in [0, 1]."""
    return np.uint16, 1 / 65535


def _signed(values: Array) -> tuple[type, float]:
    """Numbers in [-1, 1]."""
    return np.int16, 1 / 32767


def _peak(values: Array) -> tuple[type, float]:
    """Numbers of any size, relative to the largest."""
    return np.int16, max(float(np.abs(values).max(initial=0.0)), 1e-30) / 32767


FIXED_POINT: dict[str, Callable[[Array], tuple[type, float]]] = {
    "weights": _unit,
    "base": _signed,
    "field": _signed,
    "source_field": _signed,
    "features": _peak,
}
"""family of names -> (integer type, size of one unit)."""


def write_trace(path: Path, trace: Trace) -> None:
    """Write the file atomically."""
    stored, scales = {}, {}
    for name, values in trace.arrays.items():
        kind = FIXED_POINT.get(name.partition(".")[0])
        if kind is None:
            stored[name] = np.ascontiguousarray(values)
        else:
            integers, scales[name] = kind(values)
            limits = np.iinfo(integers)
            rounded = np.rint(values.astype(np.float64) / scales[name])
            stored[name] = np.ascontiguousarray(rounded.clip(limits.min, limits.max).astype(integers))
    meta = {"format": FORMAT, "scales": scales, **trace.meta}
    write_bytes(path, save(stored, metadata={"view": json.dumps(meta, allow_nan=False)}))


def read_trace(path: Path) -> Trace:
    """The file's content, fixed point undone; DataError for anything that is no trace."""
    meta, stored = parse(read_bytes(path), str(path))
    scales = meta.pop("scales")
    return Trace(
        {name: value for name, value in meta.items() if name != "format"},
        {name: values * np.float64(scales[name]) if name in scales else values for name, values in stored.items()},
    )


def read_bytes(path: Path) -> bytes:
    """The file as it is, which a page carries."""
    try:
        return read_regular(path, LARGEST)
    except OSError as error:
        raise DataError(f"cannot read the trace ({path}: {error.strerror}); make it with 'quatsphere view'") from error


def parse(data: bytes, where: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Facts and arrays as stored."""
    try:
        length = int.from_bytes(data[:8], "little")
        meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}, this is {FORMAT}")
        return meta, load(data)
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise DataError(f"not the trace of a view ({where}: {reason}); make it again with 'quatsphere view'") from error


SCRIPTS = ("trace", "algebra", "colours", "stage", "insets", "details", "main")


def write_view(page: Path, trace: Path) -> None:
    """Draw the trace file as a page."""
    data = read_bytes(trace)
    meta, _ = parse(data, str(trace))
    script, digest = inline_script(*(f"view/{name}.js" for name in SCRIPTS))
    write_page(
        page,
        "view.html.j2",
        ("base.css", "view.css"),
        meta=meta,
        script=script,
        policy=policy(digest),
        trace=Markup(base64.b64encode(data).decode()),
    )
