"""quatsphere train: from settings to a trained, evaluated model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from quatsphere.cli.options import Options
from quatsphere.cli.parser import Layer, flatten, resolve
from quatsphere.config import RunConfig
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.run_folder import RunFolder, nearest_run
from quatsphere.storage.safe_yaml import read_yaml


def add_options(parser: ArgumentParser) -> None:
    """What a start may be told beside the configuration."""
    flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": bool}
    parser.add_argument("--run-dir", type=str, metavar="DIR", help="folder of the run: settings, metrics, checkpoints")
    parser.add_argument(
        "--resume", **flag, help="go on where the run stopped; with settings, start if it has not begun"
    )
    parser.add_argument("--deterministic", **flag, help="short for --train.deterministic true")
    parser.add_argument("--accept-data-change", **flag, help="resume although the data has another fingerprint")
    parser.add_argument("--repair", **flag, help="renormalise damaged quaternions of a checkpoint, and say which")
    parser.add_argument("--json", **flag, help="print the result as JSON on stdout")


def run(words: list[str]) -> int:
    """Train as the words say."""
    base = stored_settings(words)
    asked = resolve("train", words, add_options, base)
    config = chosen_config(asked)
    if asked.print_config:
        from quatsphere.train.provenance import config_to_dict

        print(yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True), end="")
        return 0
    if not asked.run_dir:
        raise ConfigError("train needs a folder for the run; add --run-dir DIR")
    from quatsphere.cli.console import LiveReporter
    from quatsphere.train import ResumeOptions, train
    from quatsphere.train.run import require_same_run

    if base is not None:
        require_same_run(config, RunFolder(asked.run_dir))
    elif asked.resume and not asked.sources:
        raise nothing_to_resume(Path(asked.run_dir))
    options = ResumeOptions(asked.resume, asked.accept_data_change, asked.repair)
    result = train(config, asked.run_dir, options, LiveReporter())
    if result and asked.json:
        print(json.dumps(result))
    elif result:
        print(f"test accuracy {result['test_accuracy']:.4f} (val {result['val_accuracy']:.4f}, {asked.run_dir})")
    return 0


def chosen_config(asked: Namespace) -> RunConfig:
    """The configuration with what the short flags say."""
    config: RunConfig = asked.config
    if not asked.deterministic:
        return config
    return dataclasses.replace(config, train=dataclasses.replace(config.train, deterministic=True))


def nothing_to_resume(path: Path) -> CheckpointError:
    """The error for a run that is not there; without a preset it would start as the paper's, by mistake."""
    near = nearest_run(path)
    hint = "" if near is None else f"did you mean {near}? "
    return CheckpointError(
        f"no run to resume in {path} (looked for config.yaml); {hint}a new run needs --preset NAME or -c FILE"
    )


def stored_settings(words: list[str]) -> Layer | None:
    """The configuration of the run that is to be resumed, if there is one."""
    parser = Options(add_help=False)
    parser.add_argument("--run-dir")
    parser.add_argument("--resume", nargs="?", const="true", default="false")
    asked, _ = parser.parse_known_args(words)
    if not asked.run_dir or asked.resume.lower() not in ("true", "yes"):
        return None
    path = RunFolder(asked.run_dir).config
    return Layer(str(path), flatten(read_yaml(path), str(path))) if path.is_file() else None
