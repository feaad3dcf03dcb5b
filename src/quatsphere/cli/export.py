"""quatsphere export RUN --to onnx|pt2 -o FILE: write a trained model as one file that runs without quatsphere.

The file takes images with levels in [0, 1] and gives logits; normalisation is inside. It is compared with the model on
real images first, and kept only if no logit differs by more than 1e-4 and every image has the same class.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run, note
from quatsphere.errors import ConfigError, QuatsphereError

if TYPE_CHECKING:
    from torch import Tensor

TEST_IMAGES = 1000
"""Test images at most on which a file is compared with its model."""
NOISE_IMAGES = 64


def run(words: list[str]) -> int:
    """Export a trained run."""
    parser = Parser(prog="quatsphere export", description=__doc__)
    add_run(parser)
    parser.add_argument("--to", choices=("onnx", "pt2"), required=True, help="ONNX, or torch.export's pt2")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="file to write, FILE.onnx or FILE.pt2")
    parser.add_argument(
        "--images", metavar="FILE", nargs="+", help="images or folders to verify with, instead of the test images"
    )
    add_data_root(parser)
    add_json(parser, "print path, images and difference as JSON")
    args = parser.parse_args(words)
    path = checked_output(args.output, args.to)
    from quatsphere.export.files import export_model, require_onnx
    from quatsphere.storage.atomic import size_text
    from quatsphere.train.load import load

    if args.to == "onnx":
        require_onnx()
    trained = load(args.run, args.checkpoint)
    images, source = verification_images(trained, args.images, args.data_root)
    difference = export_model(trained, path, args.to, images)
    size = path.stat().st_size
    if args.json:
        facts = {"path": str(path), "bytes": size, "images": len(images), "source": source, "difference": difference}
        print(json.dumps(facts))
    else:
        print(f"{path}: {size_text(size)}; verified on {source}: same classes, logits within {difference:.1e}")
    return 0


def checked_output(name: str, to: str) -> Path:
    """Path of the file to write; ConfigError if its name or folder is wrong."""
    path = Path(name)
    if path.suffix != f".{to}":
        raise ConfigError(f"-o must end in .{to} with --to {to}: got {name!r:.120}")
    if path.is_dir() or not path.parent.is_dir():
        reason = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ConfigError(f"-o {name!r:.120} {reason}; name a file in an existing folder")
    return path


def verification_images(trained: Any, files: list[str] | None, root: str | None) -> tuple[Tensor, str]:
    """Images (n, C, Y, X), uint8, and their description: named files, else test images, else noise with a note."""
    import torch

    from quatsphere.cli.console import read_dataset_of
    from quatsphere.cli.predict import images_in, report_bad
    from quatsphere.errors import DataError
    from quatsphere.train.predict import image_pixels

    if files:
        bad: list[DataError] = []
        names = [name for word in files for name in images_in(word, bad)]
        report_bad(bad)
        pixels = torch.stack([image_pixels(name, trained.config) for name in names])
        return pixels, f"{len(pixels):,} named image{'s' * (len(pixels) > 1)}"
    try:
        test = read_dataset_of(trained, root).test.images
    except QuatsphereError as error:
        if root is not None:
            raise
        note(f"the file is verified on noise, because the run's data cannot be read ({error}); or name --images FILE")
        size, channels = trained.config.model.image_size, trained.config.model.in_channels
        shape = (NOISE_IMAGES, channels, size, size)
        noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return noise, f"{NOISE_IMAGES} images of noise"
    chosen = torch.linspace(0, len(test) - 1, min(len(test), TEST_IMAGES), dtype=torch.float64).long()
    return test[chosen], f"{len(chosen):,} test images of {trained.config.data.name}"
