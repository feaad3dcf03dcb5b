"""The core installation, without any extra: everything imports, shipped models predict, missing extras are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import quatsphere

EXTRAS = (
    *("numba", "llvmlite", "scipy", "triton", "sklearn", "matplotlib", "jinja2", "torch_geometric", "ray"),
    *("tensorboard", "onnx", "onnxscript", "onnxruntime", "huggingface_hub", "pandas", "plotly", "tqdm"),
)
ONLY_UNIX = ("fcntl", "resource", "pwd", "grp", "termios")
"""Modules of the standard library that Windows lacks."""

SCRIPT = """
import contextlib, importlib, io, json, pkgutil, sys
import quatsphere
import quatsphere.cli
from quatsphere.cli import main

public = [name for name in quatsphere.__all__ if getattr(quatsphere, name) is not None]
verbs = [importlib.import_module(f"quatsphere.cli.{m.name}") for m in pkgutil.iter_modules(quatsphere.cli.__path__)]
ends = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    ends.append([code, out.getvalue(), err.getvalue()])
print(json.dumps({"public": public, "ends": ends}))
"""

RESULTS = str(Path(__file__).parent.parent / "results" / "lite")
ANSWERED = (
    ["models"],
    ["predict", "photo.png", "--model", "cifar10-qsv"],
    ["predict", "photo.png", "--model", "digits-qsv", "--json"],
    ["data", "verify", "digits"],
)
MISSING = (
    ("report", ["report", "digits-qsv"]),
    ("report", ["view", "digits-qsv"]),
    ("report", ["figures", "digits-qsv"]),
    ("report", ["demo"]),
    ("report", ["data", "preview", "digits"]),
    ("study", ["study", "claims", "--results", RESULTS]),
    ("track", ["train", "--preset", "demo", "--run-dir", "x", "--train.tensorboard", "true"]),
    ("fast", ["train", "--preset", "demo", "--run-dir", "x", "--model.backend", "numba_cpu"]),
    ("export", ["export", "digits-qsv", "--to", "onnx", "-o", "x.onnx"]),
    ("hub", ["predict", "photo.png", "--model", "hf://owner/name"]),
    ("hub", ["pack", "digits-qsv", "-o", "x", "--push", "owner/name"]),
    ("cluster", ["study", "run", "smoke", "--results", "x", "--launcher", "ray"]),
)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """Answers of one process that cannot import any package of the extras."""
    folder = tmp_path_factory.mktemp("core")
    hidden = "".join(f"sys.modules[{name!r}] = None\n" for name in (*EXTRAS, *ONLY_UNIX))
    (folder / "sitecustomize.py").write_text(f"import sys\n{hidden}")
    Image.fromarray(np.random.default_rng(0).integers(256, size=(60, 80, 3), dtype=np.uint8)).save(folder / "photo.png")
    words = json.dumps([*ANSWERED, *(words for _, words in MISSING)])
    paths = {"PYTHONPATH": os.pathsep.join((str(folder), *sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, words],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **paths},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {**json.loads(ended.stdout), "files": sorted(path.name for path in folder.iterdir())}


def test_every_public_name_imports(core: dict[str, list]) -> None:
    assert core["public"] == quatsphere.__all__


@pytest.mark.parametrize("index", range(len(ANSWERED)), ids=lambda index: " ".join(ANSWERED[index]))
def test_core_commands_answer(core: dict[str, list], index: int) -> None:
    code, out, err = core["ends"][index]
    assert code == 0, err
    assert out.strip()


@pytest.mark.parametrize("index", range(len(MISSING)), ids=lambda index: " ".join(MISSING[index][1][:4]))
def test_a_missing_extra_is_one_line_that_names_it(core: dict[str, list], index: int) -> None:
    code, out, err = core["ends"][len(ANSWERED) + index]
    assert code == 2, out + err
    *notes, line = err.splitlines()
    assert all(note.startswith("quatsphere: note: ") for note in notes)
    assert f"pip install 'quatsphere[{MISSING[index][0]}]'" in line


def test_refused_commands_write_nothing(core: dict[str, list]) -> None:
    assert [name for name in core["files"] if name != "__pycache__"] == ["photo.png", "sitecustomize.py"]
