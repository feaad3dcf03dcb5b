"""Augmentation is a pure function of (seed, epoch, sample); crop, flip, normalisation and mixing against loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quatsphere.data import augment as augment_module
from quatsphere.data import trivial_augment
from quatsphere.data.augment import augment, crop_and_flip, mix, normalize, symmetric_beta
from quatsphere.data.trivial_augment import OPERATIONS, STRENGTHS
from quatsphere.randomness import fold, uniform

SETTINGS = {"crop_pad": 4, "flip": True, "trivial_augment": True}


def random_images(count: int, channels: int = 3, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


IMAGES = random_images(40)
GREY = random_images(40, channels=1, size=8)


@pytest.mark.parametrize("images", [IMAGES, GREY], ids=["colour", "digits"])
@settings(max_examples=15, deadline=None)
@given(
    samples=st.lists(st.integers(0, 39), min_size=1, max_size=60),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 10**6),
    parts=st.integers(1, 5),
)
def test_augment_is_pure(images: Tensor, samples: list[int], seed: int, epoch: int, parts: int) -> None:
    """A sample's result does not depend on batch size, order or repetition."""
    whole = augment(images, torch.arange(len(images)), seed=seed, epoch=epoch, **SETTINGS)
    index = torch.tensor(samples)
    batches = [augment(images[part], part, seed=seed, epoch=epoch, **SETTINGS) for part in index.chunk(parts)]
    assert torch.equal(torch.cat(batches), whole[index])


def test_augment_depends_on_seed_epoch_and_sample() -> None:
    same = IMAGES[:1].expand(40, -1, -1, -1)
    results = [
        augment(same, torch.arange(40) + first, seed=seed, epoch=epoch, **SETTINGS)
        for seed, epoch, first in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 40))
    ]
    for one, other in pairwise(results):
        assert not torch.equal(one, other)
    assert len(results[0].flatten(1).unique(dim=0)) > 30


def test_augment_equals_crop_flip_then_operation() -> None:
    """Switching TrivialAugmentWide off does not change crop and flip; with everything off images are unchanged."""
    samples = torch.arange(40)
    off = augment(IMAGES, samples, seed=3, epoch=5, crop_pad=0, flip=False, trivial_augment=False)
    cropped = augment(IMAGES, samples, seed=3, epoch=5, crop_pad=4, flip=True, trivial_augment=False)
    full = augment(IMAGES, samples, seed=3, epoch=5, **SETTINGS)
    after = augment(cropped, samples, seed=3, epoch=5, crop_pad=0, flip=False, trivial_augment=True)
    assert torch.equal(off, IMAGES)
    assert torch.equal(full, after)


def crop_by_loop(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    out = np.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            source_y, source_x = y + top, x + left
            if 0 <= source_y < height and 0 <= source_x < width:
                out[:, y, x] = image[:, source_y, source_x]
    return out[:, :, ::-1] if mirrored else out


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 6, 9)])
def test_crop_and_flip_equals_loop(shape: tuple[int, int, int]) -> None:
    cases = [(t, left, m) for t in range(-4, 5, 2) for left in range(-4, 5) for m in (0, 1)]
    images = torch.randint(1, 256, (len(cases), *shape), dtype=torch.uint8)
    actual = crop_and_flip(images, *(torch.tensor(column) for column in zip(*cases, strict=True)))
    for image, result, (top, left, mirrored) in zip(images.numpy(), actual.numpy(), cases, strict=True):
        np.testing.assert_array_equal(result, crop_by_loop(image, top, left, bool(mirrored)))


def drawn_choices(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Tensor]:
    """(top, left, mirrored, operation, strength, sign) that `augment` draws for samples 0 .. count - 1."""
    seen: list[Tensor] = []

    def crop(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
        seen.extend((top, left, mirrored))
        return images

    def operate(images: Tensor, operation: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
        seen.extend((operation, strength, sign))
        return images

    monkeypatch.setattr(augment_module, "crop_and_flip", crop)
    monkeypatch.setattr(trivial_augment, "apply_trivial_augment", operate)
    augment(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count), seed=42, epoch=1, **SETTINGS)
    return seen


def test_choices_are_uniform_and_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-squared over every range, and over operation x strength; six standard deviations allowed."""
    top, left, mirrored, operation, strength, sign = drawn_choices(monkeypatch, 100_000)
    pair = operation * STRENGTHS + strength
    ranges = [(top + 4, 9), (left + 4, 9), (mirrored, 2), (operation, 14), (strength, 31), ((sign + 1) // 2, 2)]
    assert len(OPERATIONS) == 14
    assert STRENGTHS == 31
    for values, count in [*ranges, (pair, 14 * 31)]:
        counts = torch.bincount(values, minlength=count).double()
        assert len(counts) == count
        expected = len(values) / count
        chi_squared = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_squared < count - 1 + 6 * (2 * (count - 1)) ** 0.5


def test_normalize_standardises_each_channel() -> None:
    levels = IMAGES.double() / 255
    mean, std = levels.mean((0, 2, 3)), levels.std((0, 2, 3))
    normalised = normalize(IMAGES, mean, std)
    expected = (levels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert normalised.dtype == torch.float32
    torch.testing.assert_close(normalised.double(), expected, rtol=1e-5, atol=1e-5)


FLOATS = IMAGES.float() / 255
TARGETS = torch.eye(40)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0.0), (0.0, 1.0), (0.2, 1.0)])
@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(40)), seed=st.integers(0, 2**31), size=st.integers(1, 40))
def test_mix_does_not_depend_on_the_order_of_the_batch(
    mixup: float, cutmix: float, order: list[int], seed: int, size: int
) -> None:
    index = torch.tensor(order)[:size]
    options = {"seed": seed, "epoch": 2, "mixup": mixup, "cutmix": cutmix}
    images, targets = mix(FLOATS[index], TARGETS[index], index, **options)
    ascending = index.sort().values
    sorted_images, sorted_targets = mix(FLOATS[ascending], TARGETS[ascending], ascending, **options)
    rank = index.argsort().argsort()
    assert torch.equal(images, sorted_images[rank])
    assert torch.equal(targets, sorted_targets[rank])
    torch.testing.assert_close(targets.sum(1), torch.ones(size))


def test_mix_off_returns_its_input() -> None:
    images, targets = mix(FLOATS, TARGETS, torch.arange(40), seed=0, epoch=0, mixup=0.0, cutmix=0.0)
    assert images is FLOATS
    assert targets is TARGETS


def test_mixup_blends_image_and_target_alike() -> None:
    """Targets are one-hot by sample, so they show the partners and weights; no sample is its own partner."""
    images, targets = mix(FLOATS, TARGETS, torch.arange(40), seed=0, epoch=0, mixup=1.0, cutmix=0.0)
    torch.testing.assert_close(images, torch.einsum("bk,kchw->bchw", targets, FLOATS))
    partners = (targets * (1 - TARGETS)).argmax(1)
    assert sorted(partners.tolist()) == list(range(40))
    assert (partners != torch.arange(40)).all()


def test_cutmix_pastes_one_box_and_counts_its_area() -> None:
    black_and_white = torch.arange(40).view(-1, 1, 1, 1).expand(-1, 3, 32, 32).float()
    images, targets = mix(black_and_white, TARGETS, torch.arange(40), seed=1, epoch=0, mixup=0.0, cutmix=1.0)
    pasted = images != black_and_white
    torch.testing.assert_close(1 - pasted[:, 0].float().mean((1, 2)), targets.diagonal())
    for mask, target, image in zip(pasted[:, 0], targets, images, strict=True):
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows.unsqueeze(1) & columns)
        assert set(image[:, mask].unique().tolist()) <= {float(k) for k in target.nonzero().flatten()}


def test_cutmix_area_has_the_expected_mean() -> None:
    """A box of side s loses s^2 / 4 per axis at the edge; over s^2 uniform E (s - s^2 / 4)^2 = 77 / 240, less the
    rounding to whole pixels."""
    images = torch.arange(1000).view(-1, 1, 1, 1).expand(-1, 1, 64, 64).float()
    mixed, _ = mix(images, torch.zeros(1000, 2), torch.arange(1000), seed=1, epoch=0, mixup=0.0, cutmix=1.0)
    assert abs((mixed != images).float().mean() - 77 / 240) < 0.03


BETA_CDF = {
    0.5: lambda x: 2 / np.pi * np.arcsin(np.sqrt(x)),
    1.0: lambda x: x,
    2.0: lambda x: 3 * x**2 - 2 * x**3,
}


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.5, 1.0, 2.0, 20.0])
def test_symmetric_beta_has_the_right_distribution(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1)); Kolmogorov-Smirnov at 0.1 % where the CDF is known."""
    count = 10_000
    values = np.array([symmetric_beta(alpha, *pair) for pair in uniform(fold(torch.arange(count)), 2).tolist()])
    deviation = (4 * (2 * alpha + 1)) ** -0.5
    assert abs(values.mean() - 0.5) < 4 * deviation / count**0.5
    assert abs(values.std() / deviation - 1) < 0.03
    if alpha in BETA_CDF:
        ranks = np.arange(1, count + 1) / count
        assert np.abs(ranks - BETA_CDF[alpha](np.sort(values))).max() < 1.95 / count**0.5


def test_symmetric_beta_at_the_extremes() -> None:
    smallest, largest = 0.0, 1 - 2.0**-53
    for alpha in (1e-3, 1.0, 1e3):
        assert symmetric_beta(alpha, smallest, 0.3) == 0.5
        assert symmetric_beta(alpha, largest, smallest) > 0.5
        assert symmetric_beta(alpha, largest, 0.5) < 0.5
