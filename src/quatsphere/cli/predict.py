"""quatsphere predict RUN FILE...: name the classes of image files of any size, with probabilities."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def run(words: list[str]) -> int:
    """Classify image files with a trained run."""
    parser = argparse.ArgumentParser(prog="quatsphere predict", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("files", metavar="FILE", nargs="+", help="PNG, JPEG or WebP")
    parser.add_argument("--top", type=int, default=3, help="classes to name per image (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object per image")
    asked = parser.parse_args(words)
    import torch

    from quatsphere.cli.trained import open_run
    from quatsphere.data.augment import normalize

    trained = open_run(asked.run)
    config = trained.config.model
    pixels = torch.stack([read_image(Path(name), config.image_size, config.in_channels) for name in asked.files])
    mean, std = torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"])
    with torch.no_grad():
        probabilities = trained.model(normalize(pixels, mean, std)).softmax(1)
    for name, row in zip(asked.files, probabilities, strict=True):
        best = row.topk(min(asked.top, len(row)))
        answers = [
            (trained.meta["classes"][i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        if asked.json:
            print(json.dumps({"file": name, "classes": dict(answers)}))
        else:
            print(f"{name}  " + "  ".join(f"{label} {p:.3f}" for label, p in answers))
    return 0


def read_image(path: Path, size: int, channels: int) -> Any:
    """An image file as the model wants it: (C, size, size) uint8; the data room's rule for other sizes."""
    import torch

    from quatsphere.data.images import BadImage, decode
    from quatsphere.errors import DataError
    from quatsphere.files.archives import shown

    try:
        pixels = torch.as_tensor(decode(path.read_bytes(), size).pixels)
    except (OSError, BadImage) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"cannot read {shown(str(path))} ({reason}); give a PNG, JPEG or WebP file") from error
    if channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114])[:, None, None]
        return (pixels.float() * weights).sum(0, keepdim=True).round().to(torch.uint8)
    return pixels
