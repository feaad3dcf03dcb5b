"""SHA-256 against the standard's own example."""

from __future__ import annotations

from pathlib import Path

from quatsphere.storage.atomic import sha256_bytes, sha256_file

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_digest_of_abc(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_bytes(b"abc") == sha256_file(tmp_path / "abc") == ABC


def test_file_of_several_pieces_equals_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "big").write_bytes(data)
    assert sha256_file(tmp_path / "big") == sha256_bytes(data)
