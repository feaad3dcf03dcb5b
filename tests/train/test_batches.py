"""Batches are a function of (seed, epoch, step) alone."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny_runs import change, tiny_config
from torch import Tensor

from quatsphere.config import DataConfig
from quatsphere.data import Dataset
from quatsphere.train.batches import Batch, Batches, BatchFeed, epoch_order
from quatsphere.train.run import load_data

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_data(tiny_config().data, print)


def make(dataset: Dataset, size: int, seed: int = 1, **data: float) -> Batches:
    config = change(tiny_config(), "data", **data).data
    return Batches(dataset, config, seed, size, 0.1)


def by_sample(batches: list[Batch]) -> dict[int, tuple[Tensor, Tensor, int]]:
    """Sample -> (image, target, dropout key)."""
    return {
        int(sample): (image, target, int(key))
        for batch in batches
        for image, target, key, sample in zip(batch.images, batch.targets, batch.keys, batch.samples, strict=True)
    }


def test_order_is_a_permutation_that_depends_on_seed_and_epoch() -> None:
    order = epoch_order(1, 0, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    assert torch.equal(order, epoch_order(1, 0, 1000))
    for other in (epoch_order(1, 1, 1000), epoch_order(2, 0, 1000)):
        assert sorted(other.tolist()) == list(range(1000))
        assert (other == order).float().mean() < 0.02


def test_order_does_not_depend_on_earlier_calls(digits: Dataset) -> None:
    forwards, backwards = make(digits, 16), make(digits, 16)
    positions = [(epoch, step) for epoch in range(3) for step in range(4)]
    forward_order = {position: forwards.samples(*position) for position in positions}
    backward_order = {position: backwards.samples(*position) for position in reversed(positions)}
    assert all(torch.equal(forward_order[position], backward_order[position]) for position in positions)


@pytest.mark.parametrize("size", [1, 10, 16, 63, 64])
def test_epoch_has_every_image_once(digits: Dataset, size: int) -> None:
    batches = make(digits, size)
    seen = torch.cat([batches.samples(0, step) for step in range(batches.steps)])
    assert sorted(seen.tolist()) == list(range(64))


def test_images_do_not_depend_on_the_batch_size(digits: Dataset) -> None:
    few, many = make(digits, 10), make(digits, 16)
    first = by_sample([few.batch(2, step, CPU) for step in range(few.steps)])
    second = by_sample([many.batch(2, step, CPU) for step in range(many.steps)])
    assert first.keys() == second.keys()
    for sample, (image, target, key) in first.items():
        assert torch.equal(image, second[sample][0])
        assert torch.equal(target, second[sample][1])
        assert key == second[sample][2]


def test_epochs_augment_differently(digits: Dataset) -> None:
    batches = make(digits, 64)
    first, second = by_sample([batches.batch(0, 0, CPU)]), by_sample([batches.batch(1, 0, CPU)])
    changed = [not torch.equal(first[s][0], second[s][0]) for s in first]
    assert sum(changed) > 48
    assert all(first[s][2] != second[s][2] for s in first)


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.2}, {"cutmix": 1.0}])
@pytest.mark.parametrize("world", [2, 3])
def test_parts_of_all_processes_form_the_batch(digits: Dataset, world: int, mixing: dict[str, float]) -> None:
    batches = make(digits, 16, **mixing)
    whole = by_sample([batches.batch(1, 2, CPU)])
    shares = [batches.batch(1, 2, CPU, rank, world) for rank in range(world)]
    assert sum(len(share.samples) for share in shares) == 16
    union = by_sample(shares)
    assert union.keys() == whole.keys()
    for sample, (image, target, key) in whole.items():
        assert torch.equal(union[sample][0], image)
        assert torch.equal(union[sample][1], target)
        assert union[sample][2] == key


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.2}])
def test_process_without_images_gets_one_without_effect(digits: Dataset, mixing: dict[str, float]) -> None:
    batches = make(digits, 63, **mixing)
    assert len(batches.samples(0, 1)) == 1
    empty = batches.batch(0, 1, CPU, rank=1, world=2)
    assert len(empty.images) == 1
    assert empty.targets.sum() == 0
    assert empty.labels.tolist() == [-1]
    full = batches.batch(0, 1, CPU, rank=0, world=2)
    assert full.targets.sum().item() == pytest.approx(1)


def test_targets_are_smoothed(digits: Dataset) -> None:
    batch = make(digits, 16).batch(0, 0, CPU)
    assert torch.allclose(batch.targets.sum(1), torch.ones(16))
    assert torch.allclose(batch.targets.gather(1, batch.labels[:, None]), torch.tensor(0.91))
    assert torch.equal(batch.labels, digits.train.labels[batch.samples])


def test_without_augmentation_images_are_only_normalised(digits: Dataset) -> None:
    config = DataConfig(crop_pad=0, flip=False, trivial_augment=False)
    batch = Batches(digits, config, 0, 8, 0.0).batch(0, 0, CPU)
    expected = (digits.train.images[batch.samples].float() / 255 - digits.mean) / digits.std
    assert torch.allclose(batch.images, expected, atol=1e-6)


def test_batches_prepared_by_a_thread_are_the_same_bits(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of training, across the end of an epoch, and after a jump as at a resume."""
    monkeypatch.setattr(Batch, "to", lambda self, device: self)
    batches = make(digits, 24, trivial_augment=True, mixup=0.2, cutmix=1.0)
    feed = BatchFeed(batches, torch.device("meta"))  # any accelerator
    assert batches.steps == 3
    for epoch, step in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (3, 2), (4, 0), (0, 1)):
        found, expected = (
            feed.batch(epoch, step),
            make(digits, 24, trivial_augment=True, mixup=0.2, cutmix=1.0).batch(epoch, step, CPU),
        )
        for name in ("images", "targets", "labels", "keys", "samples"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), (epoch, step, name)


def test_a_failure_in_the_thread_is_raised_by_the_step(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make(digits, 24)
    feed = BatchFeed(batches, torch.device("meta"))
    feed.batch(0, 0)
    assert feed._next is not None
    feed._next[1].result()
    monkeypatch.setattr(Batches, "_make", lambda *_: 1 / 0)
    feed.batch(0, 1)
    with pytest.raises(ZeroDivisionError):
        feed.batch(0, 2)
