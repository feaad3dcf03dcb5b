"""The inside of a trained cell as a few numbers: spreads, sharpness, coverage, clean training accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quatsphere.config import RunConfig
from quatsphere.data import Dataset
from quatsphere.diagnostics import diagnose
from quatsphere.errors import CheckpointError
from quatsphere.models import build_model
from quatsphere.storage.checkpoint import load_best, read_pointer
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import make_config
from quatsphere.study.results import Results
from quatsphere.study.scales import place_of
from quatsphere.train.checkpointing import restore_weights
from quatsphere.train.run import fit_to_data, load_data

SECTIONS = ("accuracy", "routing", "spread", "beta", "drift", "coverage", "graphs")
TRACED = 128
"""Validation images whose traces are looked at."""
EVALUATED = 2000
"""Clean training images, and as many validation images, that are evaluated at most."""


def measure_run(run: RunFolder, config: RunConfig) -> dict[str, Any]:
    """Diagnose the weights of the best validation accuracy of a finished run."""
    dataset = load_data(config.data, lambda message: None)
    best = load_best(run.checkpoints)
    if best.meta["fingerprint"] != dataset.fingerprint:
        raise CheckpointError(f"the data is not what run '{run.name}' was trained on; name the right --data.root")
    return measure(fit_to_data(config, dataset), dataset, best.weights)


def measure(config: RunConfig, dataset: Dataset, weights: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a model with these weights."""
    model = build_model(config.model, seed=config.train.seed)
    restore_weights(model, weights, say=lambda message: None)
    seen = diagnose(model, dataset, images=TRACED, accuracy_images=EVALUATED, seed=config.train.seed, only=SECTIONS)
    return digest(seen)


def digest(seen: dict[str, Any]) -> dict[str, Any]:
    """The part of a diagnosis that claims are decided on; what a model has not is left out."""
    shells = seen["coverage"].get("shells", [])
    wanted = {
        "steps": [step["name"] for step in seen["steps"]],
        "clean_train_accuracy": seen["accuracy"]["train"]["accuracy"],
        "clean_val_accuracy": seen["accuracy"]["held_out"]["accuracy"],
        "entropy": seen["routing"].get("entropy"),
        "peak": seen["routing"].get("peak"),
        "orientation_spread": seen["spread"].get("orientation"),
        "score_spread": seen["spread"].get("score"),
        **{f"beta_{name}": seen["beta"].get(name) for name in ("mean", "min", "max")},
        "drift": seen["drift"].get("angle"),
        "displacement": [shell["displacement"]["mean"] for shell in shells if shell["displacement"]],
        "energy": [shell["energy"] for shell in shells],
        "energy_start": [shell["start"]["energy"] for shell in shells if shell["start"]],
        "nearest_min": [shell["nearest"]["min"] for shell in shells],
        "spacing": [shell["spacing"] for shell in shells],
        "agreement": [min(pairs.values()) for pairs in seen["graphs"].get("agreement", [])],
    }
    return {name: value for name, value in wanted.items() if value not in (None, [])}


def fill_in(
    results: Results, data_root: str | None, *, again: bool = False, say: Callable[[str], None] = print
) -> tuple[int, int]:
    """Measure finished cells that have no diagnostics (or all of them); how many were, and how many have no weights."""
    results.require()
    done = left = 0
    with results.open():
        for record in results.finished():
            if record["status"] != "finished" or (record.get("diagnostics") and not again):
                continue
            run = results.run(record["cell"])
            if read_pointer(run.checkpoints, "best") is None or not any(run.checkpoints.glob("step-*")):
                left += 1
                continue
            config = make_config({**record["config"], "data.root": place_of(record["dataset"], data_root)})
            results.write(record["cell"], {**record, "diagnostics": measure_run(run, config)})
            done += 1
            say(f"{record['cell']}: measured")
    return done, left
