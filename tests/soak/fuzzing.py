"""Every reader of files, fuzzed by atheris for a minute each: it returns or raises the package's own error.

`python tests/soak/fuzzing.py READER FOLDER [libFuzzer options]` fuzzes one reader; the promises start that.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 60
UNIT_SECONDS = 5
"""Limit of one execution, times the load per core."""
LIMITS = ("-rss_limit_mb=3000", "-max_len=20000", "-print_final_stats=1")


def sample_pickle() -> bytes:
    import pickle

    import numpy as np

    return pickle.dumps({b"data": np.zeros((2, 12), np.uint8), b"labels": [3, 9]}, 2)


def sample_zip() -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train/a/0.png", b"x" * 50)
    return buffer.getvalue()


def sample_tar() -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("set/a.bin"))
    return buffer.getvalue()


def sample_image() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (5, 4), (1, 2, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def sample_tensors() -> bytes:
    import torch

    from quatsphere.storage.checkpoint import dump_tensors

    return dump_tensors({"a": torch.zeros(2, 3)})


def sample_seal() -> bytes:
    from quatsphere.storage.sealed_json import seal

    return seal({"format": 1, "step": 3})


def read_pickle(data: bytes, path: Path) -> None:
    from quatsphere.data.cifar import read_batch

    read_batch(data)


def read_zip(data: bytes, path: Path) -> None:
    from quatsphere.data.archives import ZipTree

    path.write_bytes(data)
    archive = ZipTree(path)
    for name in archive.names[:5]:
        archive.read(name)


def read_tar(data: bytes, path: Path) -> None:
    from quatsphere.data import archives

    path.write_bytes(data)
    archives.read_tar(path, {"set/a.bin"}, 1 << 20)


def read_idx(data: bytes, path: Path) -> None:
    from quatsphere.data import load_dataset

    folder = path.parent / "idx"
    folder.mkdir(exist_ok=True)
    cut = len(data) // 2
    (folder / "train-images-idx3-ubyte").write_bytes(data[:cut])
    (folder / "train-labels-idx1-ubyte").write_bytes(data[cut:])
    load_dataset("idx", root=folder)


def read_image(data: bytes, path: Path) -> None:
    from quatsphere.data.decode import decode_or_reason

    decode_or_reason(data, 8, "crop")


def read_settings(data: bytes, path: Path) -> None:
    from quatsphere.storage.safe_yaml import read_yaml

    path.write_bytes(data)
    read_yaml(path)


def read_tensors(data: bytes, path: Path) -> None:
    from quatsphere.storage.checkpoint import parse_tensors

    parse_tensors(data, "fuzzed")


def read_manifest(data: bytes, path: Path) -> None:
    from quatsphere.storage.sealed_json import unseal

    unseal(data)


def read_metrics(data: bytes, path: Path) -> None:
    from quatsphere.storage.run_folder import RunFolder

    (path.parent / "metrics.jsonl").write_bytes(data)
    RunFolder(path.parent, lambda message: None).read_metrics()


def resealed(data: bytes) -> list[bytes]:
    """The data, and the same fields with a right seal if it is a JSON object: fields behind a seal are fuzzed too."""
    from quatsphere.storage.sealed_json import seal

    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(data)
        if isinstance(fields, dict):
            return [data, seal({key: value for key, value in fields.items() if key != "sha256"})]
    return [data]


def each(reader: Callable[[bytes, Path], None], data: bytes, path: Path) -> None:
    """Call a reader with the data as it is and resealed; the package's own errors are expected."""
    from quatsphere.errors import QuatsphereError

    for one in resealed(data):
        with contextlib.suppress(QuatsphereError):
            reader(one, path)


def read_cell(data: bytes, path: Path) -> None:
    from quatsphere.study.results import Results

    results = Results(path.parent)
    results.cells.mkdir(exist_ok=True)
    results.file("cell").write_bytes(data)
    results.read("cell")


def read_result(data: bytes, path: Path) -> None:
    from quatsphere.storage.run_folder import RunFolder

    (path.parent / "result.json").write_bytes(data)
    RunFolder(path.parent, lambda message: None).read_result()


def read_model(data: bytes, path: Path) -> None:
    from quatsphere.storage.model_folder import read_model_folder

    (path.parent / "config.json").write_bytes(data)
    (path.parent / "preprocessing.json").write_bytes(b"{}")
    (path.parent / "model.safetensors").write_bytes(sample_tensors())
    read_model_folder(path.parent)


def sample_model() -> bytes:
    from quatsphere.storage.model_folder import seal_config

    return seal_config({"settings": {}, "result": {}}, sample_tensors(), b"{}")


RECORD = json.dumps({"epoch": 1, "cell": "x", "config": {}, "train": {"loss": 0.5}}).encode() + b"\n"
RESULT = (
    b'{"test_accuracy":0.5,"val_accuracy":0.5,"seconds":1,"best_step":1,"best_epoch":1,"epochs":1,"steps":1,"seed":1,'
    b'"parameters":1,"model":"qsv","data":"digits","fingerprint":"x","test":{"images":1,"accuracy":0.5,"nll":1,"ece":0,'
    b'"per_class":{"a":0.5},"confusion":[[1]]}}'
)
READERS: dict[str, tuple[Callable[[bytes, Path], None], Callable[[], bytes]]] = {
    "pickle": (read_pickle, sample_pickle),
    "zip": (read_zip, sample_zip),
    "tar": (read_tar, sample_tar),
    "idx": (read_idx, lambda: b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02" + bytes(8)),
    "image": (read_image, sample_image),
    "settings": (read_settings, lambda: b"train: {epochs: 3, seed: 0x1F}\ndata:\n  name: digits\n"),
    "tensors": (read_tensors, sample_tensors),
    "manifest": (read_manifest, sample_seal),
    "metrics": (read_metrics, lambda: RECORD),
    "cell": (functools.partial(each, read_cell), lambda: RECORD),
    "result": (functools.partial(each, read_result), lambda: RESULT),
    "model": (functools.partial(each, read_model), sample_model),
}
"""name -> (reader, a valid file to begin with)."""


def fuzz(name: str, folder: Path, options: list[str]) -> None:
    """Fuzz one reader until a limit or the first foreign exception; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["quatsphere.data", "quatsphere.storage", "yaml", "tarfile", "zipfile"]):
        from quatsphere.errors import QuatsphereError

        reader, sample = READERS[name]
        first = sample()
        with contextlib.suppress(Exception):
            reader(first, folder / "file")  # imports, and thereby instruments, what it needs
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    (corpus / "sample").write_bytes(first)

    def attempt(data: bytes) -> None:
        try:
            reader(data, folder / "file")
        except QuatsphereError as error:
            if "\n" in str(error):
                raise RuntimeError("an error of several lines") from error
        except ValueError as error:
            if name not in ("pickle", "manifest"):  # their callers turn it into one line
                raise error

    atheris.Setup([sys.argv[0], str(corpus), *options], attempt)
    atheris.Fuzz()


def fuzzed(name: str) -> Callable[[Any], None]:
    """Promise that fuzzes one reader; executions are its attempts."""

    def check(trials: Any) -> None:
        import pytest

        pytest.importorskip("atheris", reason="atheris is not installed (extra 'soak')")
        seconds = SECONDS if trials.full else 3
        with tempfile.TemporaryDirectory(dir=trials.folder) as folder:
            limits = (f"-max_total_time={seconds}", f"-timeout={round(UNIT_SECONDS * patience())}", *LIMITS)
            command = [sys.executable, __file__, name, folder, *limits]
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
        runs = re.findall(r"stat::number_of_executed_units:\s*(\d+)|Done (\d+) runs", ended.stderr)
        tried = max((int(number) for pair in runs for number in pair if number), default=1)
        bad = int(ended.returncode != 0)
        trials.add(tried, tried - bad, ended.stderr[-1500:])

    check.__name__ = f"fuzz_{name}"
    return check


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
else:
    from soak.promises import patience, promise

    for _name in READERS:
        promise(f"The reader of {_name} files, fuzzed for a minute, returns or raises one line", 1000, 65)(
            fuzzed(_name)
        )
