"""Sealed JSON: no changed bit is accepted, older files are read, fields have their types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.storage.sealed_json import (
    misfit,
    natural,
    positive,
    read_sealed,
    seal,
    unseal,
    unseal_any,
    write_sealed,
)

FIELDS = {"format": 2, "test_accuracy": 0.8125, "classes": {"a": 0.5, "b": None}, "name": "é"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "sha256"), JSON, max_size=5))
def test_unseal_is_the_inverse_of_seal(fields: dict[str, Any]) -> None:
    assert unseal(seal(fields)) == fields


def test_no_flipped_bit_gives_other_fields() -> None:
    """A flip of any bit is detected by the seal or, in the name of the seal's field, by the format."""
    data = seal(FIELDS)
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"."):
            unseal_any(bytes(changed), sealed_since=2)


def test_older_files_are_read_and_reported_as_unsealed(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"format": 1, "a": 1}))
    assert read_sealed(path, 2) == ({"format": 1, "a": 1}, False)
    write_sealed(path, {"format": 2, "a": float("nan")})
    assert read_sealed(path, 2) == ({"format": 2, "a": None}, True)
    path.write_text(json.dumps({"format": 2, "a": 1}))
    with pytest.raises(ValueError, match="no sha256"):
        read_sealed(path, 2)
    with pytest.raises(OSError, match="larger than 5 bytes"):
        read_sealed(path, 2, limit=5)


SHAPE: dict[str, Any] = {
    "count": positive,
    "kind": {"a", "b"},
    "rows": [[float]],
    "some": [str, ...],
    "by_name": {str: (float, None)},
    "maybe?": natural,
}
GOOD = {"count": 1, "kind": "a", "rows": [[1, 2.5], []], "some": ["x"], "by_name": {"y": None}, "more": [{}]}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, None),
        ({"maybe": 0}, None),
        ({"maybe": -1}, "maybe"),
        ({"count": True}, "count"),
        ({"count": 0}, "count"),
        ({"kind": "c"}, "kind"),
        ({"kind": ["a"]}, "kind"),
        ({"rows": [[1], ["1"]]}, r"rows\[1\]\[0\]"),
        ({"rows": [[float("inf")]]}, r"rows\[0\]\[0\]"),
        ({"rows": [[10**400]]}, r"rows\[0\]\[0\]"),
        ({"rows": {}}, "rows"),
        ({"some": []}, "some"),
        ({"by_name": {"y": []}}, "by_name.y"),
        ({"by_name": None}, "by_name"),
    ],
)
def test_misfit_names_the_field(change: dict[str, Any], wrong: str | None) -> None:
    found = misfit({**GOOD, **change}, SHAPE)
    if wrong is None:
        assert found is None
    else:
        assert found is not None
        assert re.match(f"field {wrong} is wrong: ", found)
    assert misfit({}, SHAPE) == "field count is missing"


@given(JSON)
def test_misfit_raises_nothing(value: object) -> None:
    assert misfit(value, SHAPE) is None or "\n" not in str(misfit(value, SHAPE))
