"""Size of the source tree, public names defined twice, and files that the code of four tasks runs through.

    python docs/structure.py                 # files, lines, names and the four tasks, as Markdown tables
    python docs/structure.py --no-tasks      # without running anything

A file counts for a task if a function of it runs (after its import; functions compiled by Numba count through the
names that call them) or if a constant of it is read by a function that runs. Re-exporting a name does not count.
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
MODEL = ("geometry", "kernels", "nn", "models", "randomness")
"""Packages of the model itself, which `study claims` and `view` only call."""
LIMITS = {"training step": 30, "train": 45, "study claims": 19, "view": 18}
"""Largest number of files wanted for each task."""


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
    """Code objects of the package that ran between `start` and `stop`, with the globals they ran in."""

    def __init__(self) -> None:
        self.ran: dict[CodeType, dict[str, Any]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self.ran or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # module and class bodies are not optimised code
        if not str(frame.f_globals.get("__name__", "")).startswith(PACKAGE) or _importing(frame):
            return
        self.ran[code] = frame.f_globals

    def start(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def files(self) -> list[str]:
        """Modules that the recorded code belongs to, with compiled functions and constants it names."""
        used: set[str] = set()
        queue, seen = list(self.ran.items()), set(self.ran)
        while queue:
            code, scope = queue.pop()
            used.add(scope["__name__"])
            for name in _names(code):
                value = scope.get(name)
                function = getattr(value, "py_func", None)
                if isinstance(function, FunctionType) and function.__code__ not in seen:
                    seen.add(function.__code__)
                    queue.append((function.__code__, function.__globals__))
                elif _is_constant(value):
                    used.add(_home(scope["__name__"], name))
        return sorted(name for name in used if name.startswith(PACKAGE))


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and str(frame.f_globals.get("__name__", "")).startswith(PACKAGE):
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


def run_task(task: str, run: str) -> list[str]:
    """Run one task in this process and return the modules it went through."""
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
        main(train)
        return recorder.files()
    arguments = {
        "train": train,
        "study claims": ["study", "claims", "--results", str(ROOT / "results" / "lite")],
        "view": ["view", run],
    }[task]
    recorder.start()
    try:
        main(arguments)
    finally:
        recorder.stop()
    return recorder.files()


def tasks(source: Path) -> dict[str, list[str]]:
    """Modules of every task, each task in a fresh process."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in LIMITS:
            run = Path(folder) / ("step" if task == "training step" else "run")
            environment = os.environ | {"PYTHONPATH": str(source.parent)}
            command = [sys.executable, __file__, "--task", task, "--run", str(run)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            found[task] = json.loads(output.splitlines()[-1])
    return found


def main_program() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, default=ROOT / "src" / PACKAGE, help="folder of the package")
    parser.add_argument("--no-tasks", action="store_true", help="only count files, lines and names")
    parser.add_argument("--list", action="store_true", help="name the files of every task")
    parser.add_argument("--task", choices=list(LIMITS), help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        try:
            modules = run_task(options.task, options.run)
        except SystemExit as end:
            raise SystemExit(f"{options.task} ended with exit code {end.code}") from end
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
        print("\n| task | files | of them the model's | the others | wanted |\n|---|---|---|---|---|")
        for task, modules in tasks(options.source).items():
            model = sum(module.split(".")[1:2] != [] and module.split(".")[1] in MODEL for module in modules)
            print(f"| {task} | {len(modules)} | {model} | {len(modules) - model} | {LIMITS[task]} |")
            if options.list:
                print("\n".join(f"    {re.sub(f'^{PACKAGE}.', '', module)}" for module in modules))


if __name__ == "__main__":
    main_program()
