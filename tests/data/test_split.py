"""Which sample goes where is a function of its content: order, batches and copies do not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.data.dataset import (
    Contents,
    Part,
    canonical_order,
    content_keys,
    count_repeated,
    count_shared,
    fingerprint,
    hold_out,
    limit_to,
    part_of,
)
from quatsphere.errors import ConfigError


def random_part(count: int, classes: int, distinct: int, seed: int = 0) -> Part:
    """Tiny images drawn from `distinct` different ones, so that copies occur within and across classes."""
    generator = np.random.default_rng(seed)
    pool = generator.integers(0, 256, (distinct, 1, 2, 2), np.uint8)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, count - classes)])
    return part_of(pool[generator.integers(0, distinct, count)], labels)


def contents_of(part: Part) -> set[bytes]:
    return {key.tobytes() for key in content_keys(part)}


@given(st.integers(2, 5), st.integers(5, 60), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]))
def test_hold_out_partitions_without_straddling(classes: int, count: int, seed: int, fraction: float) -> None:
    part = random_part(count, classes, max(2, count // 2), seed)
    order = canonical_order(part)
    rest, held = hold_out(part, order, fraction)
    assert sorted([*rest, *held]) == list(range(count))
    assert not contents_of(part.take(rest)) & contents_of(part.take(held))
    assert set(part.labels[rest]) == set(range(classes))


@given(st.integers(0, 1000))
def test_nothing_depends_on_order(seed: int) -> None:
    part = random_part(40, 3, 25)
    shuffled = part.take(np.random.default_rng(seed).permutation(40))
    for a, b in zip(*(hold_out(p, canonical_order(p), 0.3) for p in (part, shuffled)), strict=True):
        assert np.array_equal(part.digests[a], shuffled.digests[b])
        assert np.array_equal(part.labels[a], shuffled.labels[b])
    names = ("a", "b", "c")
    assert fingerprint(Contents(names, part, None)) == fingerprint(Contents(names, shuffled, None))


def test_split_of_cifar_is_exact_and_takes_the_smallest_hashes() -> None:
    part = part_of(np.random.default_rng(0).integers(0, 256, (5000, 1, 3, 3), np.uint8), np.arange(5000) % 10)
    rest, held = hold_out(part, canonical_order(part), 0.1)
    assert np.bincount(part.labels[held]).tolist() == [50] * 10
    for label in range(10):
        largest_held = max(part.digests[i].tobytes() for i in held if part.labels[i] == label)
        assert largest_held < min(part.digests[i].tobytes() for i in rest if part.labels[i] == label)


def test_limits_are_stratified_and_nested() -> None:
    part = part_of(
        np.random.default_rng(0).integers(0, 256, (300, 1, 3, 3), np.uint8), np.repeat([0, 1, 2], [50, 100, 150])
    )
    order = canonical_order(part)
    chosen = [limit_to(part, order, count) for count in (6, 60, 150)]
    assert [len(c) for c in chosen] == [6, 60, 150]
    assert np.bincount(part.labels[chosen[1]]).tolist() == [10, 20, 30]
    assert set(chosen[0]) < set(chosen[1]) < set(chosen[2])
    assert np.array_equal(limit_to(part, order, None), order)
    with pytest.raises(ConfigError, match="nearest legal value 3"):
        limit_to(part, order, 2)


def test_fingerprint_sees_labels_parts_names_and_pixels() -> None:
    part = random_part(20, 2, 30)
    moved = Part(part.images, 1 - part.labels, part.digests)
    pixels = part.images.copy()
    pixels[7, 0, 0, 0] ^= 1
    variants = [
        Contents(("a", "b"), part, None),
        Contents(("a", "c"), part, None),
        Contents(("a", "b"), moved, None),
        Contents(("a", "b"), part_of(pixels, part.labels), None),
        Contents(("a", "b"), part.take(slice(10)), part.take(slice(10, None))),
    ]
    assert len({fingerprint(contents) for contents in variants}) == len(variants)


def test_digest_tells_shapes_apart() -> None:
    flat = np.zeros((1, 1, 2, 8), np.uint8)
    assert (
        part_of(flat, np.zeros(1, int)).digests != part_of(flat.reshape(1, 1, 4, 4), np.zeros(1, int)).digests
    ).any()


def test_copies_are_counted() -> None:
    part = part_of(np.array([1, 1, 2, 3], np.uint8).reshape(4, 1, 1, 1), np.array([0, 1, 0, 1]))
    other = part_of(np.array([1, 3, 9], np.uint8).reshape(3, 1, 1, 1), np.array([0, 1, 0]))
    assert count_repeated(part) == 1
    assert count_shared(part, other) == 3
    assert count_shared(other, part) == 2
