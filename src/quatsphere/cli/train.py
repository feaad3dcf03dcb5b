"""quatsphere train: from settings to a trained, evaluated model."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import SettingsParser, environment_settings, truth
from quatsphere.config.resolve import NONE_WORDS, Layer, flatten
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.run_folder import RunFolder, nearest_run
from quatsphere.storage.safe_yaml import read_yaml

DESCRIPTION = """\
Train a model and test it at its best validation accuracy.
Defaults, in [brackets], are the paper's.

your own photos, one folder per class:
  quatsphere train --data.root my_photos
two minutes, no download:
  quatsphere train --run-dir first-run --preset demo
CIFAR-10 on two CPU cores, ten minutes:
  quatsphere train --run-dir lite-run --preset lite --data.root cifar10.zip
fine-tune a trained model ('quatsphere models' lists some) on your own photos:
  quatsphere train --init cifar10-qsv --data.root my_photos
resume a run where it stopped:
  quatsphere train --run-dir lite-run --resume
"""


def make_parser() -> SettingsParser:
    """Return the parser: options for starting and resuming a run, and all settings."""
    parser = SettingsParser(
        prog="quatsphere train",
        usage="quatsphere train [--run-dir DIR] [--preset NAME] [-c FILE] [--GROUP.FIELD X]",
        description=DESCRIPTION,
        show_fields=True,
    )
    add = parser.add_argument
    flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": truth, "metavar": "true|false"}
    add("--run-dir", metavar="DIR", help="folder of the run: settings, metrics, checkpoints [own images: runs/NAME]")
    add(
        "--init", dest="train.init", default=argparse.SUPPRESS, metavar="MODEL",
        help="start from a trained model: a name, model folder or run; its settings for model.* are the defaults",
    )  # fmt: skip
    add("--resume", **flag, help="continue where the run stopped; if settings are given, start it if it does not exist")
    add(
        "--deterministic", dest="train.deterministic", nargs="?", const="true", default=argparse.SUPPRESS,
        metavar="true|false", help="same as --train.deterministic true",
    )  # fmt: skip
    add("--accept-data-change", **flag, help="resume although the data has another fingerprint")
    add("--repair", **flag, help="renormalise damaged quaternions of a checkpoint, and list them")
    add("--json", **flag, help="print the result as JSON on stdout")
    return parser


def run(words: list[str]) -> int:
    """Train a new run or resume one."""
    args = make_parser().parse_config(words, lowest_layer)
    args.run_dir = args.run_dir or own_run_folder(args)
    from quatsphere.cli.console import LiveReporter
    from quatsphere.train import ResumeOptions, train
    from quatsphere.train.run import require_same_run

    folder = RunFolder(args.run_dir)
    if args.resume and folder.config.is_file():
        require_same_run(args.config, folder)
    elif args.resume and not args.sources:
        path = Path(args.run_dir)
        near = nearest_run(path)  # without a preset a new run would have the paper's settings by mistake
        hint = "" if near is None else f"did you mean {near}? "
        start = "a new run needs --preset NAME or -c FILE"
        raise CheckpointError(f"no run to resume in {path} (looked for config.yaml); {hint}{start}")
    options = ResumeOptions(args.resume, args.accept_data_change, args.repair)
    result = train(args.config, args.run_dir, options, LiveReporter())
    if result and args.json:
        print(json.dumps(result))
    elif result:
        print(f"test accuracy {result['test_accuracy']:.4f} (val {result['val_accuracy']:.4f}, {args.run_dir})")
        run = shlex.quote(args.run_dir)
        views = [f"quatsphere view {run} --open"] if args.config.model.name in ("qsv", "attention") else []
        commands = [f"quatsphere report {run} --open", *views, f"quatsphere predict {run} IMAGE"]
        print("\n".join(("next:", *(f"  {command}" for command in commands))))
    return 0


def lowest_layer(args: argparse.Namespace) -> Layer | None:
    """Settings below all others: those of the run to resume, of the model to start from, or those for own images."""
    path = RunFolder(args.run_dir).config if args.run_dir and args.resume else None
    if path and path.is_file():
        return Layer(str(path), flatten(read_yaml(path), str(path)))
    if args.help:
        return None
    given = {**environment_settings(), **{key: value for key, value in vars(args).items() if "." in key}}
    given = {key: value for key, value in given.items() if value.lower() not in NONE_WORDS}
    settings = {} if args.preset or args.config else own_images(given)
    if given.get("train.init"):
        from quatsphere.train.load import initial_settings

        start = initial_settings(given["train.init"])
        settings = {key: value for key, value in settings.items() if not key.startswith("model.")} | start
    return Layer("images and initial model", settings)


def own_images(given: dict[str, Any]) -> dict[str, Any]:
    """Settings for class folders that `--data.root` names, which follow from the images; {} for other data."""
    root, name = given.get("data.root"), given.get("data.name", "folder")
    if root is None or name != "folder":
        return {}
    from quatsphere.cli.console import note
    from quatsphere.config.presets import own_image_settings, side_for
    from quatsphere.data.image_folder import survey_images

    found = survey_images(root)
    typed = str(given.get("data.image_size", ""))
    side = int(typed) if typed.isdecimal() and int(typed) > 0 else side_for(found.median_side)
    colours = "grey" if found.grey else "colour"
    note(
        f"{found.images:,} {colours} images in {found.classes} classes, shorter side {found.median_side} pixels "
        f"(median): trained at {side} x {side}; --data.image_size changes it"
    )
    return own_image_settings(side, found.images, 1 if found.grey else 3)


def own_run_folder(args: argparse.Namespace) -> str:
    """New folder in `runs/` that is named after the folder of the images."""
    root = args.config.data.root
    if root is None or args.config.data.name != "folder":
        raise ConfigError("train needs a folder for the run; add --run-dir DIR")
    from quatsphere.storage.run_folder import free_folder

    return free_folder(f"runs/{Path(root).absolute().name.removesuffix('.zip')}")
