"""The command: verbs, one-line errors, exit codes."""

from __future__ import annotations

import difflib
import errno
import io
import os
import re
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path

import quatsphere
from quatsphere.cli.compile_notice import CompileNotice
from quatsphere.errors import ConfigError, QuatsphereError, ResourceError
from quatsphere.runtime import compilation, disable_malloc_trimming

VERBS = {
    "train": "train a model from a preset, a YAML file or options; resume it",
    "evaluate": "accuracy, per-class accuracy, confusion and calibration of a run",
    "diagnose": "what a run looks like inside: routing, field, vertices, cost, beside the paper's values",
    "figures": "the paper's figures and more, drawn from runs and results",
    "predict": "name the classes of image files with a trained run",
    "data": "get, verify or preview a data set",
    "study": "run the paper's tables, check its claims, report",
    "info": "this machine, the kernel that runs and why, a model's parameters",
    "bench": "speed, memory and scaling on this machine, beside the matched baseline",
    "report": "one page about a run or a study: numbers, figures, claims, predictions",
    "view": "a page to turn the shells of a trained run and look at every vertex",
    "demo": "train on the embedded digits and look at the result",
}


def main(words: list[str] | None = None) -> int:
    """Run a verb; every failure is one line on stderr and an exit code."""
    if words is None:
        disable_malloc_trimming()
        words = sys.argv[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not be text
    compilation.watch = CompileNotice()
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return dispatch(words)
    except QuatsphereError as error:
        return _fail(error, error.exit_code, debug)
    except KeyboardInterrupt as error:
        return _fail(QuatsphereError("stopped at once; what was saved before is intact"), 130, debug, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        told = translate(error)
        return _fail(told, told.exit_code, debug, error)


def translate(error: Exception) -> QuatsphereError:
    """Memory and disk in our words; anything else is a mistake of ours, and says where."""
    text = " ".join(str(error).split())[:120]
    if isinstance(error, MemoryError) or re.search(r"out of memory|allocate", str(error)):
        return ResourceError(f"out of memory ({text or 'the system gave no more'}); use a smaller --train.batch_size")
    if isinstance(error, OSError):
        kind = ConfigError if error.errno == errno.ENAMETOOLONG else ResourceError
        place = "" if error.filename is None else f"{str(error.filename)!r:.120}: "
        return kind(f"cannot read or write ({place}{error.strerror or text}); check the path and the disk")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return QuatsphereError(f"{type(error).__name__}: {text} ({where}); this is a bug: please report it with --debug")


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
    print("\n'quatsphere VERB --help' explains every option; --version; --debug shows tracebacks.")
    print("Start with 'quatsphere demo', then 'quatsphere train --preset lite --run-dir DIR'.")


def _fail(error: Exception, code: int, debug: bool, cause: BaseException | None = None) -> int:
    if debug:
        raise cause or error
    print(f"quatsphere: error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return code
