"""Training runs on an emulated accelerator (`helpers/counting_device.py`), which detects every use of a wrong device.

BUDGETS holds the largest number of launched operations and of waits of the host in a plain step and in one with
repulsion. Shells, rounds and, where operations are launched per neighbour, vertices are the paper's; widths and batch
do not matter. The numbers may only fall: a change that needs fewer lowers them, one that needs more is a defect.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no Python backends for made-up devices",
)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qsv": ("qsv", {"dim": 64}),
    "qsv, triton_gpu": ("qsv", {"dim": 16, "heads": 4, "base_vertices": 16, "neighbours": 4, "backend": "triton_gpu"}),
    "qsv, triton_gpu, geometric": (
        "qsv",
        {"dim": 8, "heads": 2, "base_vertices": 16, "neighbours": 4, "backend": "triton_gpu", "resample": "geometric"},
    ),
    "attention": ("attention", {"dim": 48, "heads": 6}),
    "resnet20": ("resnet20", {"width": 4}),
    "linear": ("linear", {"base_vertices": 16}),
}
PLAIN, REPULSION = 1, 3
"""The measured steps: the second of the first epoch, and the last, which has repulsion and all losses."""
BUDGETS: dict[tuple[str, int], tuple[int, int]] = {
    ("qsv", PLAIN): (6173, 7),
    ("qsv", REPULSION): (6496, 3),
    ("qsv, triton_gpu", PLAIN): (375, 1),
    ("qsv, triton_gpu", REPULSION): (770, 1),
    ("attention", PLAIN): (468, 1),
    ("attention", REPULSION): (468, 1),
    ("resnet20", PLAIN): (236, 1),
    ("resnet20", REPULSION): (236, 1),
    ("linear", PLAIN): (22, 1),
    ("linear", REPULSION): (22, 1),
}
"""(model, step) -> (launches, waits)."""


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """Counts of every model's steps, measured in separate processes; Triton kernels are counted and not run."""
    triton = {label: MODELS[label] for label in MODELS if "triton" in label and find_spec("triton")}
    plain = {label: MODELS[label] for label in MODELS if "triton" not in label}
    return count_steps(plain) | count_steps(triton, "--placeholders")


def count_steps(models: dict[str, tuple[str, dict[str, Any]]], *options: str) -> dict[str, Any]:
    """Output of `helpers/counting_device.py` for these models."""
    script = Path(__file__).parent.parent / "helpers" / "counting_device.py"
    run = subprocess.run(
        [sys.executable, str(script), json.dumps(models), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("model", "step"), BUDGETS)
def test_step_uploads_its_batch_and_stays_within_budget(runs: dict[str, Any], model: str, step: int) -> None:
    if model not in runs:
        pytest.skip("triton is not installed")
    counts = runs[model]["steps"][step]
    launches, waits = BUDGETS[model, step]
    assert counts["uploads"] == {"batches.py:<lambda>": 4}, "only images, targets, labels and keys are copied"
    assert sum(counts["launches"].values()) <= launches, counts["launches"]
    assert sum(counts["waits"].values()) <= waits, counts["waits"]


def test_losses_equal_those_of_the_cpu(runs: dict[str, Any]) -> None:
    """Dropout masks are equal as well: they depend only on keys and positions."""
    for run in [run for label, run in runs.items() if "triton" not in label]:
        assert run["losses"] == pytest.approx(run["on_cpu"], rel=1e-4, abs=1e-8)


def test_tables_stay_at_their_addresses(runs: dict[str, Any]) -> None:
    """Recorded CUDA graphs read parameters, neighbours and reversed edges where they were, also after repulsion."""
    assert [name for run in runs.values() for name in run["moved"]] == []


CAPTURED = ("forward", "losses", "backward")
"""Parts of a step that a CUDA graph can record; the update follows the wait, with rates that change."""


@pytest.mark.parametrize("model", [model for model in MODELS if model != "qsv"])
def test_nothing_between_the_batch_and_the_checks_waits_or_copies(runs: dict[str, Any], model: str) -> None:
    """From the second step on; the first one makes constants."""
    if model not in runs:
        pytest.skip("triton is not installed")
    for parts in (runs[model]["parts"][step] for step in (PLAIN, REPULSION)):
        assert {part: parts["waits"].get(part, 0) for part in CAPTURED} == dict.fromkeys(CAPTURED, 0)
        assert {part: parts["uploads"].get(part, 0) for part in CAPTURED} == dict.fromkeys(CAPTURED, 0)
        assert parts["waits"]["finite_check"] == 1
        assert sum(parts["waits"].values()) == 1
