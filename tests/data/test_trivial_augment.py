"""Every operation x strength x sign against Pillow, called as torchvision does on Pillow images."""

from __future__ import annotations

import io
import math
import os
import platform
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from quatsphere.data.trivial_augment import OPERATIONS, STRENGTHS, apply_trivial_augment
from quatsphere.errors import ConfigError

NAMES = [op.name for op in OPERATIONS]
BLENDS = {"Brightness", "Color", "Contrast", "Sharpness"}


def affine(image: Image.Image, shear: tuple[float, float] = (0.0, 0.0), move: tuple[int, int] = (0, 0)) -> Image.Image:
    """torchvision's F.affine without rotation: shears pass through degrees, about the top left corner."""
    tan_x, tan_y = (math.tan(math.radians(math.degrees(math.atan(s)))) for s in shear)
    matrix = (1.0, tan_x, -float(move[0]), tan_y, 1.0, -float(move[1]))
    black = (0,) * len(image.getbands())
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST, fillcolor=black if len(black) > 1 else 0
    )


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda image, m: image,
    "ShearX": lambda image, m: affine(image, shear=(m, 0.0)),
    "ShearY": lambda image, m: affine(image, shear=(0.0, m)),
    "TranslateX": lambda image, m: affine(image, move=(int(m), 0)),
    "TranslateY": lambda image, m: affine(image, move=(0, int(m))),
    "Rotate": lambda image, m: image.rotate(m, Image.Resampling.NEAREST, False, None, fillcolor=0),
    "Brightness": lambda image, m: ImageEnhance.Brightness(image).enhance(1.0 + m),
    "Color": lambda image, m: ImageEnhance.Color(image).enhance(1.0 + m),
    "Contrast": lambda image, m: ImageEnhance.Contrast(image).enhance(1.0 + m),
    "Sharpness": lambda image, m: ImageEnhance.Sharpness(image).enhance(1.0 + m),
    "Posterize": lambda image, m: ImageOps.posterize(image, int(m)),
    "Solarize": lambda image, m: ImageOps.solarize(image, m),
    "AutoContrast": lambda image, m: ImageOps.autocontrast(image),
    "Equalize": lambda image, m: ImageOps.equalize(image),
}


def through_pillow(images: Tensor, name: str, magnitude: float) -> Tensor:
    """Each image of (b, c, h, w) through Pillow's operation."""
    outputs = []
    for image in images.numpy().transpose(0, 2, 3, 1):
        picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
        outputs.append(np.asarray(PILLOW[name](picture, magnitude)).reshape(image.shape).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(outputs))


def check_equals_pillow(images: Tensor, name: str) -> None:
    """All strengths and signs in one shuffled batch; exact, except that Pillow's blend is fused on some processors."""
    operation, count = NAMES.index(name), len(images)
    cases = [(k, s) for k in range(STRENGTHS) for s in ((-1, 1) if OPERATIONS[operation].signed else (1,))]
    order = torch.randperm(len(cases) * count, generator=torch.Generator().manual_seed(0))
    strength, sign = (torch.tensor(column).repeat_interleave(count)[order] for column in zip(*cases, strict=True))
    repeated = images.repeat(len(cases), 1, 1, 1)[order]
    actual = torch.empty_like(repeated)
    actual[order] = apply_trivial_augment(repeated, torch.full_like(order, operation), strength, sign)
    expected = [through_pillow(images, name, s * OPERATIONS[operation].magnitudes[k]) for k, s in cases]
    difference = (actual.int() - torch.cat(expected).int()).abs().max().item()
    fused = name in BLENDS and platform.machine().lower() not in ("x86_64", "amd64")
    assert difference <= int(fused), f"{name}: {difference} grey levels from Pillow"


@cache
def photographs() -> list[np.ndarray]:
    datasets = pytest.importorskip("sklearn.datasets")
    return [datasets.load_sample_image(name) for name in ("flower.jpg", "china.jpg")]


def photo_crops(count: int, height: int = 32, width: int = 32) -> Tensor:
    """Crops of scikit-learn's two photographs."""
    photos = photographs()
    generator = np.random.default_rng(0)
    crops = []
    for i in range(count):
        photo = photos[i % 2]
        y, x = generator.integers(photo.shape[0] - height), generator.integers(photo.shape[1] - width)
        crops.append(photo[y : y + height, x : x + width].transpose(2, 0, 1))
    return torch.from_numpy(np.stack(crops))


def cifar_images(count: int) -> Tensor:
    """The first training images of CIFAR-10's zip in QUATSPHERE_DATA, one class after another."""
    root = os.environ.get("QUATSPHERE_DATA")
    if root is None or not (archive := Path(root) / "cifar10.zip").exists():
        pytest.skip("set QUATSPHERE_DATA to a folder with cifar10.zip")
    with zipfile.ZipFile(archive) as members:
        names = sorted(name for name in members.namelist() if name.startswith("train/") and name.endswith(".webp"))
        pictures = [Image.open(io.BytesIO(members.read(name))) for name in names[:: len(names) // count][:count]]
    return torch.from_numpy(np.stack([np.asarray(picture.convert("RGB")).transpose(2, 0, 1) for picture in pictures]))


def digit_images(count: int) -> Tensor:
    datasets = pytest.importorskip("sklearn.datasets")
    return torch.from_numpy((datasets.load_digits().images[:count, None] * 15).astype(np.uint8))


def corner_cases() -> Tensor:
    """Black, white, constant, two-level, one odd pixel, a ramp, a channel of each kind: (8, 3, 32, 32)."""
    black = torch.zeros(3, 32, 32, dtype=torch.uint8)
    odd_pixel = torch.full_like(black, 100)
    odd_pixel[:, 3, 5] = 101
    ramp = torch.arange(1024).view(1, 32, 32).expand(3, -1, -1).remainder(256).to(torch.uint8)
    halves = (ramp > 127).to(torch.uint8) * 255
    faint = 120 + ramp % 3
    mixed = torch.stack([black[0], odd_pixel[0], ramp[0]])
    return torch.stack([black, black + 255, black + 77, odd_pixel, ramp, halves, faint, mixed])


SOURCES = {
    "cifar10": lambda: cifar_images(20),
    "photos": lambda: photo_crops(8),
    "grey photos": lambda: photo_crops(4)[:, 1:2],
    "digits": lambda: digit_images(8),
    "oblong": lambda: photo_crops(3, height=24, width=37),
    "corner cases": corner_cases,
}


@pytest.fixture(scope="module", params=SOURCES)
def images(request: pytest.FixtureRequest) -> Tensor:
    return SOURCES[request.param]()


@pytest.mark.parametrize("name", NAMES)
def test_operation_equals_pillow(images: Tensor, name: str) -> None:
    check_equals_pillow(images, name)


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 5), (3, 3)])
@pytest.mark.parametrize("name", NAMES)
def test_tiny_images_equal_pillow(name: str, size: tuple[int, int]) -> None:
    check_equals_pillow(photo_crops(2, *size), name)


def test_magnitudes_are_those_of_torchvision() -> None:
    """The 14 operations in torchvision's order; magnitudes within one float32 unit of its tables, equal on x86."""
    ratio, pixels = torch.linspace(0.0, 0.99, 31), torch.linspace(0.0, 32.0, 31)
    bits = 8 - (torch.arange(31) / (30 / 6)).round()
    tables = {"Rotate": torch.linspace(0.0, 135.0, 31), "Solarize": torch.linspace(255.0, 0.0, 31), "Posterize": bits}
    tables |= dict.fromkeys(("TranslateX", "TranslateY"), pixels) | dict.fromkeys(("ShearX", "ShearY", *BLENDS), ratio)
    assert list(PILLOW) == NAMES
    for op in OPERATIONS:
        expected = tables.get(op.name, torch.zeros(31)).double()
        actual = torch.tensor(op.magnitudes, dtype=torch.float64)
        fused = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        torch.testing.assert_close(actual, expected, rtol=0 if fused else 2e-7, atol=0)
    unsigned = {"Identity", "Posterize", "Solarize", "AutoContrast", "Equalize"}
    assert {op.name for op in OPERATIONS if not op.signed} == unsigned


def test_translation_at_the_middle_strength_is_15_pixels() -> None:
    """32 * 15 / 30 is 16, but the float32 table of torchvision has 15.999999, which int() truncates to 15."""
    moved = [int(m) for m in OPERATIONS[NAMES.index("TranslateX")].magnitudes]
    assert moved == [15 if k == 15 else 32 * k // 30 for k in range(31)]


def test_mixed_batch_equals_one_by_one() -> None:
    images = photo_crops(56)
    operation = torch.arange(56) % len(OPERATIONS)
    strength, sign = torch.arange(56) * 7 % STRENGTHS, 1 - 2 * (torch.arange(56) % 3 % 2)
    together = apply_trivial_augment(images, operation, strength, sign)
    alone = [
        apply_trivial_augment(images[i : i + 1], operation[i : i + 1], strength[i : i + 1], sign[i : i + 1])
        for i in range(56)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_input_is_not_modified() -> None:
    images = photo_crops(14)
    before = images.clone()
    apply_trivial_augment(images, torch.arange(14), torch.full((14,), 30), torch.ones(14, dtype=torch.int64))
    assert torch.equal(images, before)


def test_two_channels_are_refused() -> None:
    zeros = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="1 or 3 channels: got 2"):
        apply_trivial_augment(torch.zeros(1, 2, 8, 8, dtype=torch.uint8), zeros, zeros, zeros)
