"""A run from its configuration to `result.json`: check everything, then train, then test once."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quatsphere.config import RunConfig
from quatsphere.files.atomic import require_space, write_json
from quatsphere.files.checkpoint import Checkpoint, load_last_good
from quatsphere.files.run_folder import RunFolder
from quatsphere.files.safe_yaml import write_yaml
from quatsphere.kernels import choose_backend
from quatsphere.models import build_model
from quatsphere.models.scoring import Evaluation
from quatsphere.train.evaluation import pack_indices
from quatsphere.train.event_log import EventLog
from quatsphere.train.identity import commit, config_to_dict, environment, versions
from quatsphere.train.memory import memory_errors
from quatsphere.train.parallel import join_team
from quatsphere.train.prepare import (
    fit_to_data,
    load_data,
    pick_device,
    precision_warning,
    prepare_torch,
    require_trainable,
)
from quatsphere.train.progress import Relay, Reporter
from quatsphere.train.same_run import fix_threads, require_same_data, require_same_run, say_what_changed
from quatsphere.train.setting import Setting
from quatsphere.train.signals import stop_switch
from quatsphere.train.snapshot import put_back
from quatsphere.train.trainer import Trainer


@dataclass(frozen=True)
class Choices:
    """What a start may be told beside its configuration."""

    resume: bool = False
    accept_data_change: bool = False
    repair: bool = False


def train(
    config: RunConfig, run_dir: str | Path, choices: Choices | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Train, test at the best validation accuracy, and return what `result.json` holds.

    Run by torchrun, every process calls this; the one that leads writes and returns, the others return nothing.
    """
    choices = choices or Choices()
    with stop_switch() as stop, join_team() as team, ExitStack() as held:
        reporter = Relay(reporter) if reporter and team.leads else Reporter()
        run = RunFolder(run_dir, reporter.note)
        result = team.lead(lambda: _finished(config, run, choices))
        if result is not None:
            reporter.note(f"run '{run.name}' is finished; nothing is left to do")
            return result if team.leads else {}
        team.agree("configuration", _digest(config))
        config = replace(config, train=team.lead(lambda: fix_threads(config.train, run, resume=choices.resume)))
        prepare_torch(config.train)
        setting = Setting(run, team, pick_device(config.train.device, team), reporter, stop)
        warning = precision_warning(config.train.precision, setting.device)
        if warning is not None:
            reporter.note(warning)
        trainer = _make_trainer(config, setting)
        checkpoint = team.lead(lambda: _open(trainer, choices, held))
        if checkpoint is not None:
            put_back(trainer, checkpoint, repair=choices.repair)
        with memory_errors(trainer.model, trainer.config.train.batch_size):
            return _train_leading(trainer, repair=choices.repair) if team.leads else _train_along(trainer)


def _finished(config: RunConfig, run: RunFolder, choices: Choices) -> dict[str, Any] | None:
    """The result of a run that is done already; a folder that may not be used is refused before data is read."""
    if choices.resume and run.finished:
        result: dict[str, Any] = json.loads(run.result.read_text())
        return result
    if run.path.exists():
        run.claim(resume=choices.resume)
    if choices.resume and run.config.is_file():
        require_same_run(config, run)
    return None


def _make_trainer(config: RunConfig, setting: Setting) -> Trainer:
    """Data and model, checked against each other and between processes; nothing is written."""
    dataset = load_data(config.data, setting.reporter.note)
    require_trainable(config.train, dataset)
    setting.team.agree("data set", dataset.fingerprint)
    config = fit_to_data(config, dataset)
    return Trainer(config, dataset, build_model(config.model, seed=config.train.seed), setting)


def _open(trainer: Trainer, choices: Choices, held: ExitStack) -> Checkpoint | None:
    """Claim and lock the folder for as long as `held` lives; the checkpoint to go on from, if there is one."""
    run, reporter = trainer.setting.run, trainer.setting.reporter
    run.claim(resume=choices.resume)
    held.enter_context(run.lock())
    run.claim(resume=choices.resume)
    if choices.resume and run.config.is_file():
        require_same_run(trainer.config, run, fitted=True)
    found = load_last_good(run.checkpoints, reporter.note) if choices.resume and run.checkpoints.is_dir() else None
    if found is not None:
        require_same_data(found, trainer.dataset.fingerprint, accept_change=choices.accept_data_change)
        say_what_changed(found, trainer.setting.team.world, reporter.note)
    elif choices.resume:
        reporter.note("no checkpoint yet: starting from the beginning")
    _require_space(trainer, begun=found is not None)
    run.truncate_metrics(found.meta["metrics_offset"] if found else 0)
    return found


def _require_space(trainer: Trainer, *, begun: bool) -> None:
    """Room for the best checkpoint, those that are kept and a new one; a run that is resumed has most of them."""
    size = sum(t.numel() * t.element_size() for t in trainer.model.state_dict().values())
    count = 2 if begun else trainer.config.train.keep + 2
    require_space(f"{count} checkpoints", trainer.setting.run.path, count * 4 * size)


def _train_leading(trainer: Trainer, *, repair: bool) -> dict[str, Any]:
    """The process that writes: folder, checkpoints, metrics, result."""
    run, config, setting = trainer.setting.run, trainer.config, trainer.setting
    write_yaml(run.config, config_to_dict(config))
    write_json(run.environment, environment(setting.device, setting.team.world))
    if config.train.tensorboard:
        setting.reporter = EventLog(setting.reporter, run.path, trainer.progress.step)
    try:
        setting.reporter.start(facts(trainer))
        trainer.fit()
        setting.team.part()
        result = make_result(trainer, trainer.test(repair=repair))
        write_json(run.result, result)
    finally:
        setting.reporter.close()
    return result


def _train_along(trainer: Trainer) -> dict[str, Any]:
    """The other processes: the same steps, no files."""
    trainer.fit()
    return {}


def facts(trainer: Trainer) -> dict[str, Any]:
    """What a user wants to see before the first step."""
    model, dataset, device = trainer.model, trainer.dataset, trainer.setting.device
    return {
        "model": trainer.config.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "images": {s: len(getattr(dataset, s).labels) for s in ("train", "val", "test")},
        "device": str(device),
        "threads": torch.get_num_threads(),
        "backend": choose_backend(getattr(trainer.config.model, "backend", "auto"), device.type),
        "epochs": trainer.config.train.epochs,
        "steps": trainer.total_steps,
        "start_epoch": trainer.progress.epoch,
        "run": str(trainer.setting.run.path),
    }


def make_result(trainer: Trainer, test: Evaluation) -> dict[str, Any]:
    """The numbers of a finished run with everything that identifies them."""
    progress, config = trainer.progress, trainer.config
    return {
        "test_accuracy": test.accuracy,
        "val_accuracy": progress.best_accuracy,
        "best_step": progress.best_step,
        "best_epoch": progress.best_epoch,
        "epochs": progress.epoch,
        "steps": progress.step,
        "seed": config.train.seed,
        "model": config.model.name,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "data": trainer.dataset.name,
        "test": test.report(),
        "images_seen": progress.epoch * len(trainer.dataset.train.labels),
        "fingerprint": trainer.dataset.fingerprint,
        "commit": commit(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "deterministic": config.train.deterministic,
        "seconds": progress.seconds,
        "predictions": pack_indices(test.predictions),
    }


def _digest(config: RunConfig) -> str:
    """What processes compare; where a machine keeps its data is its own affair."""
    plain = config_to_dict(config)
    plain["data"].pop("root")
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
