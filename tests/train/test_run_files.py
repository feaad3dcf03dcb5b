"""Files of a run and every documented field in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_runs import tiny_config
from safetensors.torch import load_file

from quatsphere.config import QSVConfig, RunConfig
from quatsphere.config.resolve import config_to_dict
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.train import train
from quatsphere.train.provenance import commit, versions
from quatsphere.train.run import fit_to_data, load_data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of two epochs, with shapes checked and TensorBoard events."""
    folder = tmp_path_factory.mktemp("files") / "run"
    train(tiny_config(epochs=2, track="tensorboard"), folder)
    return folder


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_files_of_a_run(run: Path) -> None:
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert names == {"config.yaml", "environment.json", "metrics.jsonl", "checkpoints", "result.json", "events"}
    inside = {path.name for path in (run / "checkpoints").iterdir()}
    assert inside == {"best", "last", "step-000004", "step-000008"}
    step = {path.name for path in (run / "checkpoints" / "step-000008").iterdir()}
    assert step == {"weights.safetensors", "state.safetensors", "manifest.json"}


def test_metrics_of_every_epoch(run: Path) -> None:
    first, second = records(run)
    fields = {"epoch", "step", "train", "val_accuracy", "best_val_accuracy", "learning_rates", "routing_entropy"}
    fields |= {"routing_peak", "beta", "beta_heads", "bound", "field_motion", "seconds", "images_per_second"}
    assert set(first) == set(second) == fields
    assert (first["epoch"], first["step"], second["epoch"], second["step"]) == (1, 4, 2, 8)
    losses = {"loss", "cross_entropy", "head_diversity", "beta_penalty", "accuracy"}
    assert set(first["train"]) == losses
    assert set(second["train"]) == losses | {"smoothness"}
    assert set(first["learning_rates"]) == {"quaternions", "positions", "betas", "bounds", "gates", "weights"}
    assert first["field_motion"] == []
    assert all(0 < motion < 0.5 for motion in second["field_motion"])
    assert 0 < first["images_per_second"] < 1e6
    assert second["seconds"] > first["seconds"] > 0


def test_losses_add_up(run: Path) -> None:
    for record in records(run):
        parts = {name: value for name, value in record["train"].items() if name not in ("loss", "accuracy")}
        assert record["train"]["loss"] == pytest.approx(sum(parts.values()))
        assert 0 <= record["train"]["accuracy"] <= 1


def test_learning_rates_are_those_of_the_last_step(run: Path) -> None:
    """One-cycle ends at peak / (div final_div); quaternions stay constant; bounds have three times the rate."""
    rates = records(run)[-1]["learning_rates"]
    assert rates["weights"] == pytest.approx(1e-3 / 1000)
    assert rates["bounds"] == pytest.approx(3e-3 / 1000)
    assert rates["positions"] == pytest.approx(5e-5 / 1000)
    assert rates["quaternions"] == 2.5e-3


def test_result_file(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    expected = {"test_accuracy", "val_accuracy", "best_step", "epochs", "seed", "parameters", "fingerprint", "commit"}
    assert expected | {"versions", "threads", "seconds", "test", "deterministic"} <= set(result)
    assert result["test_accuracy"] == result["test"]["accuracy"]
    assert result["val_accuracy"] == max(record["val_accuracy"] for record in records(run))
    assert (result["seed"], result["epochs"], result["steps"], result["threads"]) == (42, 2, 8, 1)
    weights = load_file(run / "checkpoints" / "step-000008" / "weights.safetensors")
    assert result["parameters"] == sum(value.numel() for value in weights.values())
    assert result["versions"]["torch"] == torch.__version__
    assert len(result["fingerprint"]) == 64


def test_environment_file(run: Path) -> None:
    found = json.loads((run / "environment.json").read_text())
    assert {"commit", "versions", "command", "platform", "processor", "cores", "threads", "device"} <= set(found)
    assert (found["threads"], found["device"], found["processes"]) == (1, "cpu", 1)


def test_config_file_has_every_setting(run: Path) -> None:
    stored = read_yaml(run / "config.yaml")
    settings = tiny_config(epochs=2, track="tensorboard")
    dataset = load_data(settings.data, print)
    assert stored == config_to_dict(fit_to_data(settings, dataset))
    assert (stored["model"]["image_size"], stored["model"]["in_channels"]) == (8, 1)
    assert next(iter(stored["model"])) == "name"


def test_tensorboard_events(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(run / "events"))
    log.Reload()
    tags = set(log.Tags()["scalars"])
    assert {"train/loss", "val_accuracy", "learning_rates/weights", "routing_entropy/0", "beta/2", "bound/1"} <= tags
    events = log.Scalars("train/loss")
    assert [event.step for event in events] == [4, 8]
    assert [event.value for event in events] == pytest.approx([record["train"]["loss"] for record in records(run)])


def test_checkpoint_has_classes_and_normalisation(run: Path) -> None:
    meta = json.loads((run / "checkpoints" / "step-000008" / "manifest.json").read_text())["meta"]
    assert meta["classes"] == [str(digit) for digit in range(10)]
    assert len(meta["mean"]) == len(meta["std"]) == 1
    assert meta["circumstances"]["threads"] == 1


def test_versions_commit_and_settings() -> None:
    assert set(versions()) >= {"quatsphere", "python", "torch", "numpy", "safetensors"}
    found = commit()
    assert found is None or len(found.removesuffix("+changes")) == 40
    plain = config_to_dict(RunConfig())
    assert list(plain) == ["data", "model", "optim", "train"]
    assert QSVConfig(**plain["model"]) == QSVConfig()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_long_run_keeps_memory_and_constraints(tmp_path: Path) -> None:
    """Memory, file descriptors, threads, unit norms and radii stay constant over 2,000 steps."""
    import os
    import threading

    from quatsphere.train import Progress, Reporter

    class ResourceMonitor(Reporter):
        def __init__(self) -> None:
            self.seen: list[tuple[int, int, int]] = []

        def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
            if progress.step % 100 == 0:
                resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                self.seen.append((resident, len(os.listdir("/proc/self/fd")), threading.active_count()))

    monitor = ResourceMonitor()
    small = {"dim": 16, "heads": 2, "base_vertices": 8, "rounds": 0}
    few = {"max_train_images": 40, "val_fraction": 0.02, "test_fraction": 0.02}
    settings = tiny_config(data=few, model=small, epochs=500, batch_size=10, checkpoint_steps=50)
    train(settings, tmp_path / "run", reporter=monitor)
    memory, files, threads = zip(*monitor.seen[4:], strict=True)
    slope = (memory[-1] - memory[0]) / (len(memory) - 1) * 10
    assert slope < 1e6, f"{slope / 1e6:.2f} MB per 1000 steps"
    assert len(set(files)) == len(set(threads)) == 1
    last = load_file(tmp_path / "run" / "checkpoints" / "step-002000" / "weights.safetensors")
    for name, value in last.items():
        if name.endswith(".base"):
            assert (value.norm(dim=-1) - 1).abs().max() < 1e-6
        if name.endswith(".positions"):
            radius = {"0": 1.0, "1": 0.4}[name.split(".")[2]]
            assert math.isclose(value.norm(dim=-1).min().item(), radius, rel_tol=1e-6)
            assert math.isclose(value.norm(dim=-1).max().item(), radius, rel_tol=1e-6)
