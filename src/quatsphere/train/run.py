"""A run from its configuration to `result.json`: check everything, then train, then test once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from quatsphere.config import DataConfig, RunConfig, TrainConfig
from quatsphere.data import Dataset, load_dataset
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.files.atomic import require_space, write_json
from quatsphere.files.checkpoint import load_last_good
from quatsphere.files.run_folder import RunFolder
from quatsphere.files.safe_yaml import read_yaml, write_yaml
from quatsphere.kernels import choose_backend
from quatsphere.models import build_model
from quatsphere.train.event_log import EventLog
from quatsphere.train.identity import commit, config_to_dict, environment, versions
from quatsphere.train.parallel import Team, join_team
from quatsphere.train.progress import Reporter
from quatsphere.train.signals import stop_switch
from quatsphere.train.trainer import Setting, Trainer

MAY_CHANGE = {"data.root"} | {
    f"train.{name}"
    for name in ("device", "threads", "compile", "checkpoint_steps", "checkpoint_seconds", "keep", "tensorboard")
}
"""Settings a resumed run may change without becoming another run."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a start may be told beside its configuration."""

    resume: bool = False
    accept_data_change: bool = False
    repair: bool = False


def train(
    config: RunConfig, run_dir: str | Path, choices: Choices | None = None, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Train, test at the best validation accuracy, and return what `result.json` holds."""
    choices, reporter = choices or Choices(), reporter or Reporter()
    run = RunFolder(run_dir, reporter.note)
    if choices.resume and run.finished:
        result: dict[str, Any] = json.loads(run.result.read_text())
        reporter.note(f"run '{run.name}' is finished: test accuracy {result['test_accuracy']:.4f}")
        return result
    prepare_torch(config.train)
    with join_team() as team, stop_switch() as stop:
        dataset = load_data(config.data, reporter.note)
        config = fit_to_data(config, dataset)
        model = build_model(config.model, seed=config.train.seed)
        if config.train.batch_size > len(dataset.train.labels):
            raise ConfigError(
                f"train.batch_size must not exceed the {len(dataset.train.labels)} training images: "
                f"got {config.train.batch_size}; nearest legal value {len(dataset.train.labels)}"
            )
        team.agree("configuration", _digest(config_to_dict(config)))
        team.agree("data set", dataset.fingerprint)
        setting = Setting(run, team, pick_device(config.train.device, team), reporter, stop)
        trainer = Trainer(config, dataset, model, setting)
        if not team.leads:
            return _train_along(trainer, choices)
        run.claim(resume=choices.resume)
        with run.lock():
            return _train_leading(trainer, choices)


def _train_leading(trainer: Trainer, choices: Choices) -> dict[str, Any]:
    """The process that writes: folder, checkpoints, metrics, result."""
    run, config, reporter = trainer.setting.run, trainer.config, trainer.setting.reporter
    size = sum(t.numel() * t.element_size() for t in trainer.model.state_dict().values())
    require_space("two checkpoints", run.path, 2 * 4 * size)
    resume_from_last(trainer, choices)
    write_yaml(run.config, config_to_dict(config))
    write_json(run.environment, environment(trainer.setting.device, trainer.setting.team.world))
    trainer.setting.reporter = EventLog.around(reporter, run.path, config.train.tensorboard)
    trainer.setting.reporter.start(facts(trainer))
    try:
        trainer.fit()
        result = make_result(trainer)
        write_json(run.result, result)
    finally:
        trainer.setting.reporter.close()
    return result


def _train_along(trainer: Trainer, choices: Choices) -> dict[str, Any]:
    """The other processes: the same steps, no files."""
    resume_from_last(trainer, choices)
    trainer.setting.reporter = Reporter()
    trainer.fit()
    return {}


def resume_from_last(trainer: Trainer, choices: Choices) -> None:
    """Restore the newest good checkpoint if there is one and it belongs to this configuration and data."""
    run, reporter = trainer.setting.run, trainer.setting.reporter
    if not choices.resume:
        return
    checkpoint = load_last_good(run.checkpoints, reporter.note) if run.checkpoints.is_dir() else None
    if checkpoint is None:
        reporter.note("no checkpoint yet: starting from the beginning")
        return
    if checkpoint.meta["fingerprint"] != trainer.dataset.fingerprint and not choices.accept_data_change:
        raise CheckpointError(
            f"the data changed since this run started ({checkpoint.meta['fingerprint'][:12]} -> "
            f"{trainer.dataset.fingerprint[:12]}); restore it, or go on with --accept-data-change"
        )
    if (checkpoint.meta["torch"], checkpoint.meta["threads"]) != (torch.__version__, torch.get_num_threads()):
        reporter.note(
            f"written with torch {checkpoint.meta['torch']} and {checkpoint.meta['threads']} threads: "
            "bit-identity is not promised"
        )
    trainer.restore(checkpoint, repair=choices.repair)


def require_same_run(config: RunConfig, run: RunFolder) -> None:
    """A resumed run must be the same run: any other difference is listed side by side."""
    stored = flatten(read_yaml(run.config))
    asked = flatten(config_to_dict(config))
    derived = {"model.image_size", "model.in_channels", "model.num_classes", "model.dim", "model.heads"}
    differing = [
        f"{key}: {stored.get(key)!r} in the run, {value!r} now"
        for key, value in asked.items()
        if key not in MAY_CHANGE and stored.get(key) != value and not (key in derived and value is None)
    ]
    if differing:
        raise ConfigError(f"run '{run.name}' has other settings ({'; '.join(differing[:10])}); use another --run-dir")


def flatten(groups: dict[str, Any]) -> dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}."""
    return {f"{group}.{key}": value for group, fields in groups.items() for key, value in fields.items()}


def prepare_torch(config: TrainConfig) -> None:
    """Threads and determinism, before any tensor is made."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
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


def load_data(
    config: DataConfig, note: Callable[[str], None], progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """The data set of a configuration; whatever must be known about this copy is said."""
    dataset = load_dataset(
        config.name,
        root=config.root,
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        train_limit=config.train_limit,
        image_size=config.image_size,
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


def facts(trainer: Trainer) -> dict[str, Any]:
    """What a user wants to see before the first step."""
    model, dataset = trainer.model, trainer.dataset
    return {
        "model": trainer.config.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": dataset.name,
        "fingerprint": dataset.fingerprint,
        "images": {s: len(getattr(dataset, s).labels) for s in ("train", "val", "test")},
        "device": str(trainer.setting.device),
        "threads": torch.get_num_threads(),
        "backend": choose_backend(getattr(trainer.config.model, "backend", "auto")),
        "epochs": trainer.config.train.epochs,
        "steps": trainer.total_steps,
        "start_epoch": trainer.progress.epoch,
        "run": str(trainer.setting.run.path),
    }


def make_result(trainer: Trainer) -> dict[str, Any]:
    """The numbers of a finished run with everything that identifies them."""
    test = trainer.test()
    progress, config = trainer.progress, trainer.config
    return {
        "test_accuracy": test["accuracy"],
        "val_accuracy": progress.best_accuracy,
        "best_step": progress.best_step,
        "best_epoch": progress.best_epoch,
        "epochs": progress.epoch,
        "steps": progress.step,
        "seed": config.train.seed,
        "model": config.model.name,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "data": trainer.dataset.name,
        "test": test,
        "fingerprint": trainer.dataset.fingerprint,
        "commit": commit(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "deterministic": config.train.deterministic,
        "seconds": progress.seconds,
    }


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
