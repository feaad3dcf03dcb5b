"""Decode image files to pixels of one size.

`decode` follows one rule:

1. PNG, JPEG and WebP only, recognised by content; animations give their first frame; at most MAX_PIXELS.
2. EXIF rotation is applied; colour profiles are ignored.
3. Sixteen-bit greys keep their high byte; palette, grey and CMYK images become RGB as Pillow converts them.
4. Transparent images are composited on white.
5. `crop` resizes the shorter side to `size` and cuts out the centre square, `squash` resizes both sides (antialiased
   bicubic); an image that already has the size is not touched. Rows are resized first, then columns; columns first if
   that removes more than twice as many rows as columns. Versions of Pillow differ in this order, hence two passes.

`decode_files` applies it to many files. Each chunk of files is decoded by a short-lived subprocess that runs this file
as a script, so a decoder that crashes or hangs is an error that names the image. Such a process imports neither torch
nor the user's main script, as the workers of multiprocessing would: 2,000 PNGs of 32 x 32 take 0.5 s on two cores,
with ProcessPoolExecutor 5 s.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from quatsphere.data import shape_bytes
from quatsphere.errors import DataError, printable

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 64_000_000
MAX_WORKERS = 16
MIN_CHUNK_FILES = 512
"""Minimum number of small files per subprocess; starting one takes as long as decoding 2,000 of them."""
CHUNK_BYTES = 32 << 20
"""Maximum size of a chunk's files, and of its decoded pixels."""
WORKER_SCRIPT = __file__


class BadImage(ValueError):
    """The file is not a readable image; the message is the reason."""


class TooLarge(BadImage):
    """The image has more than MAX_PIXELS."""


class Decoded(NamedTuple):
    """Pixels of one image, and facts about its source."""

    pixels: NDArray[np.uint8]  # (3, size, size)
    digest: bytes  # SHA-256 of (shape, pixels) before resizing
    resized: bool
    square: bool  # before resizing
    format: str


def decode(data: bytes, size: int, fit: str = "crop") -> Decoded:
    """Decode a file's bytes and fit the image to `size` by `crop` or `squash`; raise BadImage where that fails."""
    if not data:
        raise BadImage("the file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError
            ImageOps.exif_transpose(image, in_place=True)
            return _finish(to_rgb(image), size, fit, str(image.format))
    except Image.DecompressionBombError as error:  # ours, or Pillow's own limit, which is higher
        raise TooLarge(f"more than {MAX_PIXELS:,} pixels") from error
    except Image.UnidentifiedImageError as error:
        raise BadImage("not a PNG, JPEG or WebP image") from error
    except Exception as error:  # damaged files raise anything from SyntaxError to struct.error
        raise BadImage(str(error).strip().split("\n")[0] or type(error).__name__) from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB (rules 3 and 4)."""
    if image.mode.startswith("I"):
        high = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return Image.fromarray(high).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def to_grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey levels of RGB images by ITU-R BT.601, rounded: (..., 3, H, W) -> (..., 1, H, W); equal levels are kept."""
    red, green, blue = (images[..., channel, :, :].astype(np.int32) for channel in range(3))
    grey = (299 * red + 587 * green + 114 * blue + 500) // 1000
    return grey.astype(np.uint8)[..., None, :, :]


def fit_image(image: Image.Image, size: int, fit: str = "crop") -> Image.Image:
    """Resize to `size` x `size` (rule 5); any mode, and a sliver of 64,000,000 x 1 costs no more than other images."""
    if image.size == (size, size):
        return image
    width, height = (min(image.size),) * 2 if fit == "crop" else image.size
    left, top = (image.width - width) / 2, (image.height - height) / 2
    if image.height - size > 2 * max(0, image.width - size):
        return _fit_rows(_fit_columns(image, top, height, size), left, width, size)
    return _fit_columns(_fit_rows(image, left, width, size), top, height, size)


def _fit_rows(image: Image.Image, left: float, width: int, size: int) -> Image.Image:
    """Resize every row of the part from `left` to `size` pixels."""
    return image.resize((size, image.height), Image.Resampling.BICUBIC, box=(left, 0, left + width, image.height))


def _fit_columns(image: Image.Image, top: float, height: int, size: int) -> Image.Image:
    """Resize every column of the part from `top` to `size` pixels."""
    return image.resize((image.width, size), Image.Resampling.BICUBIC, box=(0, top, image.width, top + height))


def _finish(image: Image.Image, size: int, fit: str, kind: str) -> Decoded:
    source = _channels_first(image)
    digest = hashlib.sha256(shape_bytes(source.shape) + source.tobytes()).digest()
    resized, square = image.size != (size, size), image.width == image.height
    pixels = _channels_first(fit_image(image, size, fit)) if resized else source
    return Decoded(pixels, digest, resized, square, kind)


def _channels_first(image: Image.Image) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


@dataclass
class DecodedFiles:
    """Decoded images; row i belongs to file i, and rows of the files in `bad` (index -> reason) are undefined."""

    images: NDArray[np.uint8]  # (N, 3, size, size)
    digests: NDArray[np.uint8]  # (N, 32)
    resized: NDArray[np.bool_]
    square: NDArray[np.bool_]
    formats: NDArray[np.uint8]  # index into IMAGE_FORMATS
    bad: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int, size: int) -> DecodedFiles:
        images = np.empty((count, 3, size, size), np.uint8)
        digests = np.empty((count, 32), np.uint8)
        resized, square = np.zeros((2, count), np.bool_)
        return cls(images, digests, resized, square, np.zeros(count, np.uint8))

    def store(self, index: int, result: Decoded | str) -> None:
        """Fill a row, or record the reason why the file is bad."""
        if isinstance(result, str):
            self.bad[index] = printable(result)
            return
        self.images[index], self.digests[index] = result.pixels, np.frombuffer(result.digest, np.uint8)
        self.resized[index], self.square[index] = result.resized, result.square
        self.formats[index] = IMAGE_FORMATS.index(result.format)


def decode_files(
    names: Sequence[str],
    read: Callable[[str], bytes],
    size: int,
    fit: str = "crop",
    *,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> DecodedFiles:
    """Decode the named files to (3, size, size); those that `read` refuses with DataError or that are bad are in `bad`.

    A decoder that dies, or takes more than `timeout` seconds for one image, raises DataError.
    """
    decoded, done = DecodedFiles.empty(len(names), size), 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, MAX_WORKERS)
    count = min(max(-(-len(names) // workers), MIN_CHUNK_FILES), max(CHUNK_BYTES // (3 * size**2), 1))

    def decode_chunk(chunk: range) -> int:
        """Read and decode the files of a chunk, at most about CHUNK_BYTES at a time; return their number."""
        blobs: dict[int, bytes] = {}
        total = 0
        for index in chunk:
            try:
                blobs[index] = read(names[index])
                total += len(blobs[index])
            except DataError as error:
                decoded.bad[index] = str(error)
            if blobs and (index == chunk[-1] or total > CHUNK_BYTES):
                decode_blobs(blobs)
                blobs, total = {}, 0
        return len(chunk)

    def decode_blobs(blobs: dict[int, bytes]) -> None:
        results, death = run_decoder(list(blobs.values()), size, fit, timeout)
        for index, result in zip(blobs, results, strict=False):
            decoded.store(index, result)
        if len(results) < len(blobs):
            near = printable(names[list(blobs)[len(results)]])
            raise DataError(f"{death} near {near}; repair or remove that file and start again")

    pool = ThreadPoolExecutor(workers)
    try:
        chunks = [range(start, min(start + count, len(names))) for start in range(0, len(names), count)]
        for job in as_completed([pool.submit(decode_chunk, chunk) for chunk in chunks]):
            done += job.result()
            if progress is not None:
                progress(done, len(names))
    finally:
        pool.shutdown(cancel_futures=True)
    return decoded


def run_decoder(blobs: list[bytes], size: int, fit: str, timeout: float) -> tuple[list[Decoded | str], str]:
    """Decode in a subprocess: results up to the image at which it died, if it did, and the reason."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", WORKER_SCRIPT],
        input=pickle.dumps((blobs, size, fit, timeout)),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    results: list[Decoded | str] = []
    stream = io.BytesIO(ended.stdout)
    while len(results) < len(blobs):
        try:
            result = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            break
        results.append(result if isinstance(result, str) else Decoded(*result))
    return results, _exit_reason(ended, timeout)


def _exit_reason(ended: subprocess.CompletedProcess[bytes], timeout: float) -> str:
    if ended.returncode == -signal.SIGALRM:
        return f"decoder hung (no answer in {timeout:g} s)"
    if ended.returncode < 0:
        return f"decoder died (signal {-ended.returncode})"
    last = ended.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"decoder died (exit code {ended.returncode}{''.join(': ' + printable(line) for line in last)})"


def decode_or_reason(data: bytes, size: int, fit: str) -> Decoded | str:
    """Decode, or return the reason why the image is bad."""
    try:
        return decode(data, size, fit)
    except BadImage as error:
        return str(error)[:1000]


def serve() -> None:
    """Decode the images pickled on stdin; write each result to stdout as soon as it is there, as plain pickled values.

    SIGALRM ends the process when an image takes too long; Ctrl-C is handled by the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    blobs, size, fit, timeout = pickle.load(sys.stdin.buffer)
    for data in blobs:
        signal.setitimer(signal.ITIMER_REAL, timeout)
        result = decode_or_reason(data, size, fit)
        sys.stdout.buffer.write(pickle.dumps(result if isinstance(result, str) else tuple(result)))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()
