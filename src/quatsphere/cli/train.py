"""quatsphere train: from settings to a trained, evaluated model."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import SettingsParser, truth
from quatsphere.config.resolve import Layer, flatten
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.run_folder import RunFolder, nearest_run
from quatsphere.storage.safe_yaml import read_yaml

DESCRIPTION = """\
Train a model and test it at its best validation accuracy.
[Brackets] hold the defaults, which are the paper's.

two minutes, no download:
  quatsphere train --run-dir first-run --preset demo
what two cores train on CIFAR-10 in ten minutes:
  quatsphere train --run-dir lite-run --preset lite --data.root cifar10.zip
go on where it stopped:
  quatsphere train --run-dir lite-run --resume
"""


def make_parser() -> SettingsParser:
    """Parser with the options of a start beside the settings."""
    parser = SettingsParser(
        prog="quatsphere train",
        usage="quatsphere train --run-dir DIR [--preset NAME] [-c FILE] [--GROUP.FIELD X]",
        description=DESCRIPTION,
        show_fields=True,
    )
    flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": truth, "metavar": "true|false"}
    parser.add_argument("--run-dir", metavar="DIR", help="folder of the run: settings, metrics, checkpoints")
    parser.add_argument(
        "--resume", **flag, help="go on where the run stopped; with settings, start if it has not begun"
    )
    parser.add_argument(
        "--deterministic", dest="train.deterministic", nargs="?", const="true", default=argparse.SUPPRESS,
        metavar="true|false", help="short for --train.deterministic true",
    )  # fmt: skip
    parser.add_argument("--accept-data-change", **flag, help="resume although the data has another fingerprint")
    parser.add_argument("--repair", **flag, help="renormalise damaged quaternions of a checkpoint, and list them")
    parser.add_argument("--json", **flag, help="print the result as JSON on stdout")
    return parser


def run(words: list[str]) -> int:
    """Train a new run or resume one."""
    args = make_parser().parse_config(words, resumed_settings)
    if not args.run_dir:
        raise ConfigError("train needs a folder for the run; add --run-dir DIR")
    from quatsphere.cli.console import LiveReporter
    from quatsphere.train import ResumeOptions, train
    from quatsphere.train.run import require_same_run

    folder = RunFolder(args.run_dir)
    if args.resume and folder.config.is_file():
        require_same_run(args.config, folder)
    elif args.resume and not args.sources:
        raise nothing_to_resume(Path(args.run_dir))
    options = ResumeOptions(args.resume, args.accept_data_change, args.repair)
    result = train(args.config, args.run_dir, options, LiveReporter())
    if result and args.json:
        print(json.dumps(result))
    elif result:
        print(f"test accuracy {result['test_accuracy']:.4f} (val {result['val_accuracy']:.4f}, {args.run_dir})")
        print_next_commands(args.run_dir, has_shells=args.config.model.name in ("qsv", "attention"))
    return 0


def print_next_commands(run_dir: str, has_shells: bool) -> None:
    """Print the commands that show and use a finished run."""
    run = shlex.quote(run_dir)
    views = [f"quatsphere view {run} --open"] if has_shells else []
    commands = [f"quatsphere report {run} --open", *views, f"quatsphere predict {run} IMAGE"]
    print("\n".join(("next:", *(f"  {command}" for command in commands))))


def resumed_settings(args: argparse.Namespace) -> Layer | None:
    """Settings of the run that is to be resumed, if it exists."""
    path = RunFolder(args.run_dir).config if args.run_dir and args.resume else None
    return Layer(str(path), flatten(read_yaml(path), str(path))) if path and path.is_file() else None


def nothing_to_resume(path: Path) -> CheckpointError:
    """Error for a run that does not exist; without a preset it would start with the paper's settings by mistake."""
    near = nearest_run(path)
    hint = "" if near is None else f"did you mean {near}? "
    return CheckpointError(
        f"no run to resume in {path} (looked for config.yaml); {hint}a new run needs --preset NAME or -c FILE"
    )
