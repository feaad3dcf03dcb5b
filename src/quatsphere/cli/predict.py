"""quatsphere predict FILE... --model MODEL: classify image files of any size, with probabilities.

MODEL is a name that 'quatsphere models' lists, a model folder or a run; 'quatsphere predict RUN FILE...' is the same.

Files that cannot be read are listed after the results of the others, and the exit code is then 3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_checkpoint, add_json, at_least
from quatsphere.errors import ConfigError, DataError

FILES_AT_ONCE = 64
"""Number of files that are read and classified at a time."""


def run(words: list[str]) -> int:
    """Classify image files with a trained model."""
    parser = Parser(prog="quatsphere predict", description=__doc__)
    parser.add_argument("files", metavar="FILE", nargs="+", help="PNG, JPEG or WebP, or a folder of them")
    parser.add_argument("--model", metavar="MODEL", help="name, model folder or run [the first word]")
    add_checkpoint(parser)
    parser.add_argument("--top", type=at_least(1), metavar="N", default=3, help="classes per image (default 3)")
    add_json(parser, "one JSON object per image")
    args = parser.parse_args(words)
    if args.model is None and len(args.files) == 1:
        raise ConfigError("predict needs a model and image files; add --model NAME ('quatsphere models' lists them)")
    from quatsphere.train.load import load

    trained = load(args.files.pop(0) if args.model is None else args.model, args.checkpoint)
    bad: list[DataError] = []
    names = [name for word in args.files for name in images_in(word, bad)]
    for start in range(0, len(names), FILES_AT_ONCE):
        for name, answers in classify(trained, names[start : start + FILES_AT_ONCE], args.top, bad):
            shown = "  ".join(f"{label} {p:.3f}" for label, p in answers.items())
            print(json.dumps({"file": name, "classes": answers}) if args.json else f"{name}  {shown}")
    return report_bad(bad)


def images_in(word: str, bad: list[DataError]) -> list[str]:
    """Return the file itself, or every image below a folder; a folder without images is added to `bad`."""
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
    """Raise a single error; of several, print each as a note and raise their number."""
    from quatsphere.cli.console import note

    if len(bad) == 1:
        raise bad[0]
    for error in bad:
        note(str(error))
    if bad:
        raise DataError(f"{len(bad)} images could not be read, see above; the others were classified")
    return 0


def classify(trained: Any, names: list[str], top: int, bad: list[DataError]) -> list[tuple[str, dict[str, float]]]:
    """Return (file, its `top` classes with probabilities, likeliest first); unreadable files are added to `bad`."""
    from quatsphere.train.predict import image_pixels

    readable: dict[str, Any] = {}
    for name in names:
        try:
            readable[name] = image_pixels(name, trained.config)
        except DataError as error:
            bad.append(error)
    predictions = trained.predict(list(readable.values())).top(top) if readable else []
    answers = dict(zip(readable, predictions, strict=True))
    return [(name, answers[name]) for name in names if name in answers]
