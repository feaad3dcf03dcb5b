"""Every damage to a step folder is detected and raises CheckpointError; every bit of a seal counts."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quatsphere.errors import CheckpointError
from quatsphere.storage.checkpoint import (
    MANIFEST,
    STATE,
    WEIGHTS,
    DamagedCheckpoint,
    StepFolder,
    read_step,
    seal,
    step_name,
    step_of,
    unseal,
    write_step,
)

NAMES = (WEIGHTS, STATE, MANIFEST)
CONTENT = StepFolder(1200, "step-001190", {"epoch": 3, "été": [1.5, None]}, bytes(range(256)) * 4, b"state" * 300)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_step(tmp_path / "step-001200", CONTENT)
    return tmp_path / "step-001200"


def assert_detected(path: Path, name: str, damaged: bytes) -> None:
    """Write `damaged` to `name`, check that it is refused in one line, and restore the file."""
    good = (path / name).read_bytes()
    (path / name).write_bytes(damaged)
    with pytest.raises(DamagedCheckpoint, match=r"^checkpoint step 1200 is damaged \(.*\); load another") as info:
        read_step(path)
    assert "\n" not in str(info.value)
    (path / name).write_bytes(good)


def bit_flips(path: Path, count: int) -> Iterator[tuple[str, bytes]]:
    """Random single-bit flips, uniform over all bytes of the three files."""
    files = {name: (path / name).read_bytes() for name in NAMES}
    everywhere = [(name, position) for name, data in files.items() for position in range(len(data))]
    dice = random.Random(0)
    for _ in range(count):
        name, position = dice.choice(everywhere)
        damaged = bytearray(files[name])
        damaged[position] ^= 1 << dice.randrange(8)
        yield name, bytes(damaged)


def test_round_trip(path: Path) -> None:
    assert read_step(path) == CONTENT
    assert sorted(p.name for p in path.iterdir()) == sorted(NAMES)


def test_flipped_bits_are_detected(path: Path) -> None:
    for name, damaged in bit_flips(path, 600):
        assert_detected(path, name, damaged)
    assert read_step(path) == CONTENT


@pytest.mark.slow
def test_many_flipped_bits_are_detected(path: Path) -> None:
    for name, damaged in bit_flips(path, 5000):
        assert_detected(path, name, damaged)


def test_truncated_and_extended_files_are_detected(path: Path) -> None:
    for name in NAMES:
        data = (path / name).read_bytes()
        for length in {*range(0, len(data), max(1, len(data) // 100)), len(data) - 1}:
            assert_detected(path, name, data[:length])
        assert_detected(path, name, data + b"\0")


@pytest.mark.parametrize("name", NAMES)
def test_missing_file_pipe_or_folder_is_detected(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(DamagedCheckpoint, match="No such file"):
        read_step(path)
    os.mkfifo(path / name)
    with pytest.raises(DamagedCheckpoint, match="not a regular file"):
        read_step(path)
    (path / name).unlink()
    (path / name).mkdir()
    with pytest.raises(DamagedCheckpoint):
        read_step(path)


def reseal(path: Path, **changes: Any) -> None:
    fields = {**unseal((path / MANIFEST).read_bytes()), **changes}
    (path / MANIFEST).write_bytes(seal({key: value for key, value in fields.items() if value != "absent"}))


def test_files_of_another_checkpoint_are_detected(path: Path, tmp_path: Path) -> None:
    write_step(tmp_path / "step-001210", StepFolder(1210, None, {}, CONTENT.weights, b"other"))
    assert_detected(path, STATE, (tmp_path / "step-001210" / STATE).read_bytes())
    os.rename(path, tmp_path / "step-001220")
    with pytest.raises(DamagedCheckpoint, match=r"step 1220 is damaged \(holds step 1200"):
        read_step(tmp_path / "step-001220")
    os.rename(tmp_path / "step-001220", tmp_path / "my copy")
    assert read_step(tmp_path / "my copy") == CONTENT


ODD = [
    {"files": "absent"},
    {"files": []},
    {"files": {WEIGHTS: {"size": 3, "sha256": "x"}}},
    {"files": {WEIGHTS: {"size": "3", "sha256": "x"}}},
    {"files": {WEIGHTS: {"size": 1024, "sha256": "x", "name": "../../passwd"}}},
    {"step": None},
    {"step": "many"},
    {"format": "absent"},
    {"format": "new"},
    {"meta": 3},
    {"meta": ["abc"]},
    {"best": 5},
    {"best": "../../elsewhere"},
]


@pytest.mark.parametrize("changes", ODD, ids=str)
def test_invalid_sealed_manifests_are_refused(path: Path, changes: dict[str, Any]) -> None:
    reseal(path, **changes)
    with pytest.raises(DamagedCheckpoint) as info:
        read_step(path)
    assert "\n" not in str(info.value)


def test_newer_format_names_both_versions(path: Path) -> None:
    reseal(path, format=4, quatsphere="0.9")
    message = (
        r"^checkpoint written by quatsphere 0\.9 \(format 4\), this is [0-9.]+ \(format 1\) .*; upgrade quatsphere$"
    )
    with pytest.raises(CheckpointError, match=message) as info:
        read_step(path)
    assert not isinstance(info.value, DamagedCheckpoint)


def test_same_content_is_not_written_again(path: Path) -> None:
    before = {p.name: p.stat().st_ino for p in path.iterdir()}
    write_step(path, CONTENT)
    assert {p.name: p.stat().st_ino for p in path.iterdir()} == before


def test_changed_meta_replaces_only_the_manifest(path: Path) -> None:
    before = (path / WEIGHTS).stat().st_ino
    changed = StepFolder(1200, None, {"epoch": 4}, CONTENT.weights, CONTENT.state)
    write_step(path, changed)
    assert read_step(path) == changed
    assert (path / WEIGHTS).stat().st_ino == before


@pytest.mark.parametrize("name", NAMES)
def test_damaged_folder_is_replaced(path: Path, name: str) -> None:
    (path / name).write_bytes(b"damaged")
    write_step(path, CONTENT)
    assert read_step(path) == CONTENT
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("meta", [{"loss": float("nan")}, {"best": float("-inf")}, {"tensor": object()}])
def test_meta_that_json_would_change_is_refused(tmp_path: Path, meta: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"^meta is not JSON \(checkpoint step 7: .*\); store null$"):
        write_step(tmp_path / "step-000007", StepFolder(7, None, meta, b"", b""))
    assert list(tmp_path.iterdir()) == []


def test_step_names() -> None:
    assert step_name(1200) == "step-001200"
    assert step_of("step-1234567") == 1234567
    for other in ("step-12", "step-001200.tmp.5", "last", "step-00120x", "step-001200\n", ""):
        assert step_of(other) is None


def test_manifest_is_readable_json(path: Path) -> None:
    fields = json.loads((path / MANIFEST).read_text())
    assert fields["format"] == 1
    assert fields["files"][WEIGHTS]["size"] == len(CONTENT.weights)


SEALED_FIELDS = {
    "format": 1,
    "step": 12,
    "meta": {"naïve": "é", "small": 1e-7, "zeros": "0" * 64, "list": [1, None, True]},
}


def test_sealed_text_is_plain_json() -> None:
    data = seal(SEALED_FIELDS)
    assert unseal(data) == SEALED_FIELDS
    assert json.loads(data)["step"] == 12


def test_every_flipped_bit_of_a_seal_is_detected() -> None:
    data = seal(SEALED_FIELDS)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011 (any ValueError is the contract)
                unseal(bytes(damaged))


def test_truncated_and_extended_seals_are_detected() -> None:
    data = seal(SEALED_FIELDS)
    for damaged in [data[:length] for length in range(len(data))] + [data + b"\n", b" " + data]:
        with pytest.raises(ValueError):  # noqa: PT011
            unseal(damaged)


NOT_SEALED = [b"[]", b"null", b"{}", b'{"sha256": 3}', b'{"sha256": ""}', b"[" * 100_000, b"\xff\xfe"]


@pytest.mark.parametrize("data", NOT_SEALED)
def test_text_without_a_seal_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unseal(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_values_that_json_lacks_cannot_be_sealed(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        seal({"meta": {"x": value}})
