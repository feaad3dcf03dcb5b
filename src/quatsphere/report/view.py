"""The 3-D view of a trained model: store the trace of some images, and write the page that draws it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from safetensors import SafetensorError
from safetensors.numpy import load, save

from quatsphere.diagnostics.view_trace import TraceArrays, ViewImage, ViewTrace, compute_trace
from quatsphere.errors import DataError
from quatsphere.report.explanations import VIEW_INTRODUCTIONS, VIEW_TIPS, words_of
from quatsphere.report.page import inline_script, security_policy, write_page
from quatsphere.storage.atomic import read_regular, write_bytes
from quatsphere.train.load import TrainedModel

TRACE_FORMAT = 1
MAX_TRACE_BYTES = 256 << 20
SCRIPTS = ("tensors", "trace", "algebra", "colours", "stage", "insets", "details", "main")


def write_view(page: Path, trained: TrainedModel, images: list[ViewImage]) -> Path:
    """Write the page and, beside it, the trace file that it contains; return the path of the trace."""
    path = page.with_suffix(".safetensors")
    write_trace(path, compute_trace(trained, images))
    write_view_page(page, path)
    return path


def write_view_page(page: Path, trace: Path) -> None:
    """Write the page of a trace file."""
    data = _read_file(trace)
    meta, _ = _parse(data, str(trace))
    script, digest = inline_script(*(f"view/{name}.js" for name in SCRIPTS))
    styles = ("base.css", "view.css")
    values = {"script": script, "policy": security_policy(digest), "trace": Markup(base64.b64encode(data).decode())}
    texts = {"introduction": VIEW_INTRODUCTIONS[meta["model"]], "words": words_of(meta["model"]), "tips": VIEW_TIPS}
    write_page(page, "view.html.j2", styles, meta=meta, **texts, **values)


# Storing a trace


INTEGERS: dict[str, type] = {
    "weights": np.uint16,
    **dict.fromkeys(("base", "field", "source_field", "features"), np.int16),
}
"""First part of an array's name -> integer type that it is stored in; other arrays are stored as they are."""
UNBOUNDED = ("features",)
"""Arrays that are stored relative to their largest number; those of the others are at most 1."""


def write_trace(path: Path, trace: ViewTrace) -> None:
    """Write a trace file atomically."""
    stored, scales = {}, {}
    for name, values in trace.arrays.items():
        kind = name.partition(".")[0]
        if kind in INTEGERS:
            limits = np.iinfo(INTEGERS[kind])
            largest = max(float(np.abs(values).max(initial=0.0)), 1e-30) if kind in UNBOUNDED else 1.0
            scales[name] = largest / limits.max
            rounded = np.rint(values.astype(np.float64) / scales[name])
            values = rounded.clip(limits.min, limits.max).astype(limits.dtype)
        stored[name] = np.ascontiguousarray(values)
    meta = {"format": TRACE_FORMAT, "scales": scales, **trace.meta}
    write_bytes(path, save(stored, metadata={"view": json.dumps(meta, allow_nan=False)}))


def read_trace(path: Path) -> ViewTrace:
    """Read a trace file and decode fixed point; DataError if the file is not a trace."""
    meta, stored = _parse(_read_file(path), str(path))
    scales = meta.pop("scales")
    return ViewTrace(
        {name: value for name, value in meta.items() if name != "format"},
        {name: values * np.float64(scales[name]) if name in scales else values for name, values in stored.items()},
    )


def _read_file(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_TRACE_BYTES)
    except OSError as error:
        raise DataError(f"cannot read the trace ({path}: {error.strerror}); make it with 'quatsphere view'") from error


def _parse(data: bytes, where: str) -> tuple[dict[str, Any], TraceArrays]:
    """Return facts and arrays as stored."""
    try:
        length = int.from_bytes(data[:8], "little")
        meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["view"])
        if meta["format"] != TRACE_FORMAT:
            raise ValueError(f"format {meta['format']}, this is {TRACE_FORMAT}")
        return meta, load(data)
    except (SafetensorError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:80]
        raise DataError(f"not the trace of a view ({where}: {reason}); make it again with 'quatsphere view'") from error
