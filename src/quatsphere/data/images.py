"""One image file -> pixels, by one documented rule; run as a script it is the worker of `decoder.py`.

It imports nothing of this package, so that a worker starts in a fifth of a second and holds no torch.

1. PNG, JPEG and WebP only, told by content; animations give their first frame; at most MOST_PIXELS.
2. EXIF rotation is applied; colour profiles are ignored.
3. Sixteen-bit greys keep their high byte; palette, grey, CMYK become RGB as Pillow converts them.
4. Transparent images are laid on white.
5. `crop` resizes the shorter side to the wanted size and cuts the centre square out, `squash` resizes both sides (in
   one step, antialiased bicubic); an image that has the size already is not touched.
"""

import hashlib
import io
import signal
import struct
import sys
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP")
FITS = ("crop", "squash")
MOST_PIXELS = 64_000_000
REPLY = struct.Struct("<BBBBH32s")  # ok, format, resized, square, length of the reason, digest


class BadImage(ValueError):
    """The file is no image that we read; the message says why."""


class TooLarge(BadImage):
    """The image has more than MOST_PIXELS."""


class Decoded(NamedTuple):
    """Pixels (3, size, size), digest of the image before resizing, whether it was resized, whether it was square, and
    its format."""

    pixels: np.ndarray
    digest: bytes
    resized: bool
    square: bool
    format: str


def decode(data: bytes, size: int, how: str = "crop") -> Decoded:
    """The image in a file's bytes, fitted to the size by `crop` or `squash`, or BadImage."""
    if not data:
        raise BadImage("the file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            ImageOps.exif_transpose(image, in_place=True)
            return _finish(to_rgb(image), size, how, str(image.format))
    except Image.DecompressionBombError as error:  # ours, or Pillow's own cap that lies above
        raise TooLarge(f"more than {MOST_PIXELS:,} pixels") from error
    except Image.UnidentifiedImageError as error:
        raise BadImage("not a PNG, JPEG or WebP image") from error
    except Exception as error:  # damaged files raise anything from SyntaxError to struct.error
        raise BadImage(str(error).strip().split("\n")[0] or type(error).__name__) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Rules 3 and 4."""
    if image.mode.startswith("I"):
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(high).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def fit(image: Image.Image, size: int, how: str = "crop") -> Image.Image:
    """Rule 5; works for any mode, and a sliver of 64,000,000 x 1 costs no more than any other image."""
    if image.size == (size, size):
        return image
    width, height = (min(image.size),) * 2 if how == "crop" else image.size
    left, top = (image.width - width) / 2, (image.height - height) / 2
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))


def _finish(image: Image.Image, size: int, how: str, kind: str) -> Decoded:
    """Pixels at the wanted size; the digest is of (shape, pixels) before, the same as `contents.digest_images`."""
    source = _channels_first(image)
    hasher = hashlib.sha256((",".join(map(str, source.shape)) + ";").encode())
    hasher.update(source.tobytes())
    resized, square = image.size != (size, size), image.width == image.height
    pixels = _channels_first(fit(image, size, how)) if resized else source
    return Decoded(pixels, hasher.digest(), resized, square, kind)


def _channels_first(image: Image.Image) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def serve(size: int, how: str, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer batches of files until the parent closes the pipe: batch in whole, then one reply per image.

    Request: count, that many lengths, the bytes. Reply: REPLY, then pixels or the reason. All little-endian.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    while head := requests.read(4):
        count = struct.unpack("<I", head)[0]
        lengths = struct.unpack(f"<{count}I", requests.read(4 * count))
        for data in [requests.read(length) for length in lengths]:
            replies.write(_reply(data, size, how))
            replies.flush()


def _reply(data: bytes, size: int, how: str) -> bytes:
    try:
        found = decode(data, size, how)
    except BadImage as error:
        reason = str(error).encode("utf-8", "replace")[:1000]
        return REPLY.pack(0, 0, 0, 0, len(reason), bytes(32)) + reason
    kind = FORMATS.index(found.format)
    return REPLY.pack(1, kind, found.resized, found.square, 0, found.digest) + found.pixels.tobytes()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], sys.stdin.buffer, sys.stdout.buffer)
