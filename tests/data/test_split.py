"""Splits are functions of content: the order of files has no effect, and copies stay together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.data.dataset import (
    RawDataset,
    RawSplit,
    canonical_order,
    count_repeated,
    count_shared,
    dataset_fingerprint,
    digest_keys,
    hold_out,
    raw_split,
    stratified_subset,
)
from quatsphere.errors import ConfigError


def random_split(count: int, classes: int, distinct: int, seed: int = 0) -> RawSplit:
    """Tiny images drawn from `distinct` different ones, so that copies occur within and across classes."""
    generator = np.random.default_rng(seed)
    pool = generator.integers(0, 256, (distinct, 1, 2, 2), np.uint8)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, count - classes)])
    return raw_split(pool[generator.integers(0, distinct, count)], labels)


def contents_of(split: RawSplit) -> set[bytes]:
    return {key.tobytes() for key in digest_keys(split)}


@given(st.integers(2, 5), st.integers(5, 60), st.integers(0, 1000), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]))
def test_hold_out_partitions_and_keeps_copies_together(classes: int, count: int, seed: int, fraction: float) -> None:
    split = random_split(count, classes, max(2, count // 2), seed)
    order = canonical_order(split)
    rest, held = hold_out(split, order, fraction)
    assert sorted([*rest, *held]) == list(range(count))
    assert not contents_of(split.take(rest)) & contents_of(split.take(held))
    assert set(split.labels[rest]) == set(range(classes))


@given(st.integers(0, 1000))
def test_order_has_no_effect(seed: int) -> None:
    split = random_split(40, 3, 25)
    shuffled = split.take(np.random.default_rng(seed).permutation(40))
    for a, b in zip(*(hold_out(p, canonical_order(p), 0.3) for p in (split, shuffled)), strict=True):
        assert np.array_equal(split.digests[a], shuffled.digests[b])
        assert np.array_equal(split.labels[a], shuffled.labels[b])
    names = ("a", "b", "c")
    assert dataset_fingerprint(RawDataset(names, split, None)) == dataset_fingerprint(RawDataset(names, shuffled, None))


def test_split_of_cifar_is_exact_and_takes_the_smallest_hashes() -> None:
    split = raw_split(np.random.default_rng(0).integers(0, 256, (5000, 1, 3, 3), np.uint8), np.arange(5000) % 10)
    rest, held = hold_out(split, canonical_order(split), 0.1)
    assert np.bincount(split.labels[held]).tolist() == [50] * 10
    for label in range(10):
        largest_held = max(split.digests[i].tobytes() for i in held if split.labels[i] == label)
        assert largest_held < min(split.digests[i].tobytes() for i in rest if split.labels[i] == label)


def test_limits_are_stratified_and_nested() -> None:
    split = raw_split(
        np.random.default_rng(0).integers(0, 256, (300, 1, 3, 3), np.uint8), np.repeat([0, 1, 2], [50, 100, 150])
    )
    order = canonical_order(split)
    chosen = [stratified_subset(split, order, count) for count in (6, 60, 150)]
    assert [len(c) for c in chosen] == [6, 60, 150]
    assert np.bincount(split.labels[chosen[1]]).tolist() == [10, 20, 30]
    assert set(chosen[0]) < set(chosen[1]) < set(chosen[2])
    assert np.array_equal(stratified_subset(split, order, None), order)
    with pytest.raises(ConfigError, match="nearest legal value 3"):
        stratified_subset(split, order, 2)


def test_fingerprint_depends_on_labels_splits_names_and_pixels() -> None:
    split = random_split(20, 2, 30)
    moved = RawSplit(split.images, 1 - split.labels, split.digests)
    pixels = split.images.copy()
    pixels[7, 0, 0, 0] ^= 1
    variants = [
        RawDataset(("a", "b"), split, None),
        RawDataset(("a", "c"), split, None),
        RawDataset(("a", "b"), moved, None),
        RawDataset(("a", "b"), raw_split(pixels, split.labels), None),
        RawDataset(("a", "b"), split.take(slice(10)), split.take(slice(10, None))),
    ]
    assert len({dataset_fingerprint(raw) for raw in variants}) == len(variants)


def test_digest_depends_on_the_shape() -> None:
    flat = np.zeros((1, 1, 2, 8), np.uint8)
    assert (
        raw_split(flat, np.zeros(1, int)).digests != raw_split(flat.reshape(1, 1, 4, 4), np.zeros(1, int)).digests
    ).any()


def test_copies_are_counted() -> None:
    split = raw_split(np.array([1, 1, 2, 3], np.uint8).reshape(4, 1, 1, 1), np.array([0, 1, 0, 1]))
    other = raw_split(np.array([1, 3, 9], np.uint8).reshape(3, 1, 1, 1), np.array([0, 1, 0]))
    assert count_repeated(split) == 1
    assert count_shared(split, other) == 3
    assert count_shared(other, split) == 2
