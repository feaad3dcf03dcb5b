"""Augmentation as a pure function of (image, seed, epoch, sample).

Random numbers come from `quatsphere.randomness`, one key per sample, so results do not depend on batch size, order,
device or resuming. Each choice has a fixed position in the key's stream: switching one off does not change the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from einops import rearrange
from jaxtyping import Float, Float32, Int, UInt8
from torch import Tensor

from quatsphere.randomness import fold, name_seed, uniform


def augment(
    images: UInt8[Tensor, "b c h w"],
    samples: Int[Tensor, "b"],
    *,
    seed: int,
    epoch: int,
    crop_pad: int,
    flip: bool,
    trivial_augment: bool,
) -> UInt8[Tensor, "b c h w"]:
    """Apply a random crop of the zero-padded image, a random horizontal flip and TrivialAugmentWide, in this order.

    `samples` are the images' indices in the training set.
    """
    keys = fold(name_seed(seed, "augment"), epoch, samples.cpu())
    draws = uniform(keys, 6)
    top, left = random_below(draws[:, :2], 2 * crop_pad + 1).unbind(-1)
    mirrored = random_below(draws[:, 2], 2) * int(flip)
    images = crop_and_flip(images, top - crop_pad, left - crop_pad, mirrored)
    if trivial_augment:
        from quatsphere.data.trivial_augment import random_operations  # which imports this module

        images = random_operations(images, draws[:, 3:])
    return images


def crop_and_flip(
    images: UInt8[Tensor, "b c h w"], top: Int[Tensor, "b"], left: Int[Tensor, "b"], mirrored: Int[Tensor, "b"]
) -> UInt8[Tensor, "b c h w"]:
    """Cut out the window whose first pixel is (top, left), black outside the image; mirror it where `mirrored` is 1."""
    height, width = images.shape[-2:]
    x = torch.arange(width).expand(len(images), -1)
    columns = left.unsqueeze(-1) + torch.where(mirrored.unsqueeze(-1) == 1, width - 1 - x, x)
    rows = top.unsqueeze(-1) + torch.arange(height)
    return gather_pixels(images, rows.unsqueeze(-1).to(images.device), columns.unsqueeze(-2).to(images.device))


def gather_pixels(
    images: UInt8[Tensor, "b c h w"], rows: Int[Tensor, "b h #w"], columns: Int[Tensor, "b #h w"]
) -> UInt8[Tensor, "b c h w"]:
    """out[b, c, y, x] = images[b, c, rows[b, y, x], columns[b, y, x]]; black outside the image."""
    channels, height, width = images.shape[1:]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    index = torch.where(inside, rows * width + columns, 0)
    index = rearrange(index, "b h w -> b 1 (h w)").expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).view(images.shape) * inside.unsqueeze(1)


def normalize(
    images: UInt8[Tensor, "b c h w"], mean: Float[Tensor, "c"], std: Float[Tensor, "c"]
) -> Float32[Tensor, "b c h w"]:
    """(level / 255 - mean) / std per channel; mean and std are of levels scaled to [0, 1]."""
    mean, std = (v.to(images.device, torch.float32).view(-1, 1, 1) for v in (mean, std))
    return (images.float() / 255 - mean) / std


def normalized_batches(
    images: UInt8[Tensor, "n c h w"],
    mean: Float[Tensor, "c"],
    std: Float[Tensor, "c"],
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Float32[Tensor, "b c h w"]]:
    """Yield normalised images in batches; `progress(done, total)` is called when a batch has been used."""
    for start in range(0, len(images), batch_size):
        yield normalize(images[start : start + batch_size], mean, std)
        if progress is not None:
            progress(min(start + batch_size, len(images)), len(images))


def mix(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b k"],
    samples: Int[Tensor, "b"],
    *,
    seed: int,
    epoch: int,
    mixup: float,
    cutmix: float,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k"]]:
    """Mixup (Zhang et al. 2018) or cutmix (Yun et al. 2019) with the given alphas; 0 switches one off.

    Inside a sample's box the image becomes weight * own + (1 - weight) * partner's. The box of mixup is the whole
    image, with weight ~ Beta(alpha, alpha); the weight of cutmix is 0. Targets mix by area. With both on, each sample
    draws one of them. A sample's partner is the next one of the batch by key, so the order of the batch has no effect.
    """
    if mixup == 0 and cutmix == 0:
        return images, targets
    height, width = images.shape[-2:]
    keys = fold(name_seed(seed, "mix"), epoch, samples.cpu())
    boxes = [_draw_box(draws, mixup, cutmix, height, width) for draws in uniform(keys, 5).tolist()]
    box = torch.tensor(boxes, dtype=torch.float32, device=images.device).view(-1, 6, 1, 1, 1)
    top, bottom, left, right, box_weight, own = box.unbind(1)
    x, y = torch.arange(width, device=images.device), torch.arange(height, device=images.device).unsqueeze(-1)
    inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    weight = torch.where(inside, box_weight, 1.0).to(images.dtype)
    own = own.view(-1, 1).to(targets)
    order = keys.argsort()
    partner = torch.empty_like(order).scatter_(0, order, order.roll(-1)).to(images.device)  # the next larger key
    return (
        weight * images + (1 - weight) * images[partner],
        own * targets + (1 - own) * targets[partner],
    )


def _draw_box(
    draws: list[float], mixup: float, cutmix: float, height: int, width: int
) -> tuple[int, int, int, int, float, float]:
    """Box of one sample (top, bottom, left, right), weight of its own image inside the box and in the whole image."""
    choice, first, second, vertical, horizontal = draws
    if choice < (0.5 if mixup and cutmix else float(mixup > 0)):
        weight = symmetric_beta(mixup, first, second)
        return 0, height, 0, width, weight, weight
    side = math.sqrt(1 - symmetric_beta(cutmix, first, second))
    top, bottom = _span(vertical, side, height)
    left, right = _span(horizontal, side, width)
    return top, bottom, left, right, 0.0, 1 - (bottom - top) * (right - left) / (height * width)


def _span(draw: float, side: float, length: int) -> tuple[int, int]:
    """Interval of side * length pixels about a uniform centre, clipped to the image."""
    centre, half = int(draw * length), int(side * length) // 2
    return max(centre - half, 0), min(centre + half, length)


def symmetric_beta(alpha: float, first: float, second: float) -> float:
    """Transform two uniforms in [0, 1) to a Beta(alpha, alpha) variate, without rejection, for any alpha > 0.

    Devroye (1996), "Random variate generation in one line of code": t = sqrt(u^(-1/alpha) - 1) cos(2 pi v) is
    Student's t with 2 alpha degrees of freedom over sqrt(2 alpha) (Bailey 1994), and (1 + t / sqrt(1 + t^2)) / 2 is
    the variate. The exponent is capped below float64's overflow, where the variate is 0 or 1 anyway.
    """
    exponent = min(-math.log1p(-first) / alpha, 700.0)
    t = math.sqrt(math.expm1(exponent)) * math.cos(2 * math.pi * second)
    return (1 + math.sin(math.atan(t))) / 2


def random_below(draw: Float[Tensor, "*b"], count: int) -> Int[Tensor, "*b"]:
    """Uniform [0, 1) -> uniform integer in 0 .. count - 1."""
    return (draw * count).long()
