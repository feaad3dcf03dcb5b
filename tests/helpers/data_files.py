"""Small data files in every container that the readers accept."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def noise_image(seed: int, shape: tuple[int, ...] = (8, 8, 3), kind: str = "PNG") -> bytes:
    """An image file of noise, the same for the same seed."""
    return save_image(Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)), kind)


def save_image(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG file with a header of this size and no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    empty = b"\0\0\0\0IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + struct.pack(">I", zlib.crc32(header)) + empty


def class_folders(train: int = 6, test: int = 2, classes: str = "abc") -> dict[str, bytes]:
    """Noise images of every class: `train/a/0.png` -> bytes."""
    files = {}
    for label, name in enumerate(classes):
        files |= {f"train/{name}/{i}.png": noise_image(100 * label + i) for i in range(train)}
        files |= {f"test/{name}/{i}.png": noise_image(100 * label + 50 + i) for i in range(test)}
    return files


def encode_idx(array: np.ndarray) -> bytes:
    """An IDX file of unsigned bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
