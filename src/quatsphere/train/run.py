"""A run from its configuration to `result.json`: check everything, train, test once."""

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
from quatsphere.data import PYTHON_DATA, Dataset, load_dataset
from quatsphere.data.in_memory import dataset_from
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.kernels import choose_backend
from quatsphere.models import build_model
from quatsphere.models.scoring import Evaluation
from quatsphere.storage.atomic import require_space, write_json
from quatsphere.storage.checkpoint import Checkpoint, load_last_good, steps_in
from quatsphere.storage.run_folder import RunFolder, free_folder
from quatsphere.storage.safe_yaml import write_yaml
from quatsphere.train.checkpointing import RunContext, checkpoint_misfit, restore_trainer
from quatsphere.train.distributed import Team, join_team
from quatsphere.train.evaluation import pack_indices
from quatsphere.train.provenance import (
    commit,
    environment,
    note_environment_change,
    require_same_data,
    require_same_run,
    resolve_threads,
    versions,
)
from quatsphere.train.reporting import GuardedReporter, Reporter, open_tracker, require_tracker
from quatsphere.train.resources import estimate_run, memory_errors, stop_switch
from quatsphere.train.trainer import Trainer

KNOWN_DATA = ("digits", "cifar10", "cifar100")
"""Data sets whose presets have documented times; for any other, memory and time are estimated before the start."""

READ_SETTINGS = (
    *("root", "val_fraction", "test_fraction", "max_train_images"),
    *("image_size", "channels", "fit", "skip_bad"),
)
"""Settings of the group `data` that decide which images are read; the others augment them."""

# Preparation.


def prepare_torch(config: TrainConfig) -> None:
    """Set threads and determinism, before any tensor is made."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.deterministic)


def pick_device(name: str, team: Team) -> torch.device:
    """Return the named device or, for `auto`, the best available one; each process of a team has its own GPU."""
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
    """Warning if lower precision is slower than fp32, as on processors that emulate it; None if it is not."""
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
    """Shortest of five times for a product of matrices on one thread: several wait for each other on a busy machine."""
    matrix, seconds, threads = torch.ones(256, 256, dtype=dtype), [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(5):
            start = time.perf_counter()
            torch.mm(matrix, matrix)
            seconds.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return min(seconds)


def load_data(
    config: DataConfig, note: Callable[[str], None], progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """Load the data set of a configuration; remarks about this copy of the data go to `note`."""
    dataset = load_dataset(config.name, progress=progress, **{key: getattr(config, key) for key in READ_SETTINGS})
    for message in dataset.notes:
        note(message)
    return dataset


def fit_to_data(config: RunConfig, dataset: Dataset) -> RunConfig:
    """Return the configuration with the image size, channels and classes of the data."""
    _, channels, size, _ = dataset.train.images.shape
    model = dataclasses.replace(config.model, image_size=size, in_channels=channels, num_classes=len(dataset.classes))
    return dataclasses.replace(config, model=model)


def require_trainable(config: TrainConfig, dataset: Dataset) -> None:
    """Raise ConfigError if the settings cannot be used with this data set."""
    count = len(dataset.train.labels)
    if config.batch_size > count:
        raise ConfigError(
            f"train.batch_size must not exceed the {count} training images: "
            f"got {config.batch_size}; nearest legal value {count}"
        )
    if not len(dataset.test.labels):
        raise ConfigError("no test images are left (data.test_fraction 0); hold out a fraction > 0")
    require_tracker(config.track)


# A run.


@dataclass(frozen=True)
class ResumeOptions:
    """Options for continuing a run that exists."""

    resume: bool = False
    """Continue from the last good checkpoint, or start if there is none; without it an existing run is an error."""
    accept_data_change: bool = False
    """Continue although the data has another fingerprint."""
    repair: bool = False
    """Renormalise damaged quaternions of a checkpoint."""


class RunResult(dict[str, Any]):
    """Content of `result.json`; prints as one line."""

    def __repr__(self) -> str:
        """Model, data, accuracies and sizes."""
        if "test" not in self:
            return "RunResult()"
        accuracy = f"test accuracy {self['test_accuracy']:.4f} (n = {self['test']['images']:,})"
        size = f"epoch {self['best_epoch']} of {self['epochs']}, {self['parameters']:,} parameters"
        return f"RunResult({self['model']} on {self['data']}: {accuracy}, {size})"


def train(
    config: RunConfig,
    run_dir: str | Path | None = None,
    options: ResumeOptions | None = None,
    reporter: Reporter | None = None,
    *,
    data: Any = None,
) -> dict[str, Any]:
    """Train a model, test it at its best validation accuracy, and return the content of `result.json`.

    The folder `run_dir` (by default a new one in `runs/`) gets `config.yaml`, `metrics.jsonl`, checkpoints and
    `result.json`; an existing run is continued only with `ResumeOptions(resume=True)`, bit for bit. `reporter` receives
    progress callbacks. `data` replaces the data set that the configuration names: a torch Dataset of (image, label), a
    pair of them for training and test, or a `Dataset` of quatsphere (docs/howto/own-data.md). Under torchrun every
    process calls this function; rank 0 writes and returns the result, the others return {}.
    """
    options = options or ResumeOptions()
    if data is not None:
        config = replace(config, data=replace(config.data, name=PYTHON_DATA, root=None))
    with stop_switch() as stop, join_team() as team, ExitStack() as cleanup:
        reporter = GuardedReporter(reporter) if reporter and team.is_rank_zero else Reporter()
        run = RunFolder(free_folder(f"runs/{config.data.name}") if run_dir is None else run_dir, reporter.note)
        result = team.on_rank_zero(lambda: _finished_result(config, run, options))
        if result is not None:
            reporter.note(f"run '{run.name}' is finished; nothing is left to do")
            return result if team.is_rank_zero else {}
        shared = config_to_dict(config)
        shared["data"].pop("root")  # the path of the data may differ
        text = json.dumps(shared, sort_keys=True)
        team.assert_same("configuration", hashlib.sha256(text.encode()).hexdigest()[:16])
        threads = team.on_rank_zero(lambda: resolve_threads(config.train, run, resume=options.resume))
        config = replace(config, train=threads)
        prepare_torch(config.train)
        context = RunContext(run, team, pick_device(config.train.device, team), reporter, stop)
        choose_backend(getattr(config.model, "backend", "auto"), context.device.type)  # an error before data is read
        warning = precision_warning(config.train.precision, context.device)
        if warning is not None:
            reporter.note(warning)
        trainer = _make_trainer(config, context, data)
        begun = options.resume and run.config.is_file()
        if team.is_rank_zero and trainer.dataset.name not in KNOWN_DATA and not begun:
            with memory_errors(trainer.model, config.train.batch_size):
                reporter.plan(lambda: estimate_run(trainer))
        checkpoint = team.on_rank_zero(lambda: _open_run(trainer, options, cleanup))
        if checkpoint is not None:
            restore_trainer(trainer, checkpoint, repair=options.repair)
        with memory_errors(trainer.model, trainer.config.train.batch_size):
            if team.is_rank_zero:
                return _train_rank_zero(trainer, repair=options.repair)
            trainer.fit()  # in the other processes: the same steps, no files
            return {}


def _finished_result(config: RunConfig, run: RunFolder, options: ResumeOptions) -> dict[str, Any] | None:
    """Result of a run that is finished, else None; a folder that cannot be used is refused before data is read."""
    try:
        result = run.read_result() if options.resume else None
    except CheckpointError as damage:
        run.note(str(damage).partition(";")[0] + "; the run is tested again")
    else:
        if result is not None:
            return RunResult(result)
    if run.path.exists():
        run.claim(resume=options.resume)
    if options.resume and run.config.is_file():
        require_same_run(config, run)
    return None


def _make_trainer(config: RunConfig, context: RunContext, data: Any = None) -> Trainer:
    """Load data and build the model, checked against each other and between processes; nothing is written."""
    note = context.reporter.note
    dataset = load_data(config.data, note) if data is None else dataset_from(data, config.data)
    require_trainable(config.train, dataset)
    context.team.assert_same("data set", dataset.fingerprint)
    config = fit_to_data(config, dataset)
    model = build_model(config.model, seed=config.train.seed)
    if config.train.init is not None and not steps_in(context.run.checkpoints):
        from quatsphere.train.load import start_from  # which imports this module

        start_from(model, config.train.init, dataset.classes, note)
    return Trainer(config, dataset, model, context)


def _open_run(trainer: Trainer, options: ResumeOptions, cleanup: ExitStack) -> Checkpoint | None:
    """Claim the folder, lock it until `cleanup` closes, and return the checkpoint to continue from, if any."""
    run, reporter = trainer.context.run, trainer.context.reporter
    run.claim(resume=options.resume)
    cleanup.enter_context(run.lock())
    run.claim(resume=options.resume)
    if options.resume and run.config.is_file():
        require_same_run(trainer.config, run, fitted=True)
    found = None
    if options.resume and run.checkpoints.is_dir():
        found = load_last_good(run.checkpoints, reporter.note, lambda stored: checkpoint_misfit(trainer, stored))
    if found is not None:
        require_same_data(found, trainer.dataset.fingerprint, accept_change=options.accept_data_change)
        note_environment_change(found, trainer.context.team.world, reporter.note)
    elif options.resume:
        reporter.note("no checkpoint yet: starting from the beginning")
    _require_space(trainer, resumed=found is not None)
    run.truncate_metrics(found.meta["metrics_offset"] if found else 0)
    return found


def _require_space(trainer: Trainer, *, resumed: bool) -> None:
    """Require space for the best checkpoint, those that are kept and a new one; a resumed run has most of them."""
    size = sum(t.numel() * t.element_size() for t in trainer.model.state_dict().values())
    count = 2 if resumed else trainer.config.train.keep_checkpoints + 2
    require_space(f"{count} checkpoints", trainer.context.run.path, count * 4 * size)


def _train_rank_zero(trainer: Trainer, *, repair: bool) -> dict[str, Any]:
    """Train and test in the process that writes: settings, metrics, checkpoints, result."""
    config, context = trainer.config, trainer.context
    run, reporter = context.run, context.reporter
    write_yaml(run.config, config_to_dict(config))
    write_json(run.environment, environment(context.device, context.team.world))
    context.tracker = open_tracker(config, run, trainer.progress.step, reporter.note)
    try:
        reporter.start(run_facts(trainer))
        trainer.fit()
        context.team.close()
        result = make_result(trainer, trainer.test(repair=repair))
        run.write_result(result)
    finally:
        context.tracker.close()
        reporter.close()
    return result


def run_facts(trainer: Trainer) -> dict[str, Any]:
    """Facts for the user before the first step."""
    model, dataset, device = trainer.model, trainer.dataset, trainer.context.device
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
        "run": str(trainer.context.run.path),
    }


def make_result(trainer: Trainer, test: Evaluation) -> dict[str, Any]:
    """Content of `result.json`: the numbers of a finished run with everything that identifies them."""
    progress, config = trainer.progress, trainer.config
    facts = {
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
    return RunResult(facts)
