"""TrivialAugmentWide (Müller and Hutter 2021) on batches of uint8 tensors, equal to Pillow's to the last grey level.

Every operation takes images (b, c, h, w) of one (mode L) or three (mode RGB) channels on any device, and one float64
magnitude per image (b,), best on the CPU. To round as Pillow does, computations use integers, float32 without
fused multiply-add, or Python floats, so the result does not depend on device, batch size or order.
The rules are those of Pillow's Geometry.c, Blend.c, Convert.c, Filter.c, Image.py, ImageEnhance.py and ImageOps.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int, Integer, UInt8
from torch import Tensor

from quatsphere.data.augment import gather_pixels, random_below
from quatsphere.errors import ConfigError

Matrix = tuple[float, float, float, float, float, float]


def identity(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Return the images unchanged."""
    return images


def shear_x(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """out(x, y) = in(x + m y, y), coordinates from the top left corner (torchvision shears about [0, 0])."""
    return _affine(images, [(1.0, m, 0.0, 0.0, 1.0, 0.0) for m in magnitude.tolist()])


def shear_y(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """out(x, y) = in(x, y + m x), coordinates from the top left corner."""
    return _affine(images, [(1.0, 0.0, 0.0, m, 1.0, 0.0) for m in magnitude.tolist()])


def translate_x(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move to the right by m pixels, m truncated towards zero."""
    return _affine(images, [(1.0, 0.0, -float(math.trunc(m)), 0.0, 1.0, 0.0) for m in magnitude.tolist()])


def translate_y(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move down by m pixels, m truncated towards zero."""
    return _affine(images, [(1.0, 0.0, 0.0, 0.0, 1.0, -float(math.trunc(m))) for m in magnitude.tolist()])


def rotate(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Rotate counter-clockwise by m degrees about the centre (Image.rotate, whose right angles agree with this)."""
    height, width = images.shape[-2:]
    return _affine(images, [_rotation(m, width / 2, height / 2) for m in magnitude.tolist()])


def brightness(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move away from (m > 0) or towards (m < 0) black: ImageEnhance.Brightness with factor 1 + m."""
    return _enhance(images, torch.zeros_like(images), magnitude)


def color(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move away from or towards the image's own grey: ImageEnhance.Color; a grey image is unchanged."""
    return _enhance(images, _luma(images), magnitude)


def contrast(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move away from or towards the mean grey level, rounded half up: ImageEnhance.Contrast."""
    grey = _luma(images)
    pixels = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3), dtype=torch.int64) + pixels) // (2 * pixels)
    return _enhance(images, mean.view(-1, 1, 1, 1), magnitude)


def sharpness(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Move away from or towards the smoothed image: ImageEnhance.Sharpness."""
    return _enhance(images, _smooth(images), magnitude)


def posterize(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Keep the m highest bits."""
    mask = (256 - 2 ** (8 - magnitude.long())).to(torch.uint8)
    return images & _per_image(mask, images)


def solarize(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Invert every level at or above the threshold m."""
    below = images < _per_image(magnitude.ceil().short(), images)
    return torch.where(below, images, 255 - images)


def autocontrast(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Stretch each channel's range to 0..255 (ImageOps.autocontrast): level -> trunc(level s - lowest s),
    s = 255 / (highest - lowest) in float64; a constant channel is unchanged."""
    lowest, highest = images.amin((2, 3)).cpu().double(), images.amax((2, 3)).cpu().double()
    flat = (highest <= lowest).unsqueeze(-1)
    scale = torch.full_like(highest, 255.0) / (highest - lowest)  # number / tensor would round twice
    levels = torch.arange(256, dtype=torch.float64)
    stretched = (levels * scale.unsqueeze(-1) + (-lowest * scale).unsqueeze(-1)).trunc().clamp(0, 255)
    return _look_up(images, torch.where(flat, levels, stretched))


def equalize(images: UInt8[Tensor, "b c h w"], magnitude: Float64[Tensor, "b"]) -> UInt8[Tensor, "b c h w"]:
    """Flatten each channel's histogram (ImageOps.equalize): level -> (step // 2 + pixels darker than it) // step,
    step = (pixels - pixels of the lightest level) // 255; the channel is unchanged where step is 0."""
    histogram = _histogram(images)
    pixels = images.shape[2] * images.shape[3]
    lightest = histogram.gather(2, images.amax((2, 3)).long().unsqueeze(-1))
    step = (pixels - lightest) // 255
    darker = histogram.cumsum(2) - histogram
    table = ((step // 2 + darker) // step.clamp(min=1)).clamp(max=255)
    return _look_up(images, torch.where(step > 0, table, torch.arange(256, device=images.device)))


def _rotation(degrees: float, center_x: float, center_y: float) -> Matrix:
    """Output -> input matrix of Image.rotate, whose sines are rounded to 15 decimals so that right angles are exact."""
    angle = -math.radians(degrees % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    shift_x = cosine * -center_x + sine * -center_y + center_x
    shift_y = -sine * -center_x + cosine * -center_y + center_y
    return cosine, sine, shift_x, -sine, cosine, shift_y


def _affine(images: UInt8[Tensor, "b c h w"], matrices: list[Matrix]) -> UInt8[Tensor, "b c h w"]:
    """Image.transform(AFFINE, NEAREST): the pixel that holds (a x + b y + c, d x + e y + f) at the centre (x, y) of
    an output pixel, in 16.16 fixed point as in affine_fixed (images below 16,384 pixels a side)."""
    height, width = images.shape[-2:]
    centred = [(a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5) for a, b, c, d, e, f in matrices]
    fixed = [[math.floor(value * 65536.0 + 0.5) for value in row] for row in centred]
    a, b, c, d, e, f = torch.tensor(fixed, device=images.device).view(-1, 6, 1, 1).unbind(1)
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device).unsqueeze(-1)
    return gather_pixels(images, rows=(d * x + e * y + f) >> 16, columns=(a * x + b * y + c) >> 16)


def _luma(images: UInt8[Tensor, "b c h w"]) -> UInt8[Tensor, "b 1 h w"]:
    """Image.convert("L"): ITU-R 601 weights in 16-bit fixed point, rounded half up."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().split(1, dim=1)
    return ((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16).to(torch.uint8)


def _smooth(images: UInt8[Tensor, "b c h w"]) -> UInt8[Tensor, "b c h w"]:
    """ImageFilter.SMOOTH: mean of 3x3 pixels with the centre counted five times, rounded; the border is unchanged.

    Pillow adds float32 products; sum / 13 + 1/2 is never closer to an integer than 1/26, so integers give the same.
    """
    levels = images.short()
    rows = levels[..., :-2, :] + levels[..., 1:-1, :] + levels[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * levels[..., 1:-1, 1:-1]
    smoothed = images.clone()
    smoothed[..., 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)
    return smoothed


def _enhance(
    images: UInt8[Tensor, "b c h w"], degenerate: Integer[Tensor, "b #c #h #w"], magnitude: Float64[Tensor, "b"]
) -> UInt8[Tensor, "b c h w"]:
    """Image.blend(degenerate, image, 1 + m): float32 product, float32 sum, clamped, truncated."""
    start = degenerate.float()
    factor = _per_image((1.0 + magnitude).float(), images)
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def _histogram(images: UInt8[Tensor, "b c h w"]) -> Int[Tensor, "b c 256"]:
    """Number of pixels of each level per image and channel (bincount: deterministic on every device)."""
    planes = images.shape[0] * images.shape[1]
    bins = images.reshape(planes, -1) + 256 * torch.arange(planes, device=images.device).unsqueeze(-1)
    return torch.bincount(bins.flatten(), minlength=256 * planes).view(*images.shape[:2], 256)


def _look_up(images: UInt8[Tensor, "b c h w"], table: Tensor) -> UInt8[Tensor, "b c h w"]:
    """Replace each level by its entry in its channel's table (b, c, 256)."""
    entries = table.to(device=images.device, dtype=torch.uint8)
    return entries.gather(2, images.flatten(2).long()).view(images.shape)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    """(b,) on any device -> (b, 1, 1, 1) on the device of the images."""
    return values.to(images.device).view(-1, 1, 1, 1)


# The table of operations.

STRENGTHS = 31


class Operation(NamedTuple):
    """An operation of TrivialAugmentWide: function, magnitude at each strength, whether its sign is random."""

    name: str
    apply: Callable[[Tensor, Tensor], Tensor]
    magnitudes: tuple[float, ...]
    signed: bool


def _float32(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32, device="cpu").item()


def _linspace(start: float, end: float) -> tuple[float, ...]:
    """torch.linspace(start, end, 31) in float32 with fused multiply-add, the source of torchvision's tables.

    Written out because the last bit of torch's own depends on the machine: without fusing, TranslateX at strength 15
    is 16.0 instead of 15.999999, and int() gives 16 pixels instead of 15.
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
    Operation("Identity", identity, _UNUSED, signed=False),
    Operation("ShearX", shear_x, _RATIO, signed=True),
    Operation("ShearY", shear_y, _RATIO, signed=True),
    Operation("TranslateX", translate_x, _PIXELS, signed=True),
    Operation("TranslateY", translate_y, _PIXELS, signed=True),
    Operation("Rotate", rotate, _linspace(0.0, 135.0), signed=True),
    Operation("Brightness", brightness, _RATIO, signed=True),
    Operation("Color", color, _RATIO, signed=True),
    Operation("Contrast", contrast, _RATIO, signed=True),
    Operation("Sharpness", sharpness, _RATIO, signed=True),
    Operation("Posterize", posterize, _BITS, signed=False),
    Operation("Solarize", solarize, _linspace(255.0, 0.0), signed=False),
    Operation("AutoContrast", autocontrast, _UNUSED, signed=False),
    Operation("Equalize", equalize, _UNUSED, signed=False),
)

_MAGNITUDES = torch.tensor([op.magnitudes for op in OPERATIONS], dtype=torch.float64, device="cpu")
_SIGNED = torch.tensor([op.signed for op in OPERATIONS], device="cpu")


def apply_trivial_augment(
    images: UInt8[Tensor, "b c h w"],
    operation: Int[Tensor, "b"],
    strength: Int[Tensor, "b"],
    sign: Int[Tensor, "b"],
) -> UInt8[Tensor, "b c h w"]:
    """Apply OPERATIONS[operation] to each image at strength 0..30 with sign -1 or 1 (ignored by unsigned operations).

    Images with the same operation are computed together; the three choices are best on the CPU.
    """
    if images.shape[1] not in (1, 3):
        raise ConfigError(f"trivial_augment needs images of 1 or 3 channels: got {images.shape[1]}; switch it off")
    operation, strength, sign = operation.cpu(), strength.cpu(), sign.cpu()
    magnitude = _MAGNITUDES[operation, strength] * torch.where(_SIGNED[operation], sign, 1)
    counts = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
    augmented = torch.empty_like(images)
    for op, members in zip(OPERATIONS, operation.argsort().split(counts), strict=True):
        if len(members) > 0:
            indices = members.to(images.device)
            augmented[indices] = op.apply(images[indices], magnitude[members])
    return augmented


def random_operations(images: UInt8[Tensor, "b c h w"], draws: Float[Tensor, "b 3"]) -> UInt8[Tensor, "b c h w"]:
    """Apply one operation of random strength and sign to each image, chosen by three uniforms."""
    operation, strength = random_below(draws[:, 0], len(OPERATIONS)), random_below(draws[:, 1], STRENGTHS)
    return apply_trivial_augment(images, operation, strength, sign=1 - 2 * random_below(draws[:, 2], 2))
