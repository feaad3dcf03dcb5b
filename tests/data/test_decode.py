"""`decode` of one file: formats, modes, rotation, size, damage."""

from __future__ import annotations

import contextlib
import hashlib

import numpy as np
import pytest
from helpers.data_files import png_header, save_image
from PIL import Image

from quatsphere.data.dataset import digest_images
from quatsphere.data.decode import MAX_PIXELS, BadImage, decode, fit_image

GRADIENT = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3) * 5


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_formats_keep_every_pixel(kind: str, options: dict[str, object]) -> None:
    decoded = decode(save_image(Image.fromarray(GRADIENT), kind, **options), 4)
    assert np.array_equal(decoded.pixels, GRADIENT.transpose(2, 0, 1))
    assert decoded.format == kind
    assert not decoded.resized
    assert decoded.digest == digest_images(decoded.pixels[None])[0].tobytes()


def test_jpeg_is_decoded() -> None:
    decoded = decode(save_image(Image.new("RGB", (4, 4), (10, 20, 30)), "JPEG", quality=100), 4)
    assert decoded.format == "JPEG"
    assert np.abs(decoded.pixels[:, 0, 0].astype(int) - (10, 20, 30)).max() <= 2


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("L", (4, 4), 77), (77, 77, 77)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("P", (4, 4), 0), (0, 0, 0)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), (255, 0, 0)),
        (Image.new("LA", (4, 4), (0, 0)), (255, 255, 255)),
        (Image.fromarray(np.full((4, 4), 0xABCD, np.uint16)), (0xAB, 0xAB, 0xAB)),
    ],
    ids=["grey", "bit", "palette", "transparent", "opaque", "grey transparent", "16 bit"],
)
def test_modes_become_rgb(image: Image.Image, expected: tuple[int, int, int]) -> None:
    decoded = decode(save_image(image), 4)
    assert decoded.pixels.shape == (3, 4, 4)
    assert np.array_equal(decoded.pixels[:, 1, 1], expected)


def test_transparent_palette_colour_is_white() -> None:
    image = Image.new("P", (4, 4), 3)
    image.putpalette([0] * 9 + [200, 100, 50])
    assert np.array_equal(decode(save_image(image), 4).pixels[:, 0, 0], (200, 100, 50))
    assert np.array_equal(decode(save_image(image, transparency=3), 4).pixels[:, 0, 0], (255, 255, 255))


def test_cmyk_is_converted() -> None:
    decoded = decode(save_image(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG", quality=100), 4)
    assert decoded.pixels[0].min() > 240
    assert decoded.pixels[1:].max() < 15


def test_exif_rotation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the image is stored on the right
    decoded = decode(save_image(Image.fromarray(GRADIENT), exif=exif), 4)
    assert np.array_equal(decoded.pixels, np.rot90(GRADIENT, -1).transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (40, 40), (7, 9), (1, 300)])
def test_other_sizes_are_resized_on_the_shorter_side_and_cropped(shape: tuple[int, int]) -> None:
    height, width = shape
    across = np.linspace(0, 255, width)
    pixels = np.broadcast_to(across[None, :, None], (height, width, 3)).astype(np.uint8)
    decoded = decode(save_image(Image.fromarray(np.ascontiguousarray(pixels))), 20)
    assert decoded.resized
    assert decoded.pixels.shape == (3, 20, 20)
    side = min(shape)
    centres = (width - side) / 2 + (np.arange(20) + 0.5) * side / 20 - 0.5
    assert np.abs(decoded.pixels[0, 10] - np.interp(centres, np.arange(width), across)).max() < max(3.0, 300 / width)


def test_squash_keeps_both_edges() -> None:
    pixels = np.zeros((32, 64, 3), np.uint8)
    pixels[:, :16], pixels[:, -16:] = (255, 0, 0), (0, 0, 255)
    data = save_image(Image.fromarray(pixels))
    cropped, squashed = decode(data, 16), decode(data, 16, "squash")
    assert cropped.pixels.max() < 40
    assert squashed.pixels[:, 8, 0].tolist() == [255, 0, 0]
    assert squashed.pixels[:, 8, -1].tolist() == [0, 0, 255]
    assert not squashed.square
    assert cropped.digest == squashed.digest


@pytest.mark.parametrize(
    ("size", "fit", "expected"),
    [
        ((23, 190), "crop", "ba830d555962"),
        ((23, 190), "squash", "2140199db0f7"),
        ((190, 23), "crop", "61b4b4720913"),
        ((190, 23), "squash", "4d44819992c0"),
        ((61, 47), "crop", "d37ac00c0223"),
        ((61, 47), "squash", "13192c082b55"),
    ],
)
def test_resizing_does_not_depend_on_the_version_of_pillow(size: tuple[int, int], fit: str, expected: str) -> None:
    """Pillow 13 resizes tall images in another order than 12; results were equal with 10.4, 12.0 and 13.0."""
    width, height = size
    noise = (np.arange(3 * width * height, dtype=np.uint32) * np.uint32(2654435761) >> 24).astype(np.uint8)
    fitted = fit_image(Image.fromarray(noise.reshape(height, width, 3)), 32, fit)
    assert hashlib.sha256(np.asarray(fitted).tobytes()).hexdigest()[:12] == expected


def test_digest_is_of_the_image_before_resizing() -> None:
    data = save_image(Image.fromarray(GRADIENT))
    assert decode(data, 4).digest == decode(data, 9).digest
    assert decode(save_image(Image.fromarray(GRADIENT[:2])), 9).digest != decode(data, 9).digest


WHOLE = {kind: save_image(Image.effect_noise((64, 64), 50).convert("RGB"), kind) for kind in ("PNG", "JPEG", "WEBP")}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"hello, I am a text file", "not a PNG, JPEG or WebP image"),
        (save_image(Image.new("RGB", (4, 4)), "GIF"), "not a PNG, JPEG or WebP image"),
        (save_image(Image.new("RGB", (4, 4)), "BMP"), "not a PNG, JPEG or WebP image"),
        (save_image(Image.new("RGB", (4, 4)), "TIFF"), "not a PNG, JPEG or WebP image"),
        (png_header(9_000, 9_000), f"more than {MAX_PIXELS:,} pixels"),
        (png_header(20_000, 20_000), f"more than {MAX_PIXELS:,} pixels"),
        *((data[: len(data) // 2], ".") for data in WHOLE.values()),
    ],
    ids=["empty", "text", "gif", "bmp", "tiff", "large", "huge", "cut png", "cut jpeg", "cut webp"],
)
def test_reasons_of_bad_files(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=reason):
        decode(data, 4)


def test_damaged_files_raise_only_bad_image() -> None:
    generator = np.random.default_rng(0)
    for data in WHOLE.values():
        for _ in range(60):
            damaged = bytearray(data)
            for position in generator.integers(0, len(data), 4):
                damaged[position] ^= int(generator.integers(1, 256))
            with contextlib.suppress(BadImage):
                assert decode(bytes(damaged), 8).pixels.shape == (3, 8, 8)


def test_sliver_is_cheap() -> None:
    decoded = decode(save_image(Image.new("RGB", (100_000, 1), (9, 8, 7))), 16)
    assert np.array_equal(decoded.pixels[:, 8, 8], (9, 8, 7))
