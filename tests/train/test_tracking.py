"""Trackers receive every number of metrics.jsonl, a resumed run continues its curves, and no tracker ends a run.

Weights & Biases (offline) and MLflow (in the run folder) are the real packages; where they are missing, their tests are
skipped. The failing writer is a fake, because a real one does not fail on demand.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_runs import tiny_config

from quatsphere.config import RunConfig
from quatsphere.errors import ConfigError
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train import reporting, train
from quatsphere.train.reporting import Writer, open_tracker

BLOCK = 32768
Curves = dict[str, list[tuple[int, float]]]
"""Name of a metric -> (step, value)."""


def mlflow_curves(folder: Path) -> Curves:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").absolute().as_uri())
    experiment = client.get_experiment_by_name("quatsphere")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == folder.name
    assert run.data.params["train.batch_size"] == "16"
    names = run.data.metrics
    return {name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)] for name in names}


def log_records(data: bytes) -> Iterator[bytes]:
    """Records of a log of Weights & Biases: a header of 7 bytes, then LevelDB's log format in blocks of 32 KiB."""
    position, parts = 7, b""
    while position + 7 <= len(data):
        length, kind = struct.unpack_from("<HB", data, position + 4)
        left = BLOCK - position % BLOCK
        if left < 7 or not kind:  # padding up to the next block
            position += left
            continue
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def wandb_curves(folder: Path) -> Curves:
    """Curves in the transaction logs that `wandb sync` would send, in the order of the starts."""
    from wandb.proto.wandb_internal_pb2 import Record

    curves: Curves = {}
    identities = set()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in log_records(path.read_bytes()):
            record = Record.FromString(data)
            if record.HasField("run"):
                identities.add(record.run.run_id)
                assert record.run.display_name == folder.name
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in items.items():
                curves.setdefault(name, []).append((items["step"], value))
    assert len(identities) == 1
    return curves


REAL: dict[str, tuple[str, Callable[[Path], Curves]]] = {
    "wandb": ("wandb", wandb_curves),
    "mlflow": ("mlflow", mlflow_curves),
}


@pytest.fixture(params=REAL)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of an installed tracker that sends nothing."""
    module, _ = REAL[request.param]
    pytest.importorskip(module, reason=f"{module} is not installed (extra 'track-{module}')")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    name: str = request.param
    return name


def test_every_number_arrives(tracker: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(tiny_config(epochs=2, track=tracker), folder)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curves = REAL[tracker][1](folder)
    assert {"train/loss", "val_accuracy", "learning_rates/weights", "routing_entropy/0", "bound/1"} <= set(curves)
    assert [step for step, _ in curves["train/loss"]] == [4, 8]
    assert [value for _, value in curves["train/loss"]] == pytest.approx([r["train"]["loss"] for r in records])
    assert [value for _, value in curves["beta/0"]] == pytest.approx([record["beta"][0] for record in records])


def test_a_resumed_run_continues_its_curves(tracker: str, tmp_path: Path) -> None:
    """A run that begins again gets new curves; one that continues at a step adds to those it has."""
    run, config = RunFolder(tmp_path / "run"), tiny_config(track=tracker)
    run.path.mkdir()
    identities = []
    for start in (0, 4):
        opened = open_tracker(config, run, start, pytest.fail)
        opened.log({"step": start + 4, "train": {"loss": 1.0 / (start + 1)}})
        opened.close()
        time.sleep(1.1)  # wandb names folders by the second
        identities.append(json.loads((run.path / reporting.IDENTITY).read_text()))
    assert identities[0] == identities[1]
    assert REAL[tracker][1](run.path)["train/loss"] == [(4, 1.0), (8, 0.2)]
    open_tracker(config, run, 0, pytest.fail).close()
    assert json.loads((run.path / reporting.IDENTITY).read_text()) != identities[0]


def test_a_failing_tracker_costs_a_note_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("the server\nis away")

    def open_failing(config: RunConfig, run: RunFolder, step: int) -> Writer:
        return fail, fail

    monkeypatch.setitem(reporting.WRITERS, "tensorboard", open_failing)
    notes: list[str] = []
    opened = open_tracker(tiny_config(track="tensorboard"), RunFolder(tmp_path), 0, notes.append)
    opened.log({"step": 1})
    opened.log({"step": 2})
    opened.close()
    assert notes == ["tensorboard failed (the server is away); training continues, metrics.jsonl has the numbers"]


@pytest.mark.parametrize(("name", "module", "extra"), [(n, m, e) for n, (m, _, e) in reporting.PACKAGES.items()])
def test_a_missing_package_is_one_line_before_the_run(
    name: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (module, module.partition(".")[0] if name != "tensorboard" else module):
        monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(ConfigError, match=rf"train.track={name} needs .*; pip install 'quatsphere\[{extra}\]'"):
        train(tiny_config(track=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("no key\nfound")

    monkeypatch.setitem(reporting.WRITERS, "wandb", refuse)
    with pytest.raises(ConfigError, match=r"cannot start \(no key found\); log in with 'wandb login', or set WANDB"):
        open_tracker(tiny_config(track="wandb"), RunFolder(tmp_path), 0, pytest.fail)
