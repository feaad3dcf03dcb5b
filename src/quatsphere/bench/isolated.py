"""A measurement in a fresh process: `python -m quatsphere.bench.alone REQUEST`, one JSON object in, one out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch

from quatsphere.bench import kernel
from quatsphere.bench.scaling import measure_size
from quatsphere.bench.step import TrainingStep, inference
from quatsphere.bench.timing import Pass, peak_mb
from quatsphere.errors import ResourceError

Request = dict[str, Any]


def kernel_pass(variant: str, batch: int) -> Pass:
    """One operator."""
    return kernel.contenders()[variant](batch)


PASSES: dict[str, Any] = {"kernel": kernel_pass, "step": TrainingStep, "inference": inference}
"""subject -> how to make the pass of (variant, batch)."""


def answer(request: Request) -> dict[str, Any]:
    """What this process measures: peak memory of a pass after one on a single image, or one size of the scaling."""
    torch.set_num_threads(request["threads"])
    if request["subject"] == "scaling":
        return measure_size(request["vertices"], request["dim"], request["rounds"])
    make, variant = PASSES[request["subject"]], request["variant"]
    overrides = request.get("overrides", {})
    make(variant, 1, **overrides)()
    return {"peak_mb": peak_mb(make(variant, request["batch"], **overrides))}


def ask(request: Request) -> dict[str, Any]:
    """`answer` of a fresh process."""
    words = [sys.executable, "-m", "quatsphere.bench.isolated", json.dumps(request)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message; the system may have ended it for its memory"])[-1]
        what = " ".join(str(request[key]) for key in ("subject", "variant", "vertices") if key in request)
        raise ResourceError(
            f"measuring {what} in its own process ended with {done.returncode} ({last:.200}); try it smaller"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    print(json.dumps(answer(json.loads(sys.argv[1]))))
