"""CIFAR from every container is the same data set; damaged or foreign files are one-line errors."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data_files import save_image, write_files, write_tar, write_zip
from PIL import Image

from quatsphere.data import Dataset, cifar_files, load_dataset, verify
from quatsphere.data.cifar_files import CIFAR10, CIFAR100, Cifar
from quatsphere.errors import DataError

Rows = tuple[np.ndarray, np.ndarray]
Install = Callable[[dict[str, bytes]], Cifar]
NAMES = [file.name for file in CIFAR10.containers[1].files]


def binary_files(batches: list[Rows]) -> dict[str, bytes]:
    return {
        f"{name}.bin": np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1).tobytes()
        for name, (pixels, labels) in zip(NAMES, batches, strict=True)
    }


def python_files(batches: list[Rows]) -> dict[str, bytes]:
    return {
        name: pickle.dumps({b"data": pixels, b"labels": labels.tolist(), b"batch_label": b"x"}, 2)
        for name, (pixels, labels) in zip(NAMES, batches, strict=True)
    }


def write_folder_in_tar(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    return write_tar(path, {f"{folder}/{name}": data for name, data in files.items()})


def same(a: Dataset, b: Dataset) -> bool:
    pairs = [(getattr(a, name), getattr(b, name)) for name in ("train", "val", "test")]
    return (
        a.fingerprint == b.fingerprint
        and a.classes == b.classes
        and torch.equal(a.mean, b.mean)
        and all(torch.equal(x.images, y.images) and torch.equal(x.labels, y.labels) for x, y in pairs)
    )


def test_every_container_gives_the_same_data(
    tmp_path: Path, batches: list[Rows], real_files: dict[str, bytes], small_cifar10: Install
) -> None:
    binary, pickled = binary_files(batches), python_files(batches)
    small_cifar10({**binary, **pickled})
    roots = [
        write_zip(tmp_path / "images.zip", real_files),
        write_zip(tmp_path / "wrapped.zip", {f"cifar/{name}": data for name, data in real_files.items()}),
        write_files(tmp_path / "images", real_files),
        write_files(tmp_path / "bin", binary),
        write_files(tmp_path / "parent" / "cifar-10-batches-bin", binary).parent,
        write_files(tmp_path / "py", pickled),
        write_folder_in_tar(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", binary),
        write_folder_in_tar(tmp_path / "renamed", "cifar-10-batches-py", pickled),
    ]
    sets = [load_dataset("cifar10", root=root) for root in roots]
    assert all(same(sets[0], other) for other in sets[1:])
    assert [len(split) for split in (sets[0].train, sets[0].val, sets[0].test)] == [90, 10, 20]
    assert "official CIFAR-10 files (sha256)" in sets[3].notes
    as_folder = load_dataset("folder", root=roots[0])
    assert same(sets[0], as_folder)


@pytest.mark.usefixtures("in_process")
def test_data_is_found_through_the_environment(
    tmp_path: Path, real_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_zip(tmp_path / "cifar10.zip", real_files)
    monkeypatch.setenv("QUATSPHERE_DATA", str(tmp_path))
    assert len(load_dataset("cifar10").test) == 20


def test_batches_packed_again_are_recognised_by_content(
    tmp_path: Path, batches: list[Rows], small_cifar10: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    small = small_cifar10({})
    root = write_files(tmp_path / "bin", binary_files(batches))
    with pytest.raises(DataError, match="sha256 differs"):
        load_dataset("cifar10", root=root)
    files = binary_files(batches)
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", small_cifar10(files))
    known = load_dataset("cifar10", root=root).fingerprint
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", replace(small, fingerprint=known))
    assert "canonical CIFAR-10" in load_dataset("cifar10", root=root).notes[0]
    pickled = write_files(tmp_path / "py", python_files([batches[i] for i in (3, 1, 0, 2, 4, 5)]))
    assert "canonical CIFAR-10" in load_dataset("cifar10", root=pickled).notes[0]
    assert verify("cifar10", root=pickled)["canonical"] is True


def test_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        r"^no CIFAR-10 files in {} \(looked for data_batch_1 … test_batch\); "
        r"run 'quatsphere data get cifar10' or pass --data\.root$"
    )
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DataError, match=message.format(root)) as caught:
            load_dataset("cifar10", root=root)
        assert caught.value.exit_code == 3
    monkeypatch.delenv("QUATSPHERE_DATA", raising=False)
    with pytest.raises(DataError, match=r"quatsphere/downloads \(looked for train … test\); run 'quatsphere data get"):
        load_dataset("cifar100")


@pytest.mark.parametrize("make", [binary_files, python_files])
def test_truncated_batch(
    make: Callable[[list[Rows]], dict[str, bytes]], tmp_path: Path, batches: list[Rows], small_cifar10: Install
) -> None:
    files = make(batches)
    small_cifar10(files)
    name = list(files)[2]
    for length in (30_000, len(files[name]) - 1, 3073 * 10, 0):
        short = {**files, name: files[name][:length]}
        expected = f"^{name} has {length} bytes, expected {len(files[name])}; the copy is incomplete"
        with pytest.raises(DataError, match=expected):
            load_dataset("cifar10", root=write_files(tmp_path / "short", short))
    del files[name]
    with pytest.raises(DataError, match=rf"^{name} is missing in .*; the copy is incomplete"):
        load_dataset("cifar10", root=write_files(tmp_path / "missing", files))


@pytest.mark.parametrize("make", [binary_files, python_files])
def test_no_flipped_bit_is_accepted(
    make: Callable[[list[Rows]], dict[str, bytes]], tmp_path: Path, batches: list[Rows], small_cifar10: Install
) -> None:
    files = make(batches)
    small_cifar10(files)
    generator = np.random.default_rng(0)
    for trial in range(50):
        name = list(files)[trial % 6]
        data = bytearray(files[name])
        data[generator.integers(len(data))] ^= 1 << generator.integers(8)
        with pytest.raises(DataError) as caught:
            load_dataset("cifar10", root=write_files(tmp_path / "flipped", {**files, name: bytes(data)}))
        assert "fetch" in str(caught.value) or "refused" in str(caught.value)
    data = bytearray(files[name])
    data[5000] ^= 1
    with pytest.raises(
        DataError, match=r"^sha256 differs from the official data_batch_2.*; delete it and fetch again$"
    ):
        load_dataset("cifar10", root=write_files(tmp_path / "flipped", {**files, name: bytes(data)}))


def test_pickle_that_calls_a_command_is_refused(tmp_path: Path, batches: list[Rows], small_cifar10: Install) -> None:
    files = python_files(batches)
    marker = tmp_path / "marker"
    files["data_batch_4"] = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    small_cifar10(files)
    for root in (
        write_files(tmp_path / "py", files),
        write_folder_in_tar(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files),
    ):
        with pytest.raises(DataError, match=r"^refused: file asks for os.system; CIFAR needs only numpy arrays$"):
            load_dataset("cifar10", root=root)
    assert not marker.exists()


def test_wrong_labels_and_counts_state_the_first_index(
    tmp_path: Path, batches: list[Rows], small_cifar10: Install
) -> None:
    pixels, labels = batches[1]
    wrong = labels.copy()
    wrong[[7, 9]] = 17
    cases: list[tuple[dict[str, bytes], str]] = [
        (
            binary_files([batches[0], (pixels, wrong), *batches[2:]]),
            r"^label 17 at index 7 is outside 0\.\.9 \(data_batch_2",
        ),
        (
            python_files([batches[0], (pixels, wrong), *batches[2:]]),
            r"^label 17 at index 7 is outside 0\.\.9 \(data_batch_2",
        ),
        (
            python_files([batches[0], (pixels, labels[:15]), *batches[2:]]),
            "^20 rows but 15 labels, first mismatch at index 15",
        ),
        (
            python_files([batches[0], (pixels[:9], labels[:9]), *batches[2:]]),
            "^9 images, expected 20, first wrong index 9",
        ),
        (
            binary_files([batches[0], (pixels[:9], labels[:9]), *batches[2:]]),
            "^9 images, expected 20, first wrong index 9",
        ),
    ]
    for index, (files, message) in enumerate(cases):
        small_cifar10(files)
        with pytest.raises(DataError, match=message):
            load_dataset("cifar10", root=write_files(tmp_path / str(index), files))


def test_hostile_archive(tmp_path: Path, batches: list[Rows], small_cifar10: Install) -> None:
    files = binary_files(batches)
    small_cifar10(files)
    root = write_folder_in_tar(
        tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", {**files, "../../evil": b"x"}
    )
    with pytest.raises(DataError, match="refused: archive member leads outside"):
        load_dataset("cifar10", root=root)
    assert not (tmp_path.parent / "evil").exists()
    root.write_bytes(root.read_bytes()[:-5000])
    with pytest.raises(DataError, match="damaged"):
        load_dataset("cifar10", root=root)
    with pytest.raises(
        DataError, match=r"no CIFAR-10 files in .*looked for cifar-10-batches-bin or cifar-10-batches-py"
    ):
        load_dataset("cifar10", root=write_folder_in_tar(tmp_path / "other.tar.gz", "elsewhere", files))


def test_archive_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quatsphere.data.cifar.MAX_UNPACKED_BYTES", 1 << 20)
    root = write_folder_in_tar(
        tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", {"data_batch_1.bin": bytes(30_730_000)}
    )
    with pytest.raises(DataError, match="unpacks to more than is allowed"):
        load_dataset("cifar10", root=root)


@pytest.mark.usefixtures("in_process")
def test_jpeg_copy_is_recognised(tmp_path: Path, real_files: dict[str, bytes]) -> None:
    files = {}
    for name, data in real_files.items():
        files[name.replace(".webp", ".jpg")] = save_image(Image.open(io.BytesIO(data)), "JPEG", quality=95)
    notes = load_dataset("cifar10", root=write_zip(tmp_path / "jpeg.zip", files)).notes
    assert any(note.startswith("LOSSY JPEG COPY of CIFAR-10 recognised") for note in notes)


@pytest.mark.usefixtures("in_process")
def test_jpeg_copy_is_recognised_by_its_means(
    tmp_path: Path, real_files: dict[str, bytes], small_cifar10: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JPEG copy that was saved as PNG has the means of the JPEG copy."""
    from dataclasses import replace

    root = write_zip(tmp_path / "images.zip", real_files)
    means = verify("cifar10", root=root)["channel_means"]
    close = replace(CIFAR10, jpeg_means=(means[0] + 0.01, means[1] - 0.01, means[2]))
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", close)
    assert any("LOSSY JPEG COPY" in note for note in load_dataset("cifar10", root=root).notes)
    far = replace(CIFAR10, jpeg_means=(means[0] + 0.04, means[1], means[2]))
    monkeypatch.setitem(cifar_files.CIFARS, "cifar10", far)
    assert not any("JPEG" in note for note in load_dataset("cifar10", root=root).notes)


@pytest.mark.usefixtures("in_process")
def test_parts_are_noted(tmp_path: Path, real_files: dict[str, bytes]) -> None:
    notes = load_dataset("cifar10", root=write_zip(tmp_path / "part.zip", real_files)).notes
    assert "only a PART of CIFAR-10: 100 training and 20 test images of 50000 training and 10000 test images" in notes


@pytest.mark.usefixtures("in_process")
def test_foreign_class_folders_are_refused(tmp_path: Path, real_files: dict[str, bytes]) -> None:
    renamed = {name.replace("/cat/", "/tiger/"): data for name, data in real_files.items()}
    with pytest.raises(DataError, match=r"class folder 'tiger' is none of this data set's; .* --data.name folder"):
        load_dataset("cifar10", root=write_zip(tmp_path / "renamed.zip", renamed))
    fewer = {name: data for name, data in real_files.items() if "/cat/" not in name}
    with pytest.raises(DataError, match="class folder 'cat' is missing"):
        load_dataset("cifar10", root=write_zip(tmp_path / "fewer.zip", fewer))
    train = {name: data for name, data in real_files.items() if name.startswith("train")}
    with pytest.raises(DataError, match="has no test folder"):
        load_dataset("cifar10", root=write_zip(tmp_path / "train.zip", train))


def test_cifar100_has_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    from dataclasses import replace

    generator = np.random.default_rng(0)
    files, containers = {}, []
    for name in ("train.bin", "test.bin"):
        rows = generator.integers(0, 256, (200, 3074), np.uint8)
        rows[:, 0], rows[:, 1] = 19, np.arange(200) % 100
        files[name] = rows.tobytes()
    for container in CIFAR100.containers[:1]:
        known = tuple(
            replace(file, rows=200, size=200 * 3074, sha256=hashlib.sha256(files[file.name]).hexdigest())
            for file in container.files
        )
        containers.append(replace(container, files=known))
    monkeypatch.setitem(cifar_files.CIFARS, "cifar100", replace(CIFAR100, containers=tuple(containers)))
    data = load_dataset("cifar100", root=write_files(tmp_path / "cifar-100-binary", files).parent, val_fraction=0.0)
    assert torch.equal(torch.bincount(data.test.labels), torch.full((100,), 2))
    assert data.classes[0] == "apple"
    assert data.classes[99] == "worm"


def test_official_facts_are_complete() -> None:
    """Every file has a distinct hash of the right length."""
    for cifar in (CIFAR10, CIFAR100):
        assert cifar.counts == (50_000, 10_000)
        assert len(set(cifar.classes)) == len(cifar.classes) == {"cifar10": 10, "cifar100": 100}[cifar.name]
        hashes = [file.sha256 for container in cifar.containers for file in container.files]
        hashes += [archive.sha256 for archive in cifar.archives]
        assert len(set(hashes)) == len(hashes)
        assert all(len(bytes.fromhex(value)) == 32 for value in hashes)
        assert all(len(bytes.fromhex(archive.md5)) == 16 for archive in cifar.archives)
        for file in cifar.containers[0].files:
            assert file.size == file.rows * (cifar.label_bytes + 3072)
