"""torch.compile equals eager, values and gradients, with the whole model in one graph (`fullgraph=True`).

Each variant runs in a separate process: there no import hook wraps the functions, and a crash of generated code is
a failed test and not the end of all tests. The processes share one cache folder, so equal kernels are built once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.variants import ATTENTION_VARIANTS, QSV_VARIANTS

COMPILER = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"torch.compile on CPUs needs a C++ compiler: no {COMPILER} on PATH"
)

ONE_STEP: dict[str, Any] = {"dim": 24, "heads": 3, "base_vertices": 9, "shells": 1, "rounds": 0, "image_size": 8}
"""The smallest model with every part but the gate; odd sizes, so that generated loops have remainders."""
ALL_STEPS: dict[str, Any] = ONE_STEP | {"base_vertices": 12, "shells": 2, "rounds": 1, "plane_rows": 6}
"""All three kinds of step."""

SCRIPT = """
import json, sys
import torch
import torch.nn.functional as F
from quatsphere import create_model

name, overrides = json.loads(sys.argv[1])
torch.set_num_threads(2)
model = create_model(name, **overrides)
generator = torch.Generator().manual_seed(0)
with torch.no_grad():  # a perturbation that perturbs, so that gradients reach every layer
    for part, parameter in model.named_parameters():
        if "outer_" in part:
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
size = overrides["image_size"]
images = torch.rand(2, 3, size, size, generator=generator)
buffers = {part: buffer.clone() for part, buffer in model.named_buffers()}

def run(function):
    model.zero_grad()
    for part, buffer in model.named_buffers():  # running statistics as before the first run
        buffer.copy_(buffers[part])
    logits = function(images, sample_keys=torch.tensor([3, 5]))
    F.cross_entropy(logits, torch.tensor([0, 1])).backward()
    gradients = {part: p.grad for part, p in model.named_parameters() if p.grad is not None}
    return logits.detach().clone(), {part: gradient.clone() for part, gradient in gradients.items()}

def error(value, expected):
    return float((value - expected).abs().max() / expected.abs().max())

eager_logits, eager = run(model)
logits, compiled = run(torch.compile(model, fullgraph=True))
largest = max(float(gradient.abs().max()) for gradient in eager.values())
silent = set(model.unreachable_parameters())
absent = [compiled[part] for part in compiled if part not in eager or part in silent]
print(json.dumps({
    "logits": error(logits, eager_logits),
    "gradients": {part: error(compiled[part], eager[part]) for part in eager if part not in silent},
    "silent": max((float(gradient.abs().max()) / largest for gradient in absent), default=0.0),
}))
"""


@pytest.fixture(scope="module")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inductor")


def check(name: str, overrides: dict[str, Any], cache: Path) -> None:
    """Forward to 1e-5, gradients to 1e-4 of their largest value; zero for unreachable parameters."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([name, overrides])],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache)},
    )
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-3000:]}"
    errors = json.loads(run.stdout.splitlines()[-1])
    assert errors["logits"] <= 1e-5
    assert max(errors["gradients"].values()) <= 1e-4, errors["gradients"]
    assert errors["silent"] <= 1e-6


@pytest.mark.parametrize("name", ["qsv", "attention"])
def test_compiled_equals_eager(name: str, compiler_cache: Path) -> None:
    check(name, ONE_STEP, compiler_cache)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [*QSV_VARIANTS, *ATTENTION_VARIANTS, "resnet20"])
def test_every_variant_compiled_equals_eager(variant: str, compiler_cache: Path) -> None:
    if variant == "resnet20":
        check("resnet20", {"image_size": 8, "width": 4}, compiler_cache)
        return
    name = "attention" if variant in ATTENTION_VARIANTS else "qsv"
    changes = ATTENTION_VARIANTS[variant] if name == "attention" else QSV_VARIANTS[variant]
    check(name, ALL_STEPS | changes, compiler_cache)
