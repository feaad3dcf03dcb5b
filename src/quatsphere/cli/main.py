"""Entry point of the command: verbs, one-line errors, exit codes."""

from __future__ import annotations

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
from quatsphere import runtime
from quatsphere.errors import ConfigError, QuatsphereError, ResourceError, did_you_mean
from quatsphere.runtime import compilation, disable_malloc_trimming, load_plugins, open_streams, print_stderr

VERBS = {
    "train": "train a model from a preset, a YAML file or options; resume it",
    "evaluate": "compute accuracy, per-class accuracy, confusion and calibration of a run",
    "diagnose": "measure routing, field, vertices and cost of a run, beside the paper's values",
    "figures": "draw the paper's figures and others from runs and results",
    "predict": "classify image files with a trained model",
    "export": "write a trained model as a verified ONNX or pt2 file or as an HTML page",
    "models": "list the trained models that come with the package",
    "pack": "make a model folder from a run: weights, settings, model card",
    "data": "download, verify or preview a data set; manage the cache",
    "study": "train the rows of the paper's tables, test its claims",
    "info": "describe this machine, the kernel it uses and why, and a model's parameters",
    "bench": "measure speed, memory and scaling on this machine, beside the matched baseline",
    "report": "write a page about a run or a study: numbers, figures, claims, predictions",
    "view": "write a page with a 3-D view of the shells, to inspect every vertex",
    "demo": "train on the embedded digits and write pages about the result",
}


def main(words: list[str] | None = None) -> int:
    """Run a verb; every failure is one line on stderr and an exit code."""
    if words is None:
        disable_malloc_trimming()
        runtime.end_process = _end_process
        words = sys.argv[1:]
    open_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name need not be text
    compilation.watch = watch_compilation
    debug = "--debug" in words
    try:
        plugins, words = take_plugins([word for word in words if word != "--debug"])
        load_plugins(plugins)
        return dispatch(words)
    except QuatsphereError as error:
        return _fail(error, error.exit_code, debug)
    except KeyboardInterrupt as error:
        return _fail(QuatsphereError("stopped at once; what was saved before is intact"), 130, debug, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        translated = translate(error)
        return _fail(translated, translated.exit_code, debug, error)


def watch_compilation(begins: bool) -> None:
    """Show that kernels are compiled; the console is loaded when the first compilation begins."""
    from quatsphere.cli.console import compile_notice

    compile_notice(begins)


def _end_process(error: QuatsphereError) -> None:
    """Remove the bars from the terminal, print an error and end the process, whatever its threads are doing."""
    from quatsphere.cli.console import remove_bars

    remove_bars()
    os._exit(_fail(error, error.exit_code, debug=False))


def take_plugins(words: list[str]) -> tuple[list[str], list[str]]:
    """Files named by `--plugin FILE`, and the words without them."""
    plugins: list[str] = []
    others: list[str] = []
    waiting = words[::-1]
    while waiting:
        word, equals, path = waiting.pop().partition("=")
        if word != "--plugin":
            others.append(f"{word}{equals}{path}")
        elif equals or waiting:
            plugins.append(path if equals else waiting.pop())
        else:
            raise ConfigError("--plugin needs a Python file, e.g. --plugin my_routing.py")
    return plugins, others


def translate(error: Exception) -> QuatsphereError:
    """Describe failures of memory and disk; any other error is a bug, reported with its location in the code."""
    text = " ".join(str(error).split())[:120]
    if isinstance(error, MemoryError) or re.search(r"out of memory|allocate", str(error)):
        return ResourceError(f"out of memory ({text or 'the system gave no more'}); use a smaller --train.batch_size")
    if isinstance(error, OSError):
        kind = ConfigError if error.errno == errno.ENAMETOOLONG else ResourceError
        path = "" if error.filename is None else f"{str(error.filename)!r:.120}: "
        return kind(f"cannot read or write ({path}{error.strerror or text}); check the path and the disk")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return QuatsphereError(f"{type(error).__name__}: {text} ({where}); this is a bug: please report it with --debug")


def dispatch(words: list[str]) -> int:
    """Run the verb that the first word names."""
    if not words or words[0] in ("-h", "--help", "help"):
        print_help()
        return 0
    if words[0] == "--version":
        print(f"quatsphere {quatsphere.__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS) or f"; choose one of {', '.join(VERBS)}"
        raise ConfigError(f"unknown verb {verb!r}{hint}")
    try:
        return int(import_module(f"quatsphere.cli.{verb}").run(rest))
    except SystemExit as stop:
        return int(stop.code or 0)


def print_help() -> None:
    """Print the verbs and the options that all of them share."""
    print("quatsphere: train, compare and inspect Quat-Sphere-Vision\n\nusage: quatsphere VERB [options]\n")
    for verb, text in VERBS.items():
        print(f"  {verb:<10} {text}")
    print("\n'quatsphere VERB --help' explains every option; --version; --debug shows tracebacks.")
    print("--plugin FILE.py imports a file of yours first, which can register a routing, a transport or a data set.")
    print("Start with 'quatsphere demo', then 'quatsphere train --preset lite --run-dir DIR'.")


def _fail(error: Exception, code: int, debug: bool, cause: BaseException | None = None) -> int:
    if debug:
        raise cause or error
    for line in getattr(error, "__notes__", ()):
        print_stderr(f"quatsphere: note: {' '.join(line.split())}")
    print_stderr(f"quatsphere: error: {' '.join(str(error).split())}")
    return code
