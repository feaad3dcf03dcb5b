"""quatsphere train: from settings to a trained, evaluated model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from quatsphere.cli.console import LiveReporter
from quatsphere.cli.settings import Layer, flatten, resolve
from quatsphere.errors import ConfigError
from quatsphere.files.run_folder import RunFolder
from quatsphere.files.safe_yaml import read_yaml


def add_options(parser: ArgumentParser) -> None:
    """What a start may be told beside the configuration."""
    flag: dict[str, Any] = {"nargs": "?", "const": True, "default": False, "type": bool}
    parser.add_argument("--run-dir", type=str, help="folder of the run: config, metrics, checkpoints, result")
    parser.add_argument("--resume", **flag, help="go on where the run stopped; start if it has not begun")
    parser.add_argument("--deterministic", **flag, help="short for --train.deterministic true")
    parser.add_argument("--accept-data-change", **flag, help="resume although the data has another fingerprint")
    parser.add_argument("--repair", **flag, help="renormalise damaged quaternions of a checkpoint, and say which")
    parser.add_argument("--json", **flag, help="print the result as JSON on stdout")


def run(words: list[str]) -> int:
    """Train as the words say."""
    base = stored_settings(words)
    if any(word == "--deterministic" or word == "--deterministic=true" for word in words):
        words = [*words, "--train.deterministic=true"]
    asked = resolve("train", words, add_options, base)
    if asked.print_config:
        from quatsphere.train.identity import config_to_dict

        print(yaml.safe_dump(config_to_dict(asked.config), sort_keys=False), end="")
        return 0
    if not asked.run_dir:
        raise ConfigError("train needs a folder for the run; add --run-dir DIR")
    from quatsphere.train import Choices, train
    from quatsphere.train.run import require_same_run

    folder = RunFolder(asked.run_dir)
    if base is not None:
        require_same_run(asked.config, folder)
    choices = Choices(asked.resume, asked.accept_data_change, asked.repair)
    result = train(asked.config, asked.run_dir, choices, LiveReporter())
    if result and asked.json:
        print(json.dumps(result))
    elif result:
        print(f"test accuracy {result['test_accuracy']:.4f} (val {result['val_accuracy']:.4f}, {asked.run_dir})")
    return 0


def stored_settings(words: list[str]) -> Layer | None:
    """The configuration of the run that is to be resumed, if there is one."""
    joined = dict(zip(words, [*words[1:], ""], strict=False))
    joined |= dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    wanted = any(word in ("--resume", "--resume=true") for word in words) and joined.get("--resume") != "false"
    path = RunFolder(joined.get("--run-dir", "")).config
    if not wanted or not Path(path).is_file():
        return None
    return Layer(str(path), flatten(read_yaml(path), str(path)))
