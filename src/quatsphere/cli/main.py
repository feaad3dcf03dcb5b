"""The command: verbs, one-line errors, exit codes."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from importlib import import_module

import quatsphere
from quatsphere.errors import ConfigError, QuatsphereError, ResourceError

VERBS = {
    "train": "train a model from a preset, a YAML file or options; resume it",
    "evaluate": "accuracy, per-class accuracy, confusion and calibration of a run",
    "predict": "name the classes of image files with a trained run",
    "data": "get, verify or preview a data set",
    "info": "this machine, the kernel that runs and why, a model's parameters",
    "demo": "train on the embedded digits and look at the result",
}


def main(words: list[str] | None = None) -> int:
    """Run a verb; every failure is one line on stderr and an exit code."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return dispatch(words)
    except QuatsphereError as error:
        return _fail(error, error.exit_code, debug)
    except KeyboardInterrupt as error:
        return _fail(QuatsphereError("stopped at once; the last checkpoint is intact"), 130, debug, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error).lower():
            text = f"out of memory ({str(error).splitlines()[0][:100] if str(error) else 'the system gave no more'})"
            return _fail(ResourceError(f"{text}; use a smaller --train.batch_size"), 6, debug, error)
        raise


def dispatch(words: list[str]) -> int:
    """The verb's own `run`."""
    if not words or words[0] in ("-h", "--help", "help"):
        print_help()
        return 0
    if words[0] == "--version":
        print(f"quatsphere {quatsphere.__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(VERBS)}"
        raise ConfigError(f"unknown verb {verb!r}; {hint}")
    try:
        return int(import_module(f"quatsphere.cli.{verb}").run(rest))
    except SystemExit as stop:
        return int(stop.code or 0)


def print_help() -> None:
    """The verbs, and how to learn more."""
    print("quatsphere: Quat-Sphere-Vision, trained, compared and looked into\n\nusage: quatsphere VERB [options]\n")
    for verb, text in VERBS.items():
        print(f"  {verb:<10} {text}")
    print("\n'quatsphere VERB --help' explains every option; --debug shows tracebacks.")
    print("Start with 'quatsphere demo', then 'quatsphere train --preset lite --run-dir DIR'.")


def _fail(error: Exception, code: int, debug: bool, cause: BaseException | None = None) -> int:
    if debug:
        raise cause or error
    print(f"quatsphere: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return code
