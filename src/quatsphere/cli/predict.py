"""quatsphere predict RUN FILE...: name the classes of image files of any size, with probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quatsphere.cli.options import Options, at_least

AT_ONCE = 64
"""Images per forward pass."""


def run(words: list[str]) -> int:
    """Classify image files with a trained run."""
    parser = Options(prog="quatsphere predict", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("files", metavar="FILE", nargs="+", help="PNG, JPEG or WebP")
    parser.add_argument("--top", type=at_least(1), metavar="N", default=3, help="classes per image (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object per image")
    asked = parser.parse_args(words)
    from quatsphere.cli.trained import open_run

    trained = open_run(asked.run)
    for start in range(0, len(asked.files), AT_ONCE):
        names = asked.files[start : start + AT_ONCE]
        for name, answers in zip(names, classify(trained, names, asked.top), strict=True):
            shown = "  ".join(f"{label} {p:.3f}" for label, p in answers.items())
            print(json.dumps({"file": name, "classes": answers}) if asked.json else f"{name}  {shown}")
    return 0


def classify(trained: Any, names: list[str], top: int) -> list[dict[str, float]]:
    """The `top` classes of each file with their probabilities, the likeliest first."""
    import torch

    from quatsphere.data.augment import normalize

    config, meta = trained.config.model, trained.meta
    pixels = torch.stack([read_image(Path(name), config.image_size, config.in_channels) for name in names])
    with torch.no_grad():
        logits = trained.model(normalize(pixels, torch.tensor(meta["mean"]), torch.tensor(meta["std"])))
    best = logits.softmax(1).topk(min(top, logits.shape[1]))
    return [
        {meta["classes"][index]: p for index, p in zip(indices, values, strict=True)}
        for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def read_image(path: Path, size: int, channels: int) -> Any:
    """An image file as the model wants it: (C, size, size) uint8; the data room's rule for other sizes."""
    import torch

    from quatsphere.data.images import decode
    from quatsphere.errors import DataError
    from quatsphere.files.archives import shown
    from quatsphere.files.reading import read_regular

    try:
        pixels = torch.as_tensor(decode(read_regular(path, 1 << 30), size).pixels)
    except (OSError, ValueError) as error:  # BadImage is a ValueError, and so is a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"cannot read {shown(str(path))} ({reason}); give a PNG, JPEG or WebP file") from error
    if channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        return (pixels.float() * weights).sum(0, keepdim=True).round().to(torch.uint8)
    return pixels
