"""quatsphere predict RUN FILE...: name the classes of image files of any size, with probabilities.

Files that cannot be read are named after the answers for the others, and the exit code is then 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_json, add_run, at_least
from quatsphere.config import RunConfig
from quatsphere.errors import DataError

AT_ONCE = 64
"""Images per forward pass."""


def run(words: list[str]) -> int:
    """Classify image files with a trained run."""
    parser = Parser(prog="quatsphere predict", description=__doc__)
    add_run(parser)
    parser.add_argument("files", metavar="FILE", nargs="+", help="PNG, JPEG or WebP, or a folder of them")
    parser.add_argument("--top", type=at_least(1), metavar="N", default=3, help="classes per image (default 3)")
    add_json(parser, "one JSON object per image")
    asked = parser.parse_args(words)
    from quatsphere.train.load import open_run

    trained = open_run(asked.run, asked.checkpoint)
    bad: list[DataError] = []
    names = [name for word in asked.files for name in images_in(word, bad)]
    for start in range(0, len(names), AT_ONCE):
        for name, answers in classify(trained, names[start : start + AT_ONCE], asked.top, bad):
            shown = "  ".join(f"{label} {p:.3f}" for label, p in answers.items())
            print(json.dumps({"file": name, "classes": answers}) if asked.json else f"{name}  {shown}")
    return report_bad(bad)


def images_in(word: str, bad: list[DataError]) -> list[str]:
    """The file itself, or every image below a folder by its name; a folder without any is added to `bad`."""
    from quatsphere.cli.console import note
    from quatsphere.data.archives import FolderTree
    from quatsphere.data.image_folder import is_hidden, is_image
    from quatsphere.errors import printable

    if not Path(word).is_dir():
        return [word]
    files = sorted(name for name in FolderTree(Path(word)).names if not name.endswith("/") and not is_hidden(name))
    images = [str(Path(word) / name) for name in files if is_image(name)]
    if not images:
        bad.append(DataError(f"no PNG, JPEG or WebP images in {printable(word)}; name image files or a folder of them"))
    elif len(files) > len(images):
        note(f"{len(files) - len(images)} of {len(files)} files in {printable(word)} ignored: no PNG, JPEG or WebP")
    return images


def report_bad(bad: list[DataError]) -> int:
    """Raise the one error there is; of several, note each and raise their number."""
    from quatsphere.cli.console import note

    if len(bad) == 1:
        raise bad[0]
    for error in bad:
        note(str(error))
    if bad:
        raise DataError(f"{len(bad)} images could not be read, see above; the others are answered")
    return 0


def classify(trained: Any, names: list[str], top: int, bad: list[DataError]) -> list[tuple[str, dict[str, float]]]:
    """(file, its `top` classes with probabilities, the likeliest first); errors of other files are added to `bad`."""
    import torch

    from quatsphere.data.augment import normalize

    meta = trained.meta
    read: list[tuple[str, Any]] = []
    for name in names:
        try:
            read.append((name, read_image(Path(name), trained.config)))
        except DataError as error:
            bad.append(error)
    if not read:
        return []
    images = torch.stack([pixels for _, pixels in read])
    with torch.no_grad():
        logits = trained.model(normalize(images, torch.tensor(meta["mean"]), torch.tensor(meta["std"])))
    best = logits.softmax(1).topk(min(top, logits.shape[1]))
    return [
        (name, {meta["classes"][index]: p for index, p in zip(indices, values, strict=True)})
        for (name, _), indices, values in zip(read, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def read_image(path: Path, config: RunConfig) -> Any:
    """An image file as the run's model wants it, (C, size, size) uint8, fitted as its training images were."""
    import torch

    from quatsphere.data.decode import TooLarge, decode
    from quatsphere.errors import printable
    from quatsphere.storage.atomic import read_regular

    try:
        pixels = torch.as_tensor(decode(read_regular(path, 1 << 30), config.model.image_size, config.data.fit).pixels)
    except (OSError, ValueError) as error:  # BadImage is a ValueError, and so is a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        cure = "resize it" if isinstance(error, TooLarge) else "give a PNG, JPEG or WebP file"
        raise DataError(f"cannot read {printable(str(path))} ({reason}); {cure}") from error
    if config.model.in_channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        return (pixels.float() * weights).sum(0, keepdim=True).round().to(torch.uint8)
    return pixels
