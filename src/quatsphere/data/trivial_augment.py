"""TrivialAugmentWide (Müller and Hutter 2021, arXiv:2103.10158): one random operation of random strength per image.

Operations, 31 strengths and ranges are those of torchvision's `TrivialAugmentWide._augmentation_space`, applied as
torchvision applies them to Pillow images: nearest neighbour, black fill, shears about the top left corner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from quatsphere.data import pillow_ops
from quatsphere.errors import ConfigError

STRENGTHS = 31


class Operation(NamedTuple):
    """An operation of the space: what it does, its magnitude at each strength, whether its sign is drawn too."""

    name: str
    apply: Callable[[Tensor, Tensor], Tensor]
    magnitudes: tuple[float, ...]
    signed: bool


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32, device="cpu").item()


def _linspace(start: float, end: float) -> tuple[float, ...]:
    """torch.linspace(start, end, 31) in float32 with fused multiply-add, which torchvision's tables come from.

    Written out because torch's own last bit depends on the machine: where it does not fuse, TranslateX at strength
    15 is 16.0 and not 15.999999, and int() then moves by 16 pixels and not by 15.
    """
    last = STRENGTHS - 1
    end = _float32(end)
    step = _float32((end - start) / last)
    rising = [start + step * k for k in range(STRENGTHS // 2)]
    falling = [end - step * (last - k) for k in range(STRENGTHS // 2, STRENGTHS)]
    return tuple(_float32(value) for value in rising + falling)


_UNUSED = (0.0,) * STRENGTHS
_RATIO = _linspace(0.0, 0.99)
_PIXELS = _linspace(0.0, 32.0)
_BITS = tuple(float(8 - round(k / ((STRENGTHS - 1) / 6))) for k in range(STRENGTHS))

OPERATIONS = (
    Operation("Identity", pillow_ops.identity, _UNUSED, signed=False),
    Operation("ShearX", pillow_ops.shear_x, _RATIO, signed=True),
    Operation("ShearY", pillow_ops.shear_y, _RATIO, signed=True),
    Operation("TranslateX", pillow_ops.translate_x, _PIXELS, signed=True),
    Operation("TranslateY", pillow_ops.translate_y, _PIXELS, signed=True),
    Operation("Rotate", pillow_ops.rotate, _linspace(0.0, 135.0), signed=True),
    Operation("Brightness", pillow_ops.brightness, _RATIO, signed=True),
    Operation("Color", pillow_ops.color, _RATIO, signed=True),
    Operation("Contrast", pillow_ops.contrast, _RATIO, signed=True),
    Operation("Sharpness", pillow_ops.sharpness, _RATIO, signed=True),
    Operation("Posterize", pillow_ops.posterize, _BITS, signed=False),
    Operation("Solarize", pillow_ops.solarize, _linspace(255.0, 0.0), signed=False),
    Operation("AutoContrast", pillow_ops.autocontrast, _UNUSED, signed=False),
    Operation("Equalize", pillow_ops.equalize, _UNUSED, signed=False),
)

_MAGNITUDES = torch.tensor([op.magnitudes for op in OPERATIONS], dtype=torch.float64, device="cpu")
_SIGNED = torch.tensor([op.signed for op in OPERATIONS], device="cpu")


def trivial_augment(
    images: UInt8[Tensor, "b c h w"],
    operation: Int[Tensor, "b"],
    strength: Int[Tensor, "b"],
    sign: Int[Tensor, "b"],
) -> UInt8[Tensor, "b c h w"]:
    """Apply OPERATIONS[operation] to each image at strength 0..30 with sign -1 or 1 (ignored by unsigned operations).

    Images of one operation are computed together, each exactly once; the three choices are best on the CPU.
    """
    if images.shape[1] not in (1, 3):
        raise ConfigError(f"trivial_augment needs images of 1 or 3 channels: got {images.shape[1]}; switch it off")
    operation, strength, sign = operation.cpu(), strength.cpu(), sign.cpu()
    magnitude = _MAGNITUDES[operation, strength] * torch.where(_SIGNED[operation], sign, 1)
    counts = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
    augmented = torch.empty_like(images)
    for op, members in zip(OPERATIONS, operation.argsort().split(counts), strict=True):
        if len(members) > 0:
            places = members.to(images.device)
            augmented[places] = op.apply(images[places], magnitude[members])
    return augmented
