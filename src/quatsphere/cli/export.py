"""quatsphere export RUN --to onnx|pt2|html -o FILE: write a trained model as one file that runs without quatsphere.

ONNX and pt2 files map images with levels in [0, 1] to logits; normalisation is included. html is a page that runs a QSV
in any browser, without a network: draw a digit or show it a picture. The file is compared with the model on real images
first, and kept only if no logit differs by more than 1e-4 and every image has the same class.
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
"""Maximum number of test images on which a file is compared with its model."""
NOISE_IMAGES = 64


def run(words: list[str]) -> int:
    """Export a trained run."""
    parser = Parser(prog="quatsphere export", description=__doc__)
    add = parser.add_argument
    add_run(parser)
    add(
        "--to",
        choices=("onnx", "pt2", "html"),
        required=True,
        help="ONNX, torch.export's pt2, or a page that runs the model",
    )
    add("-o", "--output", metavar="FILE", required=True, help="file to write; its name ends in .onnx, .pt2 or .html")
    add(
        "--images",
        metavar="FILE",
        nargs="+",
        help="images or folders to verify with, instead of the test images; examples of the page",
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
    if args.to == "html":
        images, source, difference = write_live(trained, path, args.images, args.data_root)
    else:
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


def write_live(
    trained: Any, path: Path, files: list[str] | None = None, root: str | None = None
) -> tuple[Tensor, str, float]:
    """Write the page that runs a model; images of its verification, their description, difference of the logits."""
    from quatsphere.report import require_report

    require_report()
    from quatsphere.export.live import Example, check_exportable, file_examples, photo_example, write_live_page

    check_exportable(trained)
    images, source = verification_images(trained, files, root)
    examples: list[Example] = []
    if files:
        examples = file_examples(trained, image_files(files))
    elif source.endswith("noise") and trained.config.model.in_channels == 3:
        examples = [photo_example(trained)]
    return images, source, write_live_page(path, trained, images, source, examples)


def image_files(words: list[str]) -> list[str]:
    """Names of image files, from files and folders; those that cannot be read are reported together."""
    from quatsphere.cli.predict import images_in, report_bad
    from quatsphere.errors import DataError

    bad: list[DataError] = []
    names = [name for word in words for name in images_in(word, bad)]
    report_bad(bad)
    return names


def verification_images(trained: Any, files: list[str] | None, root: str | None) -> tuple[Tensor, str]:
    """Images (n, C, Y, X), uint8, and their description: named files, else test images, else noise with a note."""
    import torch

    from quatsphere.cli.console import read_dataset_of
    from quatsphere.train.predict import image_pixels

    if files:
        pixels = torch.stack([image_pixels(name, trained.config) for name in image_files(files)])
        return pixels, f"{len(pixels):,} named image{'s' * (len(pixels) > 1)}"
    try:
        test = read_dataset_of(trained, root).test.images
    except QuatsphereError as error:
        if root is not None:
            raise
        note(f"the file is verified on noise, because the run's data cannot be read ({error}); name some with --images")
        size, channels = trained.config.model.image_size, trained.config.model.in_channels
        shape = (NOISE_IMAGES, channels, size, size)
        noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return noise, f"{NOISE_IMAGES} images of noise"
    chosen = torch.linspace(0, len(test) - 1, min(len(test), TEST_IMAGES), dtype=torch.float64).long()
    return test[chosen], f"{len(chosen):,} test images of {trained.config.data.name}"
