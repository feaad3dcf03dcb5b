"""torch.compile equals eager, values and gradients, with the whole model in one graph (`fullgraph=True`).

Models run in a separate process: there no import hook wraps the functions, and a crash of generated code is a failed
test and not the end of all tests. Both share one process: importing the compiler takes seconds. The soak compares every
variant.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.compiled_models import require_equal

COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"torch.compile on CPUs needs a C++ compiler: no {COMPILER} on PATH"
)

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from helpers.compiled_models import ONE_STEP, compare
torch.set_num_threads(2)
for name in sys.argv[2:]:
    print(json.dumps(compare(name, ONE_STEP)))
"""


def test_compiled_equals_eager(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), "qsv", "attention"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
    )
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-3000:]}"
    for line in run.stdout.splitlines()[-2:]:
        require_equal(json.loads(line))
