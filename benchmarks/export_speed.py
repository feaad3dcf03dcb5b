"""Speed of models in torch and in onnxruntime, measured in turn within one process; one JSON line per model and batch.

    python benchmarks/export_speed.py digits-qsv cifar10-attention cifar10-qsv paper-attention cifar10-qsv-paper

A name is a bundled model, or a preset with untrained weights. `best_ms` is the shortest wall-clock time, `cpu_ms` the
smallest CPU time of all threads together, which with `--threads 1` is also valid on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import quatsphere
from quatsphere.config.presets import PRESETS
from quatsphere.export.files import export_program, onnx_bytes, read_onnx
from quatsphere.export.frozen import FrozenModel
from quatsphere.models import build_model


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock and CPU time of one call."""
    start = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def main() -> None:
    """Convert each preset's model and time both forms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["digits-qsv"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=Path, default=Path("runs/onnx"), help="folder of converted models, used again")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.models:
        preset = name in PRESETS
        model: Any = build_model(quatsphere.load_preset(name).model, seed=0) if preset else quatsphere.load(name).model
        model.eval()
        config = model.config
        shape = (config.in_channels, config.image_size, config.image_size)
        frozen = FrozenModel(model, [0.0] * config.in_channels, [1.0] * config.in_channels)
        file = options.files / f"{name}.onnx"
        if not file.is_file():
            options.files.mkdir(parents=True, exist_ok=True)
            file.write_bytes(onnx_bytes(export_program(frozen, shape), {}))
        exported = read_onnx(file.read_bytes())
        for batch in options.batches:
            images = torch.rand(batch, *shape)
            calls = {"torch": partial(model, images), "onnxruntime": partial(exported, images)}
            with torch.inference_mode():
                difference = float((calls["torch"]() - calls["onnxruntime"]()).abs().max())
                times = [{name: seconds(call) for name, call in calls.items()} for _ in range(options.rounds)]
            facts: dict[str, Any] = {"model": name, "batch": batch, "threads": options.threads}
            for form in calls:
                clock, processor = zip(*(t[form] for t in times), strict=True)
                facts |= {f"{form}_best_ms": min(clock), f"{form}_median_ms": statistics.median(clock)}
                facts |= {f"{form}_cpu_ms": min(processor)}
            rounded = {key: round(1e3 * fact, 2) if key.endswith("_ms") else fact for key, fact in facts.items()}
            print(json.dumps({**rounded, "difference": difference}), flush=True)


if __name__ == "__main__":
    main()
