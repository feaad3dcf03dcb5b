"""Safetensors round trip; other bytes are refused and never run."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import random
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quatsphere.errors import CheckpointError
from quatsphere.storage.checkpoint import dump_tensors, parse_tensors


class Gadget:
    """Creates a marker file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{self.marker}'",)


def tensors() -> dict[str, Tensor]:
    base = torch.arange(24, dtype=torch.float32)
    return {
        "view": base[4:12],
        "overlapping view": base[8:16],
        "transposed": base.reshape(4, 6).T,
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "bf16": torch.tensor([1.5], dtype=torch.bfloat16),
        "counter": torch.tensor(2**62),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    }


def test_round_trip_is_exact_for_every_kind_of_tensor() -> None:
    original = tensors()
    loaded = parse_tensors(dump_tensors(original), "x")
    assert loaded.keys() == original.keys()
    for name, tensor in original.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name].nan_to_num(7.0), tensor.detach().nan_to_num(7.0)), name
    assert parse_tensors(dump_tensors({}), "x") == {}


def test_equal_tensors_give_equal_bytes() -> None:
    shuffled = dict(reversed(tensors().items()))
    assert dump_tensors(tensors()) == dump_tensors(shuffled)


def malicious(marker: Path) -> dict[str, bytes]:
    gadget = Gadget(marker)
    saved, archive = io.BytesIO(), io.BytesIO()
    torch.save({"weights": gadget}, saved)
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("archive/data.pkl", pickle.dumps(gadget))
        zipped.writestr("archive/code/__torch__.py", "import os; os.abort()")
    good = dump_tensors({"a": torch.ones(3)})
    pickles = {f"pickle protocol {n}": pickle.dumps(gadget, protocol=n) for n in range(6)}
    return {
        **pickles,
        "torch.save": saved.getvalue(),
        "script zip": archive.getvalue(),
        "polyglot: safetensors then zip": good + archive.getvalue(),
        "polyglot: zip then safetensors": archive.getvalue() + good,
        "pickle behind a header length": (20).to_bytes(8, "little") + pickle.dumps(gadget),
        "gzip": b"\x1f\x8b" + bytes(50),
        "nothing": b"",
        "zeros": bytes(64),
        "huge header length": (2**63).to_bytes(8, "little") + b"{}",
        "deep header": (100_000).to_bytes(8, "little") + b'{"a":' * 20_000,
        "header no object": (4).to_bytes(8, "little") + b"[{}]",
        "offsets beyond the end": _framed('{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', bytes(8)),
        "shape and size disagree": _framed('{"a":{"dtype":"F32","shape":[99],"data_offsets":[0,8]}}', bytes(8)),
        "unknown type": _framed('{"a":{"dtype":"X9","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "negative offsets": _framed('{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}', bytes(8)),
    }


def _framed(header: str, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


@pytest.mark.parametrize("kind", malicious(Path("unused")))
def test_other_bytes_are_refused_and_never_run(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "marker"
    message = r"^refused: not a safetensors file \(/x/weights: .*\); only safetensors are read$"
    with pytest.raises(CheckpointError, match=message) as info:
        parse_tensors(malicious(marker)[kind], "/x/weights")
    assert "\n" not in str(info.value)
    assert not marker.exists()


def test_edited_headers_give_tensors_or_an_error() -> None:
    data = dump_tensors({"a": torch.ones(3), "b": torch.zeros(2, 2, dtype=torch.int64)})
    dice = random.Random(0)
    for _ in range(500):
        edited = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            edited[dice.randrange(140)] = dice.randrange(256)
        with contextlib.suppress(CheckpointError):
            assert parse_tensors(bytes(edited), "x").keys()
