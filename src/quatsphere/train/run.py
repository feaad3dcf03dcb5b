"""A run from its configuration to `result.json`: check everything, then train, then test once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from quatsphere.config import DataConfig, RunConfig, TrainConfig
from quatsphere.config.resolve import config_to_dict
from quatsphere.data import Dataset, load_dataset
from quatsphere.errors import ConfigError
from quatsphere.kernels import choose_backend
from quatsphere.models import build_model
from quatsphere.models.scoring import Evaluation
from quatsphere.storage.atomic import require_space, write_json
from quatsphere.storage.checkpoint import Checkpoint, load_last_good
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import write_yaml
from quatsphere.train.checkpointing import Setting, put_back
from quatsphere.train.distributed import Team, join_team
from quatsphere.train.evaluation import pack_indices
from quatsphere.train.provenance import (
    commit,
    environment,
    fix_threads,
    require_same_data,
    require_same_run,
    say_what_changed,
    versions,
)
from quatsphere.train.reporting import EventLog, Relay, Reporter, writer_class
from quatsphere.train.resources import memory_errors, stop_switch
from quatsphere.train.trainer import Trainer


def prepare_torch(config: TrainConfig) -> None:
    """Threads and determinism, before any tensor is made."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)


def pick_device(name: str, team: Team) -> torch.device:
    """The named device, or the best there is; each process of a team takes its own GPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"train.device {name!r} cannot be used ({str(error).splitlines()[0][:80]}); use auto or cpu"
            ) from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", team.local_rank)
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def precision_warning(precision: str, device: torch.device) -> str | None:
    """One line if lower precision is slower than fp32 here: processors without instructions for it emulate them."""
    if precision == "fp32" or device.type != "cpu":
        return None
    ratio = _product_seconds(torch.bfloat16 if precision == "bf16" else torch.float16) / _product_seconds(torch.float32)
    if ratio < 2:
        return None
    return (
        f"train.precision {precision} is slow on this processor: a product takes {ratio:.0f} times as long as in fp32; "
        "use --train.precision fp32"
    )


def _product_seconds(dtype: torch.dtype) -> float:
    """The shortest of five times for a product of matrices."""
    matrix, seconds = torch.ones(256, 256, dtype=dtype), []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def load_data(
    config: DataConfig, note: Callable[[str], None], progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """The data set of a configuration; whatever must be known about this copy is said."""
    dataset = load_dataset(
        config.name,
        root=config.root,
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        max_train_images=config.max_train_images,
        image_size=config.image_size,
        fit=config.fit,
        skip_bad=config.skip_bad,
        progress=progress,
    )
    for message in dataset.notes:
        note(message)
    return dataset


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Image size, channels and classes of the model are the data's."""
    _, channels, size, _ = dataset.train.images.shape
    model = dataclasses.replace(config.model, image_size=size, in_channels=channels, num_classes=len(dataset.classes))
    return dataclasses.replace(config, model=model)


def require_trainable(config: TrainConfig, dataset: Dataset) -> None:
    """What settings and data must not do to each other."""
    count = len(dataset.train.labels)
    if config.batch_size > count:
        raise ConfigError(
            f"train.batch_size must not exceed the {count} training images: "
            f"got {config.batch_size}; nearest legal value {count}"
        )
    if not len(dataset.test.labels):
        raise ConfigError("no test images are left (data.test_fraction 0); hold out a share > 0")
    if config.tensorboard:
        writer_class()


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
    count = 2 if begun else trainer.config.train.keep_checkpoints + 2
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
