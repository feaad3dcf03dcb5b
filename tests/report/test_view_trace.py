"""Trace files are read back within the precision of fixed point."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from quatsphere.diagnostics.view_trace import ViewTrace
from quatsphere.errors import DataError
from quatsphere.report.view import TRACE_FORMAT, read_trace, write_trace

RNG = np.random.default_rng(0)


def unit(*shape: int) -> np.ndarray:
    values = RNG.normal(size=(*shape, 4))
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


def test_precision(tmp_path: Path) -> None:
    weights = RNG.dirichlet(np.ones(14), (2, 8, 3)).transpose(0, 1, 3, 2).astype(np.float32)
    arrays = {
        "weights.0": weights,
        "field.0": unit(2, 8, 3),
        "features.0": (100 * RNG.normal(size=(2, 8, 3, 4, 4))).astype(np.float32),
        "norm.0": RNG.random((2, 8), dtype=np.float32),
        "neighbours.0": RNG.integers(0, 8, (8, 14)).astype(np.uint16),
        "colour.0": RNG.integers(0, 256, (2, 8, 3)).astype(np.uint8),
    }
    meta = {"run": "<b> \u7403 \udcff", "steps": []}
    write_trace(tmp_path / "t.safetensors", ViewTrace(meta, arrays))
    back = read_trace(tmp_path / "t.safetensors")
    assert back.meta == meta
    assert back.arrays.keys() == arrays.keys()
    assert np.abs(back.arrays["weights.0"] - weights).max() <= 0.5 / 65535 + 1e-9
    assert np.abs(back.arrays["field.0"] - arrays["field.0"]).max() <= 0.5 / 32767 + 1e-7
    largest = np.abs(arrays["features.0"]).max()
    assert np.abs(back.arrays["features.0"] - arrays["features.0"]).max() <= largest * (0.5 / 32767 + 1e-7)
    for name in ("norm.0", "neighbours.0", "colour.0"):
        assert np.array_equal(back.arrays[name], arrays[name])


def test_ends_of_the_scales(tmp_path: Path) -> None:
    """0, 1 and -1 are read back exactly, without overflow."""
    arrays = {"weights.0": np.array([0.0, 1.0]), "field.0": np.array([-1.0, 0.0, 1.0]), "features.0": np.zeros(3)}
    write_trace(tmp_path / "t.safetensors", ViewTrace({}, arrays))
    back = read_trace(tmp_path / "t.safetensors").arrays
    assert back["weights.0"].tolist() == pytest.approx([0, 1], abs=1e-12)
    assert back["field.0"].tolist() == pytest.approx([-1, 0, 1], abs=1e-12)
    assert not back["features.0"].any()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no trace at all",
        b"\xff" * 64,
        save({"a": np.zeros(3)}),
        save({"a": np.zeros(3)}, metadata={"view": "{"}),
        save({"a": np.zeros(3)}, metadata={"view": json.dumps({"format": TRACE_FORMAT + 1})}),
        save({"a": np.zeros(3)}, metadata={"view": json.dumps({"format": TRACE_FORMAT})})[:-4],
    ],
)
def test_other_files_are_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="not the trace of a view"):
        read_trace(tmp_path / "t.safetensors")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read the trace \(.*nowhere"):
        read_trace(tmp_path / "nowhere")
