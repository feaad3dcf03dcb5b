"""Size of the source tree, public names defined twice, and the files to open for four tasks.

    python docs/structure.py                 # files, lines, names and the four tasks, as Markdown tables
    python docs/structure.py --no-tasks      # without running anything
    python docs/structure.py --source OLD/src/quatsphere   # the same of another checkout

Each task is run and recorded. A file runs if a function of it runs after its import (functions compiled by Numba count
through the names that call them) or if a constant of it is read by a function that runs; re-exporting a name does not
count. To follow a task one opens the files of its own packages that run, and the files of other packages that these
call directly or read a constant of. Indirect calls are behind an interface and do not count. A training step
is counted twice: with the kernels among its own packages, and up to the kernels' interface.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "quatsphere"
TASKS: dict[str, tuple[int, tuple[str, ...]]] = {
    "training step": (30, ("train", "optim", "models", "nn", "kernels")),
    "training step, up to the kernels' interface": (30, ("train", "optim", "models", "nn")),
    "train": (45, ("cli", "config", "data", "storage", "train", "files", "presets", "rules")),
    "study claims": (19, ("cli", "study")),
    "view": (18, ("cli", "report")),
}
"""task -> largest number of files wanted, its own packages (`files`, `presets`, `rules`: names of older commits).

Behind a comma: another count of the same run."""


def public_definitions(source: Path) -> dict[str, list[str]]:
    """Public top-level functions, classes and constants -> the modules that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        names: set[str] = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
        for name in names:
            if not name.startswith("_"):
                found[name].append(path.relative_to(source).as_posix())
    return found


def defined_twice(source: Path) -> dict[str, list[str]]:
    """Public names that two or more modules define."""
    return {name: where for name, where in sorted(public_definitions(source).items()) if len(where) > 1}


def sizes(source: Path) -> dict[str, float]:
    """Number of files and lines, median and longest file."""
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in source.rglob("*.py")]
    return {
        "files": len(lines),
        "lines": sum(lines),
        "median lines": statistics.median(lines),
        "longest file": max(lines),
        "files below 50 lines": sum(count < 50 for count in lines),
    }


class Recorder:
    """Code objects of the package that ran between `start` and `stop`, their globals, and their callers."""

    def __init__(self) -> None:
        self.ran: dict[CodeType, dict[str, Any]] = {}
        self.seen: set[tuple[CodeType, CodeType | None]] = set()
        self.calls: set[tuple[str, str]] = set()
        """(module of the caller, module of the callee)."""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code, back = frame.f_code, frame.f_back
        pair = (code, back.f_code if back else None)
        if event != "call" or pair in self.seen or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # module and class bodies are not optimised code
        if not _in_package(frame) or _importing(frame):
            return
        self.seen.add(pair)
        self.ran[code] = frame.f_globals
        while back is not None and not _in_package(back):
            back = back.f_back
        self.calls.add((_module(back), _module(frame)))

    def start(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def files(self) -> list[str]:
        """Modules that the recorded code belongs to, with compiled functions and constants it names."""
        queue, seen = list(self.ran.items()), set(self.ran)
        while queue:
            code, scope = queue.pop()
            for name in _names(code):
                value = scope.get(name)
                function = getattr(value, "py_func", None)
                if isinstance(function, FunctionType):
                    self.calls.add((scope["__name__"], function.__globals__["__name__"]))
                    if function.__code__ not in seen:
                        seen.add(function.__code__)
                        queue.append((function.__code__, function.__globals__))
                elif _is_constant(value):
                    self.calls.add((scope["__name__"], _home(scope["__name__"], name)))
        used = {module for pair in self.calls for module in pair}
        return sorted(name for name in used if name.startswith(PACKAGE))

    def to_open(self, packages: tuple[str, ...]) -> list[str]:
        """Modules of the packages that ran, and modules of others that they call directly or read a constant of."""
        used = self.files()
        own = {name for name in used if name.split(".")[1:2] and name.split(".")[1] in packages}
        return sorted(own | {callee for caller, callee in self.calls if caller in own and callee in used})


def _module(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def _in_package(frame: FrameType) -> bool:
    return _module(frame).startswith(PACKAGE)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _in_package(frame):
            return True
        frame = frame.f_back
    return False


def _names(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(_names, inner)) if inner else set(code.co_names)


def _is_constant(value: Any) -> bool:
    return value is not None and not callable(value) and not isinstance(value, ModuleType)


def _home(module: str, name: str) -> str:
    """Module that defines a name, through any number of `from ... import`."""
    path = getattr(sys.modules.get(module), "__file__", None)
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))) if path else ():
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _home(str(node.module), alias.name)
    return module


def run_of(task: str) -> str:
    """Name of the run that a task is counted in."""
    return task.partition(", ")[0]


def run_task(task: str, run: str) -> dict[str, tuple[list[str], list[str]]]:
    """Run a task in this process and return the modules that run and those to open, for every count of this run."""
    from quatsphere.cli import main
    from quatsphere.train.trainer import Trainer

    recorder = Recorder()
    train = ["train", "--preset", "demo", "--run-dir", run, "--train.epochs", "1"]
    if task == "training step":
        inner = Trainer.train_step

        def recorded(*args: Any, **kwargs: Any) -> Any:
            recorder.start()
            try:
                return inner(*args, **kwargs)
            finally:
                recorder.stop()

        Trainer.train_step = recorded  # type: ignore[method-assign]
        _require_success(main(train))
    else:
        arguments = {
            "train": train,
            "study claims": ["study", "claims", "--results", str(ROOT / "results" / "lite")],
            "view": ["view", run],
        }[task]
        recorder.start()
        code = main(arguments)
        recorder.stop()
        _require_success(code)
    counts = {name: packages for name, (_, packages) in TASKS.items() if run_of(name) == task}
    return {name: (recorder.files(), recorder.to_open(packages)) for name, packages in counts.items()}


def _require_success(code: int) -> None:
    if code:
        raise SystemExit(f"the command ended with exit code {code}")


def tasks(source: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Modules that run and modules to open of every task, each task in a fresh process."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in dict.fromkeys(map(run_of, TASKS)):
            run = Path(folder) / ("step" if task == "training step" else "run")
            environment = os.environ | {"PYTHONPATH": str(source.parent)}
            command = [sys.executable, __file__, "--task", task, "--run", str(run)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            found |= json.loads(output.splitlines()[-1])
    return found


def main_program() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT / "src" / PACKAGE, help="folder of the package")
    parser.add_argument("--no-tasks", action="store_true", help="only count files, lines and names")
    parser.add_argument("--list", action="store_true", help="name the files to open of every task")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        modules = run_task(options.task, options.run)
        print("\n" + json.dumps(modules))
        return
    twice = defined_twice(options.source)
    print("| | |\n|---|---|")
    for name, value in (sizes(options.source) | {"public names defined in two or more modules": len(twice)}).items():
        print(f"| {name} | {value:,} |")
    if options.list:
        for name, where in twice.items():
            print(f"{name}: {', '.join(where)}")
    if not options.no_tasks:
        print("\n| task | files to open | wanted | all files that run |\n|---|---|---|---|")
        for task, (ran, opened) in tasks(options.source).items():
            print(f"| {task} | {len(opened)} | {TASKS[task][0]} | {len(ran)} |")
            if options.list:
                print("\n".join(f"    {re.sub(f'^{PACKAGE}.', '', module)}" for module in opened))


if __name__ == "__main__":
    main_program()
