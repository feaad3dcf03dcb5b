"""Bad data files end a command with exit code 3, one line and no run folder (tests/data has more cases)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data_files import encode_idx, noise_image, png_header, save_image
from PIL import Image

from quatsphere.data import cifar_files
from quatsphere.data.cifar_files import CIFAR10

Files = dict[str, bytes]
Write = Callable[[Path, Mapping[str, bytes]], Path]
GADGET = b"cos\nsystem\n(S'touch marker'\ntR."


def idx_files() -> Files:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    return {
        "train-images-idx3-ubyte": encode_idx(images),
        "train-labels-idx1-ubyte": encode_idx(np.arange(20, dtype=np.uint8) % 5),
    }


def hostile_tar(member: str, kind: bytes = tarfile.REGTYPE) -> Files:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.type, info.linkname, info.size = kind, "/etc/passwd", 1 if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(b"x"))
    return {"cifar-10-binary.tar.gz": buffer.getvalue()}


def zip_bomb(size: int) -> bytes:
    """A small zip of class folders, one file of which unpacks to `size` zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bomb:
        for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
            bomb.writestr(name, noise_image(0))
        bomb.writestr("a/bomb.png", bytes(size))
    return buffer.getvalue()


def cifar_of_zeros(folder: Path, short: str | None) -> Path:
    """Sparse batch files of zeros with the official size, one of them too short."""
    folder.mkdir()
    for file in CIFAR10.containers[0].files:
        with open(folder / file.name, "wb") as empty:
            empty.truncate(3_145_728 if file.name == short else file.size)
    return folder


CASES: dict[str, tuple[str, Callable[[Files], Files], str]] = {
    "nothing there": ("cifar10", lambda _: {"readme": b""}, r"no CIFAR-10 files in \S+ \(looked for data_batch_1 …"),
    "no idx": ("idx", lambda _: {"readme": b""}, "no IDX files in"),
    "truncated": (
        "idx",
        lambda _: idx_files() | {"train-images-idx3-ubyte": idx_files()["train-images-idx3-ubyte"][:-1]},
        "has 1279 values, expected 1280; the copy is incomplete",
    ),
    "label": (
        "idx",
        lambda _: idx_files() | {"train-labels-idx1-ubyte": encode_idx(np.array([0, 1] * 9 + [1, 200], np.uint8))},
        "label 200 at index 19|class '2' has no",
    ),
    "rows": (
        "idx",
        lambda _: idx_files() | {"train-labels-idx1-ubyte": encode_idx(np.zeros(19, np.uint8))},
        "20 rows but 19 labels, first mismatch at index 19",
    ),
    "outside": ("cifar10", lambda _: hostile_tar("../../evil"), "refused: archive member leads outside"),
    "absolute": ("cifar10", lambda _: hostile_tar("/evil"), "refused: archive member leads outside"),
    "link": ("cifar10", lambda _: hostile_tar("x", tarfile.SYMTYPE), "refused: archive member is a link or device"),
    "hard link": ("cifar10", lambda _: hostile_tar("x", tarfile.LNKTYPE), "archive member is a link or device"),
    "device": ("cifar10", lambda _: hostile_tar("x", tarfile.CHRTYPE), "archive member is a link or device"),
    "bomb": (
        "idx",
        lambda _: {
            "train-images-idx3-ubyte.gz": gzip.compress(idx_files()["train-images-idx3-ubyte"] + bytes(10_000_000)),
            "train-labels-idx1-ubyte": idx_files()["train-labels-idx1-ubyte"],
        },
        "holds more than the 1280 values that its header states",
    ),
    "empty": (
        "folder",
        lambda files: files | {"train/a/x.png": b""},
        r"bad image train/a/x.png \(the file is empty\)",
    ),
    "cut PNG": (
        "folder",
        lambda files: files | {"train/a/x.png": noise_image(0, (40, 40, 3))[:-900]},
        r"bad image train/a/x.png \(.*(truncated|broken)",
    ),
    "cut JPEG": (
        "folder",
        lambda files: files | {"train/a/x.jpg": noise_image(0, (40, 40, 3), "JPEG")[:-500]},
        r"bad image train/a/x.jpg \(.*(truncated|broken)",
    ),
    "text": ("folder", lambda files: files | {"train/a/x.png": b"hello"}, "not a PNG, JPEG or WebP image"),
    "huge": (
        "folder",
        lambda files: files | {"train/a/x.png": png_header(20_000, 20_000)},
        "more than 64,000,000 pixels",
    ),
    "empty class": (
        "folder",
        lambda files: files | {"train/d/readme": b""},
        r"class 'd' has no images \(train of .*\); add some or remove the folder",
    ),
    "one class": (
        "folder",
        lambda files: {k: v for k, v in files.items() if "/a/" in k},
        "only one class, 'a' .*; a classifier needs two or more",
    ),
    "other classes": (
        "folder",
        lambda files: files | {"test/d/0.png": files["test/a/0.png"]},
        "different classes .*first difference 'd', only in test",
    ),
    "name": ("folder", lambda files: files | {"train/a/\udcff\n.png": b""}, r"bad image train/a/\\udcff\\n.png"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_data_is_one_line(
    case: str, tmp_path: Path, class_files: Files, write: Write, tiny: list[str], fails: Callable[..., str]
) -> None:
    name, make, message = CASES[case]
    root = write(tmp_path / "data", make(class_files))
    fails(3, message, "train", *tiny, "--data.name", name, "--data.root", str(root), "--run-dir", "run")
    fails(3, message, "data", "verify", name, "--data.root", str(root))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    ("short", "message"),
    [
        ("data_batch_3.bin", "data_batch_3.bin has 3145728 bytes, expected 30730000; the copy is incomplete"),
        (None, "sha256 differs from the official data_batch_1.*; delete it and fetch again"),
    ],
)
def test_damaged_cifar(
    short: str | None, message: str, tmp_path: Path, tiny: list[str], fails: Callable[..., str]
) -> None:
    root = cifar_of_zeros(tmp_path / "cifar-10-batches-bin", short)
    fails(3, message, "train", *tiny, "--data.name", "cifar10", "--data.root", str(root), "--run-dir", "run")
    assert not (tmp_path / "run").exists()


def test_pickle_that_calls_a_command_is_refused(
    tmp_path: Path, tiny: list[str], write: Write, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = CIFAR10.containers[1]
    file = replace(pickled.files[0], size=len(GADGET), sha256=hashlib.sha256(GADGET).hexdigest())
    one_file = replace(CIFAR10, containers=(replace(pickled, files=(file,)),))
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", one_file)
    root = write(tmp_path / "data", {"data_batch_1": GADGET})
    words = ("train", *tiny, "--data.name", "cifar10", "--data.root", str(root), "--run-dir", "run")
    fails(3, "refused: file asks for os.system; CIFAR needs only numpy arrays", *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (2, [3, 17], r"label 17 at index 1 is outside 0\.\.9 \(data_batch_1"),
        (2, [3], "2 rows but 1 labels, first mismatch at index 1"),
        (3, [3, 3, 3], "3 images, expected 2, first wrong index 2"),
    ],
)
def test_wrong_rows_of_cifar(
    rows: int,
    labels: list[int],
    message: str,
    tmp_path: Path,
    tiny: list[str],
    write: Write,
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The official archive is replaced by one of two rows and these bytes."""
    data = pickle.dumps({b"data": np.zeros((rows, 3072), np.uint8), b"labels": labels}, protocol=2)
    pickled = CIFAR10.containers[1]
    file = replace(pickled.files[0], rows=2, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    small = replace(CIFAR10, containers=(replace(pickled, files=(file,)),))
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", small)
    root = write(tmp_path / "data", {"data_batch_1": data})
    fails(3, message, "train", *tiny, "--data.name=cifar10", f"--data.root={root}", "--run-dir=run")
    assert not (tmp_path / "run").exists()


def test_bombs_are_stopped_early(
    tmp_path: Path, tiny: list[str], write: Write, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are lowered, so that the bombs can be small."""
    monkeypatch.setattr("quatsphere.data.cifar.MAX_UNPACKED_BYTES", 1 << 20)
    monkeypatch.setattr("quatsphere.data.archives.MAX_FILE_BYTES", 1 << 20)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size = 30_730_000
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    root = write(tmp_path / "data", {"cifar-10-binary.tar.gz": tar.getvalue(), "bomb.zip": zip_bomb(2_000_000)})
    for name, file, message in (
        ("cifar10", "cifar-10-binary.tar.gz", "unpacks to more than is allowed; fetch the official archive"),
        ("folder", "bomb.zip", r"bad image a/bomb.png \(.* has 2000000 bytes, more than the limit of 1048576"),
    ):
        fails(3, message, "train", *tiny, f"--data.name={name}", f"--data.root={root / file}", "--run-dir=run")
    assert not (tmp_path / "run").exists()


def test_bad_images_can_be_skipped(
    tmp_path: Path, class_files: Files, write: Write, command: Callable[..., Any], fails: Callable[..., str]
) -> None:
    root = str(write(tmp_path / "data", class_files | {"train/a/x.png": b"", "train/b/x.png": b"text"}))
    words = ("data", "verify", "folder", "--root", root)
    fails(3, r"and 1 more; .* pass --data.skip_bad 2 \(now 1\)", *words, "--data.skip_bad", "1")
    verified = command(*words, "--data.skip_bad", "2", "--json")
    assert verified.code == 0
    report = json.loads(verified.out)
    assert report["train"] == 18
    assert [note[:16] for note in report["notes"] if "train/a/x.png" in note] == ["2 images skipped"]


def test_unusual_images_are_read(tmp_path: Path, class_files: Files, write: Write, command: Callable[..., Any]) -> None:
    root = write(tmp_path / "data", class_files)
    rng = np.random.default_rng(0)
    for index, mode in enumerate(("CMYK", "RGBA", "LA", "L", "P", "I;16")):
        noise = Image.fromarray(rng.integers(0, 256, (9, 7, 3), np.uint8))
        image = Image.fromarray(rng.integers(0, 65535, (9, 7), np.uint16)) if mode == "I;16" else noise.convert(mode)
        image.save(root / "train" / "a" / f"odd{index}.{'jpg' if mode == 'CMYK' else 'png'}")
    verified = command("data", "verify", "folder", "--root", str(root), "--json")
    assert verified.code == 0, verified.err
    assert json.loads(verified.out)["train"] == 24


def test_shared_images_are_noted(
    tmp_path: Path, class_files: Files, write: Write, command: Callable[..., Any], tiny: list[str]
) -> None:
    root = str(write(tmp_path / "data", class_files | {"test/a/9.png": class_files["train/a/0.png"]}))
    verified = command("data", "verify", "folder", "--root", root)
    assert verified.code == 0
    assert "1 of 7 test images also in train, pixel for pixel" in verified.out
    trained = command(
        "train", *tiny, "--data.name=folder", f"--data.root={root}", "--train.batch_size=4", "--run-dir=run"
    )
    assert trained.code == 0, trained.err
    assert "quatsphere: note: 1 of 7 test images also in train, pixel for pixel" in trained.err


def test_loops_pipes_and_links_are_named(
    tmp_path: Path, class_files: Files, write: Write, fails: Callable[..., str], tiny: list[str]
) -> None:
    loop = write(tmp_path / "loop", class_files)
    (loop / "train" / "a" / "again").symlink_to(loop / "train")
    pipe = write(tmp_path / "pipe", class_files)
    os.mkfifo(pipe / "train" / "a" / "x.png")
    dangling = write(tmp_path / "dangling", class_files)
    (dangling / "train" / "a" / "x.png").symlink_to("nowhere")
    for root, message in (
        (loop, "symlink loop at .*/train/a/again/?; remove the link"),
        (pipe, r"bad image train/a/x.png \(cannot read .*not a regular file"),
        (dangling, r"bad image train/a/x.png \(cannot read .*No such file"),
    ):
        fails(3, message, "train", *tiny, "--data.name=folder", f"--data.root={root}", "--run-dir=run")
    fails(3, "no default location; pass --data.root", "train", *tiny, "--data.name=folder", "--run-dir=run")
    fails(3, "no such file or folder: .*nowhere", "data", "preview", "folder", "--root", "nowhere")
    assert not (tmp_path / "run").exists()


def test_constant_channel_is_refused(
    tmp_path: Path, class_files: Files, write: Write, fails: Callable[..., str], tiny: list[str]
) -> None:
    grey = {name: save_image(Image.new("RGB", (8 + i, 8 + i), (7, 7, 7))) for i, name in enumerate(class_files)}
    root = write(tmp_path / "data", grey)
    words = ("train", *tiny, "--data.name=folder", f"--data.root={root}", "--run-dir=run")
    fails(3, "channel 0 of the training images is constant", *words)
    assert not (tmp_path / "run").exists()
