"""Every bit of a sealed text counts, also those that JSON would not miss."""

from __future__ import annotations

import json
import math

import pytest

from quatsphere.storage.step_folder import seal, unseal

FIELDS = {"format": 1, "step": 12, "meta": {"naïve": "é", "small": 1e-7, "zeros": "0" * 64, "list": [1, None, True]}}


def test_round_trip_is_plain_json() -> None:
    data = seal(FIELDS)
    assert unseal(data) == FIELDS
    assert json.loads(data)["step"] == 12


def test_every_single_bit_is_noticed() -> None:
    data = seal(FIELDS)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011 (any ValueError is the contract)
                unseal(bytes(damaged))


def test_every_truncation_and_additions_are_noticed() -> None:
    data = seal(FIELDS)
    for damaged in [data[:length] for length in range(len(data))] + [data + b"\n", b" " + data]:
        with pytest.raises(ValueError):  # noqa: PT011
            unseal(damaged)


OTHER = [b"[]", b"null", b"{}", b'{"sha256": 3}', b'{"sha256": ""}', b"[" * 100_000, b"\xff\xfe"]


@pytest.mark.parametrize("data", OTHER)
def test_other_text_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unseal(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_what_json_cannot_hold_is_not_sealed(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        seal({"meta": {"x": value}})
