"""Stateless random numbers: known vectors, rates, independence of batch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.randomness import draw_mask, finalise, fold, keep_mask, keep_scale, name_seed, stream, uniform


def test_stream_is_splitmix64() -> None:
    # First outputs of the published generator for the seed 1234567.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [int(v) % 2**64 for v in stream(torch.tensor(1234567), 5)] == known


def test_finaliser_is_injective_on_a_range() -> None:
    assert len(finalise(torch.arange(100_000)).unique()) == 100_000


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000), st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_fold_is_elementwise(seed: int, epoch: int, samples: list[int]) -> None:
    keys = fold(seed, epoch, torch.tensor(samples))
    single = [int(fold(seed, epoch, sample)) for sample in samples]
    assert keys.tolist() == single
    assert int(fold(epoch, seed)) != int(fold(seed, epoch)) or seed == epoch


def test_uniform_moments() -> None:
    draws = uniform(fold(7, torch.arange(1000)), 100)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.005
    assert abs(draws.var() - 1 / 12) < 0.002


def test_keep_mask_keeps_the_mean_and_the_rate() -> None:
    mask = keep_mask(torch.arange(64), 3, (50, 33), 0.1)
    assert mask.dtype == torch.bool
    assert abs((~mask).double().mean() - 0.1) < 0.003
    assert abs(mask.double().mean() * keep_scale(0.1) - 1) < 0.005


def test_keep_mask_depends_on_the_sample_alone() -> None:
    keys = fold(3, torch.arange(9))
    whole = keep_mask(keys, 1, (7, 5), 0.5)
    parts = torch.cat([keep_mask(keys[i : i + 2], 1, (7, 5), 0.5) for i in range(0, 9, 2)])
    assert torch.equal(whole, parts)


def test_masks_are_on_the_device_of_the_keys() -> None:
    """Integers among the arguments must not move the result to the CPU."""
    keys = torch.zeros(4, dtype=torch.int64, device="meta")
    assert fold(keys, 5).device == keys.device
    assert fold(5, keys, 7).device == keys.device
    assert draw_mask(keys, 2**63 - 1, (3, 2), 0.5).device == keys.device


def test_name_seed_depends_on_name_and_seed() -> None:
    assert len({name_seed(seed, name) for seed in (0, 1) for name in ("a.weight", "b.weight")}) == 4
