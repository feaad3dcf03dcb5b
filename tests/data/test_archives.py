"""Untrusted archives give bytes or a one-line error and never write to the disk."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quatsphere.data import archives
from quatsphere.data.archives import ZipTree, open_stream, read_tar
from quatsphere.errors import DataError, printable

WANTED = {"set/a.bin", "set/b.bin"}
LIMIT = 1 << 20


def tar_with(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in [(tarfile.TarInfo("set/a.bin"), b"A" * 1000), (tarfile.TarInfo("set/b.bin"), b"B"), *members]:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def special(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_tar_gives_wanted_members_only(tmp_path: Path, mode: str) -> None:
    path = tar_with(tmp_path / "x", (tarfile.TarInfo("set/other"), b"ignored"), mode=mode)
    assert read_tar(path, WANTED, LIMIT) == {"set/a.bin": b"A" * 1000, "set/b.bin": b"B"}


@pytest.mark.parametrize(
    "member",
    [
        special("../evil"),
        special("set/../../evil"),
        special("/tmp/quatsphere-evil"),
        special("set\\..\\..\\evil"),
        special("C:\\evil"),
        special("C:evil"),
        special("\\\\host\\evil"),
        special("set/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("set/a.bin", tarfile.SYMTYPE, "../../evil"),
        special("set/hard", tarfile.LNKTYPE, "/etc/passwd"),
        special("set/device", tarfile.CHRTYPE),
        special("set/disk", tarfile.BLKTYPE),
        special("set/pipe", tarfile.FIFOTYPE),
        special("set/continued", tarfile.CONTTYPE),
    ],
    ids=lambda info: f"{info.name}-{info.type!r}",
)
@pytest.mark.parametrize("first", [True, False])
def test_tar_with_unsafe_member_is_refused(member: tarfile.TarInfo, first: bool, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "x.tar.gz"
    tar_with(path, (member, b""))
    if first:
        with tarfile.open(path, "w:gz") as tar:
            tar.addfile(member)
    with pytest.raises(DataError, match=r"^refused: archive member (leads outside|is a link or device) \('"):
        read_tar(path, WANTED, LIMIT)
    assert [p.name for p in folder.iterdir()] == ["x.tar.gz"]
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/quatsphere-evil").exists()


def test_tar_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    path = tar_with(tmp_path / "bomb.tar.gz", (tarfile.TarInfo("set/big"), bytes(8 << 20)))
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"refused: .* unpacks to more than is allowed"):
        read_tar(path, WANTED, LIMIT)


def test_cut_and_flipped_archives_give_one_line_or_the_right_bytes(tmp_path: Path) -> None:
    """0 of 100 damaged copies are accepted: gzip's own checksum covers everything but a few header bytes."""
    good = tar_with(tmp_path / "good.tar.gz").read_bytes()
    right = read_tar(tmp_path / "good.tar.gz", WANTED, LIMIT)
    generator = np.random.default_rng(0)
    path = tmp_path / "bad.tar.gz"
    for trial in range(100):
        damaged = bytearray(good)
        if trial % 2:
            damaged[generator.integers(len(good))] ^= 1 << generator.integers(8)
        else:
            del damaged[generator.integers(len(good)) :]
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            assert read_tar(path, WANTED, LIMIT) in (right, {})


def test_unreadable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*missing"):
        open_stream(tmp_path / "missing")


def zip_with(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_zip_gives_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ZipTree(zip_with(tmp_path / "x.zip", {"a/": b"", "a/1": b"one", "a/2": b"two"}))
    assert archive.names == ["a/", "a/1", "a/2"]
    assert archive.read("a/2") == b"two"
    monkeypatch.setattr(archives, "MAX_FILE_BYTES", 2)
    with pytest.raises(DataError, match="a/2 has 3 bytes, more than the limit of 2"):
        archive.read("a/2")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "C:/x", "a\\..\\x", "\\x"])
def test_zip_with_unsafe_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="refused: archive member leads outside"):
        list(ZipTree(zip_with(tmp_path / "x.zip", {name: b""})).names)


def test_zip_with_link_or_repeated_member_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link or device"):
        list(ZipTree(tmp_path / "link.zip").names)
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("x", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x", "2")
    with pytest.raises(DataError, match="occurs twice"):
        list(ZipTree(tmp_path / "twice.zip").names)


def test_zip_whose_members_overlap_is_refused(tmp_path: Path) -> None:
    """A bomb of the kind that reuses one compressed block for many members."""
    path = zip_with(tmp_path / "x.zip", {"a": os.urandom(5000), "b": b""})
    with zipfile.ZipFile(path, "a") as archive:
        first = archive.infolist()[0]
        for index in range(3):
            copy = zipfile.ZipInfo(f"copy{index}")
            for field in ("header_offset", "compress_size", "file_size", "CRC", "compress_type"):
                setattr(copy, field, getattr(first, field))
            archive.filelist.append(copy)
        archive.writestr("end", b"")
    with pytest.raises(DataError, match="overlap"):
        list(ZipTree(path).names)


def test_damaged_zip_is_one_line(tmp_path: Path) -> None:
    path = zip_with(tmp_path / "x.zip", {"a": os.urandom(3000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="is not a readable zip"):
        list(ZipTree(path).names)
    flipped = bytearray(whole)
    flipped[1500] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(DataError, match="a is damaged in its zip"):
        ZipTree(path).read("a")


def test_stream_of_plain_or_gzipped_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"text")
    (tmp_path / "packed").write_bytes(gzip.compress(b"text"))
    for name in ("plain", "packed"):
        with open_stream(tmp_path / name) as stream:
            assert stream.read() == b"text"


def test_names_are_shown_on_one_printable_line() -> None:
    assert printable("grün/猫.png") == "grün/猫.png"
    assert printable("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert printable(os.fsdecode(b"caf\xe9.png")) == "caf\\udce9.png"
