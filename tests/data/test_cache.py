"""The cache of decoded images saves time and never changes the result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from quatsphere.data import Dataset, cache, image_folder, load_dataset
from quatsphere.data.decode import DecodedFiles
from quatsphere.errors import DataError

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for kind in "ab":
        (tmp_path / "set" / kind).mkdir(parents=True)
        for i in range(8):
            image = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
            image.save(tmp_path / "set" / kind / f"{i}.png")
    return tmp_path / "set"


@pytest.fixture
def decodings(in_process: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List that grows by one each time the images are decoded."""
    calls: list[int] = []
    decode_files = image_folder.decode_files

    def counting(*arguments: object, **options: object) -> DecodedFiles:
        calls.append(1)
        return decode_files(*arguments, **options)

    monkeypatch.setattr(image_folder, "decode_files", counting)
    return calls


def same(a: Dataset, b: Dataset) -> bool:
    return a.fingerprint == b.fingerprint and torch.equal(a.train.images, b.train.images)


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "decoded").iterdir())


def test_second_load_reads_the_cache(root: Path, tmp_path: Path, decodings: list[int]) -> None:
    first = load_dataset("folder", root=root, cache=tmp_path / "c")
    second = load_dataset("folder", root=root, cache=str(tmp_path / "c"))
    assert len(decodings) == 1
    assert same(first, second)
    assert first.notes == second.notes
    load_dataset("folder", root=root)
    assert entries(tmp_path / "xdg cache" / "quatsphere")
    assert cache.cache_root() == tmp_path / "xdg cache" / "quatsphere"


def test_changed_source_replaces_its_entry(root: Path, tmp_path: Path, decodings: list[int]) -> None:
    folder = tmp_path / "c"
    first = load_dataset("folder", root=root, cache=folder)
    (root / "a" / "0.png").unlink()
    second = load_dataset("folder", root=root, cache=folder)
    os.utime(root / "a" / "1.png", ns=(0, 0))
    load_dataset("folder", root=root, cache=folder)
    load_dataset("folder", root=root, cache=folder, image_size=8)
    assert len(decodings) == 4
    assert first.fingerprint != second.fingerprint
    assert len(entries(folder)) == 4


def test_each_fit_mode_has_its_entry(tmp_path: Path, decodings: list[int]) -> None:
    generator = np.random.default_rng(0)
    for kind in "ab":
        (tmp_path / "set" / kind).mkdir(parents=True)
        for i in range(8):
            pixels = generator.integers(0, 256, (6, 12, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "set" / kind / f"{i}.png")
    folder = tmp_path / "c"
    cropped, squashed, again = (
        load_dataset("folder", root=tmp_path / "set", cache=folder, fit=fit) for fit in ("crop", "squash", "crop")
    )
    assert len(decodings) == 2
    assert same(cropped, again)
    assert cropped.fingerprint == squashed.fingerprint
    assert not torch.equal(cropped.train.images, squashed.train.images)


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "missing"])
def test_damaged_entry_is_noticed_and_rebuilt(
    root: Path, tmp_path: Path, decodings: list[int], suffix: str, damage: str
) -> None:
    folder = tmp_path / "c"
    first = load_dataset("folder", root=root, cache=folder)
    file = next(path for path in entries(folder) if path.suffix == suffix)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 16
    damaged = {"flip": bytes(data), "cut": bytes(data[:-9]), "empty": b"", "missing": None}[damage]
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged)
    second = load_dataset("folder", root=root, cache=folder)
    assert same(first, second)
    assert len(decodings) == 2
    if (suffix, damage) != (".json", "missing"):
        assert "damaged cache noticed and rebuilt" in second.notes
    third = load_dataset("folder", root=root, cache=folder)
    assert len(decodings) == 2
    assert third.notes == first.notes


def test_no_flipped_bit_of_the_facts_is_read(tmp_path: Path) -> None:
    facts = {"classes": ["cat", "dog"], "train": 3}

    def load() -> tuple[object, tuple[str, ...]]:
        return cache.load_or_build(tmp_path, "key", ["source"], lambda: ({"labels": np.arange(4)}, facts))[1:]

    load()
    file = next(path for path in entries(tmp_path) if path.suffix == ".json")
    good = file.read_bytes()
    assert load() == (facts, ())
    for bit in range(0, 8 * len(good), 29):
        damaged = bytearray(good)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        assert load() == (facts, ("damaged cache noticed and rebuilt",)), bit
    assert file.read_bytes() == good


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{}", b"null", b"\xff", b"9" * 5000, None])
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_unreadable_entry_is_rebuilt(tmp_path: Path, suffix: str, content: bytes | None) -> None:
    def load() -> tuple[str, ...]:
        return cache.load_or_build(tmp_path, "key", [], lambda: ({"labels": np.arange(4)}, {}))[2]

    load()
    file = next(path for path in entries(tmp_path) if path.suffix == suffix)
    if content is None:
        file.write_bytes(b"")
        os.truncate(file, 1 << 40)
    else:
        file.write_bytes(content)
    assert load() == ("damaged cache noticed and rebuilt",)
    assert load() == ()


def test_unwritable_cache_is_a_note(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    data = load_dataset("folder", root=root, cache=tmp_path / "file" / "c")
    assert any(note.startswith("cache not written: ") and "decoded again" in note for note in data.notes)


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove HOME and the entry in the list of users, as in containers that run as an arbitrary user."""
    for name in ("HOME", "XDG_CACHE_HOME", "QUATSPHERE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2_000_000_001)


@pytest.mark.usefixtures("no_home")
def test_without_a_home_folder_images_are_decoded_in_memory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert any(note.startswith("cache not written: no home folder") for note in load_dataset("folder", root=root).notes)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.usefixtures("no_home")
def test_without_a_home_folder_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cifar10", "idx"):
        with pytest.raises(DataError, match=r"^no folder to search for data, .*; pass --data.root$"):
            load_dataset(name)
        with pytest.raises(DataError, match="~"):
            load_dataset(name, root="~/nowhere")
    with pytest.raises(DataError, match=r"^no such file or folder: ~nobody-here/x; check --data.root$"):
        load_dataset("folder", root="~nobody-here/x")
    with pytest.raises(DataError, match=r"^no home folder to download to; pass --output"):
        cache.download_folder()
    monkeypatch.setenv("QUATSPHERE_DATA", str(tmp_path))
    assert cache.search_paths(None) == [tmp_path]


def test_full_disk_is_a_note_and_leaves_nothing_half_written(root: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        data = load_dataset("folder", root=root, cache=disk, image_size=100)
        assert any(note.startswith("cache not written: ") and "free on" in note for note in data.notes)
        assert entries(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_failed_decoding_leaves_no_entry(root: Path, tmp_path: Path) -> None:
    (root / "a" / "bad.png").write_text("no image")
    with pytest.raises(DataError, match="bad image"):
        load_dataset("folder", root=root, cache=tmp_path / "c")
    assert not (tmp_path / "c").exists()
