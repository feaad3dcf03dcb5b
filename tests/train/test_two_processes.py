"""Training in two gloo processes: the same gradients and order as in one, and detection of lost processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.teams import children_of, codes, newest_step, run_team, start_team, texts, torchrun
from helpers.tiny_runs import as_words, command, has_step, tiny_config, trace_of, write_idx
from torch import Tensor

from quatsphere.cli import main
from quatsphere.config import ResNet20Config, RunConfig
from quatsphere.errors import ConfigError, DistributedError
from quatsphere.models import build_model
from quatsphere.storage.checkpoint import load_last_good
from quatsphere.storage.run_folder import RunFolder
from quatsphere.train import Reporter, train
from quatsphere.train.batches import Batch
from quatsphere.train.checkpointing import RunContext
from quatsphere.train.distributed import Team, join_team
from quatsphere.train.resources import StopSwitch
from quatsphere.train.run import fit_to_data, load_data
from quatsphere.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("unchecked")


def config(**more: Any) -> RunConfig:
    return tiny_config(**{"epochs": 2, "checkpoint_steps": 1} | more)


def make_trainer(settings: RunConfig, folder: Path, team: Team, *, double: bool) -> Trainer:
    """Trainer that writes no files; with `double` in float64."""
    dataset = load_data(settings.data, print)
    settings = fit_to_data(settings, dataset)
    context = RunContext(RunFolder(folder), team, torch.device("cpu"), Reporter(), StopSwitch())
    model = build_model(settings.model)
    trainer = Trainer(settings, dataset, model.double() if double else model, context)
    if double:
        exact = trainer.batches.batch

        def batch(*words: Any) -> Batch:
            made = exact(*words)
            return replace(made, images=made.images.double(), targets=made.targets.double())

        trainer.batches.batch = batch
    return trainer


def train_steps(trainer: Trainer, count: int) -> None:
    """Train without validation and files."""
    progress = trainer.progress
    for _ in range(count):
        trainer.train_step(progress.step_in_epoch)
        if progress.step_in_epoch == trainer.batches.steps:
            trainer.step.auxiliary.store_fields()
            progress.epoch += 1
            progress.begin_epoch()


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """|found - expected| / |expected| over all tensors as one vector."""
    assert found.keys() == expected.keys()
    pairs = [(found[name], value) for name, value in expected.items() if value.is_floating_point()]
    difference = torch.stack([(a - b).double().square().sum() for a, b in pairs]).sum()
    return float((difference / torch.stack([b.double().square().sum() for _, b in pairs]).sum()).sqrt())


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("steps", "double", "tolerance"), [(1, False, 1e-6), (20, True, 1e-9)], ids=["one float32", "twenty float64"]
)
def test_two_processes_compute_the_same_as_one(steps: int, double: bool, tolerance: float, tmp_path: Path) -> None:
    """33 images in batches of 16 leave one image for the last step, so one process has none."""
    settings = config(data={"max_train_images": 33, "mixup": 0.2}, epochs=7)

    def work(rank: int) -> None:
        with join_team() as team:
            trainer = make_trainer(settings, tmp_path, team, double=double)
            train_steps(trainer, steps)
            facts = (gradients(trainer), dict(trainer.model.state_dict()), trainer.progress.sums)
            torch.save(facts, tmp_path / f"{rank}.pt")

    team = start_team(work, tmp_path)
    assert codes(team) == [0, 0], texts(team)
    alone = make_trainer(settings, tmp_path, Team(), double=double)
    train_steps(alone, steps)
    assert len(alone.batches.samples(0, 2)) == 1
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert distance(first[0], gradients(alone)) < tolerance
    if double:
        assert distance(first[1], dict(alone.model.state_dict())) < tolerance
    assert first[2] == second[2] == pytest.approx(alone.progress.sums, rel=1e-5)
    assert all(torch.equal(first[1][name], value) for name, value in second[1].items())


@pytest.fixture(scope="module")
def uninterrupted(unchecked: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Trace of an uninterrupted run of two processes."""
    run = tmp_path_factory.mktemp("two") / "run"
    team = run_team(config(), run)
    assert codes(team) == [0, 0], texts(team)
    assert "test accuracy" in team[0].text
    assert team[1].text == ""
    return trace_of(run)


def test_run_of_two_processes_is_close_to_a_run_of_one(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    train(config(), tmp_path / "run")
    alone = trace_of(tmp_path / "run")
    for found, expected in zip(uninterrupted["metrics"], alone["metrics"], strict=True):
        assert found["train"] == pytest.approx(expected["train"], rel=1e-3)
        assert found["learning_rates"] == expected["learning_rates"]
        assert found["val_accuracy"] == pytest.approx(expected["val_accuracy"], abs=0.03)
    assert uninterrupted["result"]["parameters"] == alone["result"]["parameters"]


def test_killed_process_is_detected_and_the_run_resumes(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    """The other process ends with exit code 7; resumed together they reach the uninterrupted result bit for bit."""
    run = tmp_path / "run"
    team = run_team(config(), run)
    team[0].wait_until(has_step(run, 2))
    team[1].send(signal.SIGKILL)
    assert codes(team) == [7, -signal.SIGKILL], texts(team)
    assert "quatsphere: error: another process is gone (" in team[0].text
    assert "start again with --resume" in team[0].text
    again = run_team(config(), run, "--resume")
    assert codes(again) == [0, 0], texts(again)
    assert trace_of(run) == uninterrupted


def test_signal_to_one_process_stops_both(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    team = run_team(config(), run)
    team[0].wait_until(has_step(run, 1))
    team[1].send(signal.SIGTERM)
    assert codes(team) == [143, 143], texts(team)
    last = load_last_good(run / "checkpoints", pytest.fail)
    assert last is not None
    assert f"stopped at step {last.step}, saved" in team[0].text
    again = run_team(config(), run, "--resume")
    assert codes(again) == [0, 0], texts(again)
    assert trace_of(run) == uninterrupted


def test_different_settings_are_detected_at_the_start(tmp_path: Path) -> None:
    settings = [config(), config(seed=43)]
    team = start_team(lambda rank: main(as_words(settings[rank], tmp_path / "run")), tmp_path)
    assert codes(team) == [7, 7], texts(team)
    assert "rank 1 has another configuration than rank 0" in team[0].text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("same", [True, False])
def test_data_paths_can_differ_but_not_the_data(same: bool, tmp_path: Path) -> None:
    images = torch.randint(256, (60, 8, 8), generator=torch.Generator().manual_seed(0)).numpy()
    for rank in (0, 1):
        images[0, 0, 0] = 0 if same else rank
        write_idx(tmp_path / str(rank), images, torch.arange(60).numpy() % 3)

    def work(rank: int) -> int:
        settings = config(epochs=1, data={"name": "idx", "root": str(tmp_path / str(rank)), "max_train_images": None})
        return main(as_words(settings, tmp_path / "run"))

    team = start_team(work, tmp_path)
    assert codes(team) == ([0, 0] if same else [7, 7]), texts(team)
    assert ("rank 1 has another data set than rank 0 (" in team[0].text) != same
    assert (tmp_path / "run").exists() == same


def test_error_of_rank_zero_stops_all(tmp_path: Path) -> None:
    """Only rank 0 checks the folder: its error must reach the others before they wait for gradients."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    team = run_team(config(), tmp_path / "run")
    assert codes(team) == [2, 7], texts(team)
    assert "holds other files and no run" in team[0].text
    assert "rank 0 stopped: " in team[1].text


def test_team_of_one() -> None:
    with join_team() as team:
        assert (team.rank, team.world, team.is_rank_zero) == (0, 1, True)
        assert team.any(True)
        assert not team.any(False)
        assert team.on_rank_zero(lambda: "done") == "done"
        assert torch.equal(team.sum(torch.ones(2)), torch.ones(2))
        team.assert_same("setting", "value")
        team.broadcast_buffers([torch.ones(1)])


RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "RANK": "1", "QUATSPHERE_TIMEOUT": "1"}
INVALID = {
    "WORLD_SIZE must be a whole number in 1..2147483647: got 'two'; use torchrun": {"WORLD_SIZE": "two"},
    "RANK must be a whole number in 0..1: got '2'; use torchrun": {"RANK": "2"},
    "MASTER_PORT must be a whole number in 0..65535: got '99999'; use torchrun": {"MASTER_PORT": "99999"},
    "WORLD_SIZE is set but MASTER_PORT is not; start the processes with torchrun": {"MASTER_PORT": None},
    "QUATSPHERE_TIMEOUT must be a number of seconds > 0: got 'soon'": {"QUATSPHERE_TIMEOUT": "soon"},
}


@pytest.mark.parametrize("message", INVALID)
def test_invalid_environment_is_one_line(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**RENDEZVOUS, "MASTER_PORT": "29500", **INVALID[message]}.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        join_team().__enter__()


@pytest.mark.parametrize(("rank", "reason"), [("1", "timed out"), ("0", "port: .*EADDR")], ids=["nobody", "busy port"])
def test_failed_rendezvous_is_one_line(rank: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 waits for a rank 0 that never starts; rank 0 finds its port in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if rank == "0":
            other.listen()
        for name, value in {**RENDEZVOUS, "RANK": rank, "MASTER_PORT": str(other.getsockname()[1])}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(DistributedError, match=f"^the 2 processes cannot meet at 127.*{reason}.*port that is free"):
            join_team().__enter__()


def wait_for_ever() -> None:
    time.sleep(1000)


def test_hang_prints_the_stacks_of_every_process(tmp_path: Path) -> None:
    """Rank 1 hangs outside any exchange; both print their stacks, and rank 0 ends with exit code 7."""

    def work(rank: int) -> int:
        with join_team() as team:
            if rank == 1:
                wait_for_ever()
            try:
                team.any(True)
            except DistributedError as error:
                print(error)
                return error.exit_code
        return 0

    team = start_team(work, tmp_path, QUATSPHERE_TIMEOUT="2")
    assert team[0].wait() == 7, texts(team)
    team[1].wait_until(lambda: "in wait_for_ever" in team[1].text)
    team[1].send(signal.SIGKILL)
    assert team[1].wait() == -signal.SIGKILL
    assert "another process does not answer (" in team[0].text
    for rank, place in enumerate(("in any", "in wait_for_ever")):
        head, _, stack = team[rank].text.partition(" its stacks:\n")
        assert head == f"quatsphere: note: rank {rank} has exchanged nothing for 2 s;"
        assert place in stack


@pytest.mark.slow
def test_run_of_two_processes_resumes_in_one(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    """With another number of processes images and order are the same; only last bits may differ."""
    run = tmp_path / "run"
    team = run_team(config(), run)
    team[0].wait_until(has_step(run, 3))
    for process in team:
        process.send(signal.SIGTERM)
    assert codes(team) == [143, 143], texts(team)
    alone = command(config(), run, "--resume")
    assert alone.wait() == 0, alone.text
    assert "last bits may differ" in alone.text
    for found, expected in zip(trace_of(run)["metrics"], uninterrupted["metrics"], strict=True):
        assert found["train"] == pytest.approx(expected["train"], rel=1e-3)


@pytest.mark.slow
def test_batch_norm_in_two_processes_resumes_exactly(tmp_path: Path) -> None:
    settings = RunConfig(config().data, ResNet20Config(width=4), config().optim, config().train)
    whole = run_team(settings, tmp_path / "whole")
    assert codes(whole) == [0, 0], texts(whole)
    team = run_team(settings, tmp_path / "run")
    team[0].wait_until(has_step(tmp_path / "run", 2))
    team[1].send(signal.SIGKILL)
    codes(team)
    assert codes(run_team(settings, tmp_path / "run", "--resume")) == [0, 0]
    assert trace_of(tmp_path / "run") == trace_of(tmp_path / "whole")


@pytest.mark.slow
def test_stopped_process_counts_as_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    team = run_team(config(), run, QUATSPHERE_TIMEOUT="5")
    team[0].wait_until(has_step(run, 1))
    team[1].send(signal.SIGSTOP)
    assert team[0].wait() == 7, team[0].text
    assert "quatsphere: error: another process does not answer (" in team[0].text
    team[1].send(signal.SIGKILL)
    team[1].wait()


@pytest.mark.slow
def test_torchrun(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    launcher = torchrun(config(), tmp_path / "run")
    _, messages = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, messages
    assert trace_of(tmp_path / "run") == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, 20])
def test_torchrun_restarts_after_rank_kills(kills: int, tmp_path: Path) -> None:
    """Kill one of the two after each new checkpoint; torchrun restarts both, and the result is the same."""
    settings = config(epochs=kills // 2 + 2)
    whole = run_team(settings, tmp_path / "whole")
    assert codes(whole) == [0, 0], texts(whole)
    run, killed_at = tmp_path / "run", 0
    launcher = torchrun(settings, run, f"--max-restarts={kills + 5}")
    for kill in range(kills):
        while newest_step(run) <= killed_at:
            assert launcher.poll() is None
            time.sleep(0.02)
        workers = children_of(launcher.pid)
        os.kill(workers[kill % len(workers)], signal.SIGKILL)
        time.sleep(0.5)
        killed_at = newest_step(run)
    _, messages = launcher.communicate(timeout=400)
    assert launcher.returncode == 0, messages
    assert trace_of(run) == trace_of(tmp_path / "whole")
