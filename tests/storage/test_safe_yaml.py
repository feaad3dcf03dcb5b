"""Settings round trip through YAML; everything else in a YAML file is refused with its line."""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from quatsphere.errors import ConfigError
from quatsphere.storage.safe_yaml import SIZE_LIMIT, read_yaml, write_yaml


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "c.yaml").write_text(text)
    return read_yaml(tmp_path / "c.yaml")


SETTINGS = {
    "train": {"peak_lr": 1e-3, "tiny": 1e-20, "epochs": 500, "patience": None, "compile": False, "huge": 1e300},
    "a": {"text": "1e-3", "date": "2024-01-01", "yes": "no", "empty": "", "list": [1, [2.5, "x"], {}], "é": "模型 🙂"},
    "odd": {"colon": "a: b", "newline": "a\nb\n", "number": "12", "long": "word " * 100, "tilde": "~", "inf": math.inf},
}


def test_round_trip_keeps_values_types_and_order(tmp_path: Path) -> None:
    write_yaml(tmp_path / "c.yaml", SETTINGS)
    assert read_yaml(tmp_path / "c.yaml") == SETTINGS
    assert list(read_yaml(tmp_path / "c.yaml")) == list(SETTINGS)
    assert os.listdir(tmp_path) == ["c.yaml"]


def test_repeated_values_are_written_out(tmp_path: Path) -> None:
    shared = [1, 2]
    write_yaml(tmp_path / "c.yaml", {"a": shared, "b": shared, "c": (1, 2)})
    assert read_yaml(tmp_path / "c.yaml") == {"a": [1, 2], "b": [1, 2], "c": [1, 2]}


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.e-3", "+1e-3", "0.001", "1.0e-3", ".1e-2"])
def test_every_notation_of_a_number(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, f"lr: {text}") == {"lr": 0.001}


def test_text_like_numbers_and_dates_stays_text(tmp_path: Path) -> None:
    settings = read(tmp_path, "a: 1e\nb: e5\nc: 12e-x\nd: 2024-13-45\ne: 1e5x\n")
    assert settings == {"a": "1e", "b": "e5", "c": "12e-x", "d": "2024-13-45", "e": "1e5x"}


def test_integers_of_64_bits_are_read(tmp_path: Path) -> None:
    text = "a: 0xffffffffffffffff\nb: -9223372036854775808\nc: 0b1_0\nd: 017\ne: 1:30\nf: -0b" + "1" * 63
    expected = {"a": 2**64 - 1, "b": -(2**63), "c": 2, "d": 15, "e": 90, "f": 1 - 2**63}
    assert read(tmp_path, text) == expected


def test_empty_file_has_no_settings(tmp_path: Path) -> None:
    assert read(tmp_path, "") == read(tmp_path, "# nothing\n") == {}


MARKER = "/tmp/quatsphere-yaml-marker"
BOMB = "a: &a [x, x]\n" + "".join(
    f"{n}: &{n} [{', '.join(['*' + m] * 9)}]\n" for m, n in zip("abcdefgh", "bcdefghi", strict=True)
)
UNSAFE = {
    "object": (f"a: 1\nb: !!python/object/apply:os.system ['touch {MARKER}']", 2, "python/object/apply:os.system"),
    "object new": ("a: !!python/object/new:type {args: [x, [], {}]}", 1, "python/object/new:type"),
    "name": ("a: !!python/name:os.system", 1, "python/name:os.system"),
    "module": ("\n\na: !!python/module:os", 3, "python/module:os"),
    "tuple": ("a: !!python/tuple [1]", 1, "python/tuple"),
    "own tag": ("a: !mine 3", 1, "!mine"),
    "set": ("a: !!set {x, y}", 1, "tag"),
    "binary": ("a: !!binary aGk=", 1, "tag"),
    "bomb": (BOMB, 2, "aliases are refused"),
    "alias": ("a: &x 1\nb: *x", 2, "aliases are refused"),
    "endless": ("a: &x\n  - *x", 2, "aliases are refused"),
    "merge": ("a:\n  <<: {b: 1}", 2, "merge"),
    "double key": ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3", 5, "key 'c' is there twice"),
    "double key in braces": ("a: {b: 1, b: 2}", 1, "key 'b' is there twice"),
    "key is true": ("a: 1\non: 2", 2, "key True is not text; quote it"),
    "key is a list": ("? [1]\n: 2", 1, "is not text"),
    "key is null": ("null: 2", 1, "is not text"),
    "deep": ("a: " + "[" * 100_000, 1, "nested more than 50 deep"),
    "deep blocks": ("".join(" " * n + "a:\n" for n in range(200)), 50, "nested more than 50 deep"),
    "unclosed": ("a: [1, 2", 1, "expected"),
    "tab": ("a:\n\tb: 1", 2, "cannot start any token"),
    "two documents": ("a: 1\n---\nb: 2", 2, "but found another document"),
    "control character": ("a: 1\nb: \x01", 2, "special characters are not allowed"),
    "bad number": ("a: !!int x", 1, "not a valid int"),
    "bad bool": ("a: !!bool maybe", 1, "not a valid bool"),
    "number too long": ("a: " + "9" * 5000, 1, "not a valid int"),
    "hexadecimal too long": ("a: 1\nb: 0x" + "f" * 5000, 2, "not a valid int"),
    "octal too long": ("a: 0" + "7" * 6000, 1, "not a valid int"),
    "binary too long": ("a: 0b" + "1" * 20_000, 1, "not a valid int"),
    "base 60 too long": ("a: 1" + ":59" * 3000, 1, "not a valid int"),
    "base 60 fraction too long": ("a: 1" + ":59" * 3000 + ".5", 1, "not a valid float"),
    "base 60 without end": ("a: 1" + ":59" * 300_000, 1, "not a valid int"),
    "grouped too long": ("a: 1" + "_000" * 2000, 1, "not a valid int"),
    "tagged too long": ("a: !!int '0x" + "f" * 5000 + "'", 1, "not a valid int"),
    "65 bits": ("a: 0x1" + "0" * 16, 1, "not a valid int"),
    "64 bits below zero": ("a: -9223372036854775809", 1, "not a valid int"),
    "key too long": ("? 0x" + "f" * 5000 + "\n: 1", 1, "not a valid int"),
    "text": ("just words", 1, "settings must be 'key: value' lines, not 'just words'"),
    "list": ("- 1\n- 2", 1, "settings must be"),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_unsafe_yaml_is_refused_with_its_line(tmp_path: Path, kind: str) -> None:
    text, line, reason = UNSAFE[kind]
    start = time.perf_counter()
    with pytest.raises(ConfigError) as info:
        read(tmp_path, text)
    assert time.perf_counter() - start < 30.0  # refused, not expanded: a guard against hanging, no timing
    message = str(info.value)
    assert reason in message
    assert f"c.yaml, line {line}); " in message
    assert "\n" not in message
    assert not os.path.exists(MARKER)


def test_large_binary_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    with pytest.raises(
        ConfigError, match=r"^cannot read settings \(.*c\.yaml: No such file or directory\); check the file$"
    ):
        read_yaml(path)
    path.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigError, match=r"^not UTF-8 text \(.*c\.yaml, line 2\); save the file as UTF-8$"):
        read_yaml(path)
    path.write_bytes(b"")
    os.truncate(path, 50 * SIZE_LIMIT)
    with pytest.raises(ConfigError, match="larger than 1000000 bytes"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot read settings"):
        read_yaml(tmp_path)


def test_random_damage_gives_settings_or_one_line(tmp_path: Path) -> None:
    write_yaml(tmp_path / "good.yaml", SETTINGS)
    good = (tmp_path / "good.yaml").read_bytes()
    dice = random.Random(0)
    path = tmp_path / "c.yaml"
    refused = 0
    for _ in range(300):
        damaged = bytearray(good[: dice.randint(1, 400)])
        for _ in range(3):
            damaged[dice.randrange(len(damaged))] = dice.choice(b"&*!:-[]{}?|>%@`'\"#\t\n 0e.x\xc3\x00")
        path.write_bytes(bytes(damaged))
        try:
            read_yaml(path)
        except ConfigError as error:
            refused += 1 + str(error).count("\n") * 1000
    assert 0 < refused < 300
