"""CIFAR's pickles are read; other pickles are refused and never run."""

from __future__ import annotations

import contextlib
import pickle
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quatsphere.data import pickled_batch
from quatsphere.data.pickled_batch import read_batch
from quatsphere.errors import DataError

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 12)


def python2_batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The bytes that Python 2's cPickle wrote for the official files: protocol 2, byte strings, numpy.core."""
    raw = pixels.tobytes()
    rows, width = pixels.shape
    return (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04"
        b"U\x01bq\x05\x87q\x06Rq\x07(K\x01M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", width) + b"\x86q\x08"
        b"cnumpy\ndtype\nq\x09U\x02u1q\x0aK\x00K\x01\x87q\x0bRq\x0c(K\x03U\x01|q\x0dNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tq\x0eb\x89T" + struct.pack("<I", len(raw)) + raw + b"tq\x0fbU\x06labelsq\x10]q\x11("
        b"" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu."
    )


def test_reads_what_python_2_wrote() -> None:
    batch = read_batch(python2_batch(PIXELS, [3, 9]))
    assert np.array_equal(batch["data"], PIXELS)
    assert batch["labels"] == [3, 9]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_reads_what_python_3_writes(protocol: int, order: str) -> None:
    pixels = np.asarray(PIXELS, order=order)
    source = {b"data": pixels, "fine_labels": [1, 2], "labels": np.array([4, 5])}
    batch = read_batch(pickle.dumps(source, protocol))
    assert np.array_equal(batch["data"], PIXELS)
    assert batch["fine_labels"] == [1, 2]
    assert np.array_equal(batch["labels"], [4, 5])


class Gadget:
    """Pickles to a call of anything with anything."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def handwritten(module: str, name: str, argument: str) -> list[bytes]:
    """One call by every instruction that can make one."""
    m, n, a = module.encode(), name.encode(), argument.encode()
    text = b"X" + struct.pack("<I", len(a)) + a
    short = [b"\x8c" + bytes([len(t)]) + t for t in (m, n)]
    return [
        b"c" + m + b"\n" + n + b"\n(S'" + a + b"'\ntR.",
        b"(S'" + a + b"'\ni" + m + b"\n" + n + b"\n.",
        b"(c" + m + b"\n" + n + b"\n" + text + b"o.",
        b"\x80\x02c" + m + b"\n" + n + b"\n" + text + b"\x85R.",
        b"\x80\x02c" + m + b"\n" + n + b"\n" + text + b"\x85\x81.",
        b"\x80\x04" + short[0] + short[1] + b"\x93" + text + b"\x85R.",
        b"\x80\x04" + short[0] + short[1] + b"\x93" + text + b"\x85}\x92.",
        b"\x80\x02}X\x04\x00\x00\x00datac" + m + b"\n" + n + b"\n" + text + b"\x85Rs.",
    ]


TARGETS = [
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "call"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("__builtin__", "eval"),
    ("numpy", "load"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy", "ndarray.__class__"),
]


@pytest.mark.parametrize(("module", "name"), TARGETS)
def test_gadgets_are_refused_and_nothing_runs(module: str, name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for data in handwritten(module, name, f"touch {marker}"):
        with pytest.raises(DataError, match=r"^refused: file asks for .*; CIFAR needs only numpy arrays$"):
            read_batch(data)
    assert not marker.exists()


def test_message_names_the_requested_import(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^refused: file asks for os\.system; CIFAR needs only numpy arrays$"):
        read_batch(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"asks for a\\x1b\[31m\.b; "):
        read_batch(b"\x80\x04\x8c\x06a\x1b[31m\x8c\x01b\x93.")
    marker = tmp_path / "marker"
    with pytest.raises(DataError, match="refused: file asks for"):
        read_batch(pickle.dumps({"data": Gadget(open, str(marker), "w")}))
    assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",
        b"\x80\x02K\x01p4000000000\n.",
        b"\x80\x02)" + b"\x85" * 100_000 + b"}\x93.",
        b"\x80\x02}(" + b")" + b"\x85" * 5000 + b"K\x01u.",
    ],
    ids=["memo", "text memo", "nested tuples", "nested key"],
)
def test_bombs_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=r"^refused: file"):
        read_batch(data)


def shared(build: bytes, end: bytes, doublings: int = 60) -> bytes:
    """Pickle in which an object holds the previous one twice, fetched from the memo, again and again."""
    return b"\x80\x02}K\x01q\x00" + (b"0h\x00h\x00" + build + b"q\x00") * doublings + end


HANGS = {
    "tuples as a key, by DUP": b"\x80\x02}K\x01" + b"2\x86" * 60 + b"K\x01s.",
    "tuples as a key, by memo": shared(b"\x86", b"K\x01s."),
    "tuples in a frozen set": b"\x80\x04}(K\x01" + b"2\x86" * 60 + b"\x91K\x01s.",
    "tuples in a set": b"\x80\x04\x8f(K\x01" + b"2\x86" * 60 + b"\x90.",
    "lists as a type code": b"\x80\x02cnumpy\ndtype\n" + shared(b"]q\x01h\x00ah\x01h\x00a", b"\x85R.")[2:],
    "lists as an encoding": b"\x80\x02c_codecs\nencode\nX\x01\0\0\0a"
    + (b"]q\x00K\x01a" + b"]q\x01(h\x00h\x00eq\x00" * 60)
    + b"\x86R.",
    "three million lists": b"\x80\x02" + b"](" * 3_000_000 + b".",
    "nested lists": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    "a long key again and again": b"\x80\x02U\x01aq\x00}(B\0\0\x10\0"
    + bytes(1 << 20)
    + b"q\x01"
    + b"K\x01h\x01" * 5_000
    + b"u.",
    "a long shape again and again": b"\x80\x02(" + b"K\x01" * 20_000 + b"tq\0" + b"h\0\x850" * 5_000 + b"}.",
    "a long text encoded again and again": b"\x80\x02X\0\0\x10\0"
    + b"a" * (1 << 20)
    + b"q\0X\x06\0\0\0latin1q\1("
    + b"c_codecs\nencode\nh\0h\1\x86R" * 10_000
    + b"l.",
}


@pytest.mark.parametrize("kind", HANGS)
def test_small_files_cannot_take_much_time_or_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled_batch, "MAX_OPCODES", 50_000)  # type checks make every instruction slow here
    started = time.process_time()
    with pytest.raises((DataError, ValueError), match=r"^(refused: file|not a CIFAR batch)"):
        read_batch(HANGS[kind])
    assert time.process_time() - started < 10


def test_reading_a_batch_changes_nothing_but_its_result() -> None:
    """An instruction that sets the state of a name would change the function behind it for every later file."""
    with pytest.raises(ValueError, match="not a CIFAR batch"):
        read_batch(b"\x80\x02c_codecs\nencode\n}X\x01\0\0\0aK\x01sb.")
    with pytest.raises(DataError, match=r"^refused: file nests"):
        read_batch(b"\x80\x02c_codecs\nencode\nN}X\x0c\0\0\0__defaults__K\x01s\x86b.")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"K\x01.",
        b"Pname\n.",
        b"\x82\x01.",
        pickle.dumps({"data": np.array([1.5])}),
        pickle.dumps({"data": np.array([object()], dtype=object).astype("U1")}),
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy\nndarray\n)Rs.",
        b"\x80\x02}X\x04\x00\x00\x00data\x8e\xff\xff\xff\xff\xff\xff\xff\x7fs.",
    ],
)
def test_other_pickles_are_damaged_batches(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a CIFAR batch"):
        read_batch(data)


def test_cut_and_flipped_pickles_never_crash() -> None:
    whole = python2_batch(PIXELS, [3, 9])
    for length in range(len(whole)):
        with pytest.raises((ValueError, DataError)):
            read_batch(whole[:length])
    generator = np.random.default_rng(0)
    for position, bit in zip(generator.integers(0, len(whole), 500), generator.integers(0, 8, 500), strict=True):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        with contextlib.suppress(ValueError, DataError):
            assert isinstance(read_batch(bytes(flipped)), dict)
