"""torch.compile equals eager, values and gradients, with the whole model in one graph (`fullgraph=True`).

Models run in a separate process: there no import hook wraps the functions, and a crash of generated code is a failed
test and not the end of all tests. All share one process: importing the compiler takes seconds. Code is generated for
QSV, the others are traced; slow tests generate code for the baseline, and the soak for every variant. Of the vector
instructions only those that the processor lists are used; VEC_ISA_OK omits three compilations that try them out.
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
from helpers.compiled_models import ALL_STEPS, ONE_STEP, compare
from nn.test_extensions import Scaled, alignment
from quatsphere import register_routing, register_transport
register_routing("literal")(alignment)
register_transport("scaled")(Scaled)
CASES = {
    "qsv": ("qsv", ONE_STEP),
    "attention": ("attention", ONE_STEP),
    "traced attention": ("attention", ALL_STEPS, "aot_eager"),
    "traced rules": ("qsv", ALL_STEPS | {"routing": "literal", "transport": "scaled"}, "aot_eager"),
}
torch.set_num_threads(2)
for case in sys.argv[2:]:
    print(json.dumps(compare(*CASES[case])))
"""


@pytest.mark.parametrize(
    "cases", [["qsv", "traced attention", "traced rules"], pytest.param(["attention"], marks=pytest.mark.slow)], ids=str
)
def test_compiled_equals_eager(cases: list[str], tmp_path: Path) -> None:
    """Built-in models, and rules registered from outside the package."""
    inductor = {"CACHE_DIR": str(tmp_path), "COMPILE_THREADS": "1", "VEC_ISA_OK": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), *cases],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {f"TORCHINDUCTOR_{name}": value for name, value in inductor.items()},
    )
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-3000:]}"
    found = run.stdout.splitlines()[-len(cases) :]
    assert len(found) == len(cases)
    for line in found:
        require_equal(json.loads(line))
