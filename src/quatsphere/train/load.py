"""Trained models in Python: `load(folder or name)` gives a model that predicts, evaluates and diagnoses."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.config.resolve import config_from_dict, config_to_dict
from quatsphere.data import Dataset
from quatsphere.data.augment import normalized_batches
from quatsphere.data.dataset import ProgressCallback
from quatsphere.data.in_memory import dataset_from
from quatsphere.errors import CheckpointError, ConfigError, printable
from quatsphere.models import Model, build_model
from quatsphere.models.lattice import LatticeModel
from quatsphere.models.scoring import Evaluation, batch_logits
from quatsphere.storage.checkpoint import (
    Checkpoint,
    DamagedCheckpoint,
    load_checkpoint,
    load_last_good,
    read_pointer,
    step_name,
    step_of,
    step_title,
    steps_in,
)
from quatsphere.storage.model_folder import is_model_folder, shipped_models
from quatsphere.storage.run_folder import RunFolder, nearest_run, print_note
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.train.checkpointing import meta_misfit, restore_weights
from quatsphere.train.evaluation import SplitName, evaluate
from quatsphere.train.hub import HUB_PREFIX, is_repository, pull, pull_address, push
from quatsphere.train.predict import ImageLike, Predictions, image_pixels, normalize_levels, split_images
from quatsphere.train.pretrained import pack, sizes_misfit, unpack
from quatsphere.train.run import load_data

PREDICTION_BATCH = 64
"""Images per forward pass of `predict`."""
Note = Callable[[str], None]


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedModel:
    """Model of a run or of a model folder, in evaluation mode, with everything needed to use it.

    Call it with a batch of images for logits, or `predict` with images of any kind for classes; both normalise.
    """

    run: RunFolder
    """The run, or the model folder."""
    config: RunConfig
    model: Model
    """The network alone, which expects normalised images."""
    step: int
    """Optimiser steps taken."""
    meta: dict[str, Any]
    """Stored with the weights: classes, normalisation, fingerprint of the data, progress."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits."""
        return tuple(self.meta["classes"])

    @property
    def result(self) -> dict[str, Any]:
        """Recorded result of these weights, as in `result.json`; empty if the run was not tested at this step."""
        if "result" in self.meta:
            return dict(self.meta["result"])
        result = self.run.read_result() or {}
        return result if result.get("best_step") == self.step else {}

    @property
    def output_folder(self) -> Path:
        """Folder for files about this model: the run's, or the current one, as a model folder is not changed."""
        return self.run.path if self.run.config.is_file() else Path()

    def __call__(self, images: Tensor) -> Tensor:
        """Logits (B, classes) of a batch (B, C, size, size): integer levels 0 to 255, or numbers in [0, 1].

        Images are normalised here, as in training, and gradients reach them. Any other scale or shape is a DataError.
        """
        logits: Tensor = self.model(normalize_levels(images, self.config.model, self.meta["mean"], self.meta["std"]))
        return logits

    def predict(self, images: ImageLike | Sequence[ImageLike]) -> Predictions:
        """Classify images of any size: file paths, PIL images, arrays (H, W, C) or tensors (C, H, W), one or a list.

        Images are fitted and normalised as in training. Arrays and tensors hold integers up to 255 or floating-point
        numbers in [0, 1]; with four dimensions they are batches. DataError names the first image that cannot be read.
        """
        names, given = split_images(images)
        pixels = [image_pixels(image, self.config, name) for name, image in zip(names, given, strict=True)]
        logits = self.logits(torch.stack(pixels)) if pixels else torch.empty(0, len(self.classes))
        return Predictions(tuple(names), self.classes, logits.softmax(1))

    def logits(self, pixels: Tensor) -> Tensor:
        """Logits (n, classes) of any number of uint8 images of the model's size, without gradients."""
        mean, std = (torch.tensor(self.meta[key]) for key in ("mean", "std"))
        return batch_logits(self.model, normalized_batches(pixels, mean, std, PREDICTION_BATCH), len(self.classes))

    def dataset(
        self, root: str | Path | None = None, *, note: Note | None = None, progress: ProgressCallback | None = None
    ) -> Dataset:
        """Load the data of the run, from `root` if it has moved; CheckpointError for any other data."""
        config = self.config.data if root is None else dataclasses.replace(self.config.data, root=str(root))
        return self._require_same(load_data(config, note or self.run.note, progress))

    def evaluate(
        self,
        split: SplitName = "test",
        data: Any = None,
        *,
        progress: ProgressCallback | None = None,
    ) -> Evaluation:
        """Evaluate on a split of the run's data, of the same data at another path or from Python, or of a data set."""
        return evaluate(self.model, self._data(data), split, progress=progress)

    def diagnose(self, data: Any = None, **options: Any) -> dict[str, Any]:
        """Measure routing, field, vertices, accuracy and cost; `options` as in `quatsphere.diagnostics.diagnose`."""
        from quatsphere.diagnostics import diagnose

        options = {"seed": self.config.train.seed, "metrics": self.run.read_metrics(), **options}
        return diagnose(self.model, self._data(data), **options)

    def save_pretrained(self, folder: str | Path, *, licence: str = "other", overwrite: bool = False) -> Path:
        """Write a model folder: weights, settings, preprocessing and model card; `load` reads it anywhere."""
        return pack(self, folder, licence=licence, overwrite=overwrite)

    def push_to_hub(
        self, repository: str, *, licence: str = "other", private: bool = False, revision: str | None = None
    ) -> str:
        """Upload the model folder to the Hugging Face Hub (extra `hub`) as OWNER/NAME; return the commit's address."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.save_pretrained(Path(folder) / repository.rpartition("/")[2], licence=licence)
            return push(path, repository, private=private, revision=revision)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, revision: str | None = None) -> TrainedModel:
        """Load a model folder, a run, a bundled model, or OWNER/NAME of the Hugging Face Hub (extra `hub`).

        An existing folder takes precedence over a name of the Hub; downloads are verified before use.
        """
        if not Path(source).exists() and is_repository(str(source)):
            return load(pull(str(source), revision))
        return load(source)

    def _data(self, data: Any) -> Dataset:
        """The run's data, from a path or from the torch Dataset that was passed to `train`; a `Dataset` as it is."""
        if isinstance(data, Dataset):
            return data
        if data is None or isinstance(data, str | Path):
            return self.dataset(data)
        return self._require_same(dataset_from(data, self.config.data))

    def _require_same(self, dataset: Dataset) -> Dataset:
        if dataset.fingerprint != self.meta["fingerprint"]:
            raise CheckpointError(
                f"the data is not what the run was trained on ({dataset.fingerprint[:12]} instead of "
                f"{self.meta['fingerprint'][:12]}); name the right files with --data.root"
            )
        return dataset

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        facts = [self._accuracy(), f"step {self.step:,}", f"{parameters:,} parameters"]
        return f"TrainedModel({self.config.model.name} on {self.config.data.name}: {', '.join(filter(None, facts))})"

    def _accuracy(self) -> str:
        """Accuracy of these weights as far as the run folder has it."""
        result = self.result
        if "test" in result:
            return f"test accuracy {result['test_accuracy']:.4f} (n = {result['test']['images']:,})"
        measured = {record.get("step"): record.get("val_accuracy") for record in self.run.read_metrics()}
        accuracy = measured.get(self.step)
        return "" if accuracy is None else f"validation accuracy {accuracy:.4f}"


def load(source: str | Path, checkpoint: str | int = "best", *, note: Note = print_note) -> TrainedModel:
    """Load a model folder, a finished or interrupted run, or a model that comes with the package, by its name.

    An existing folder takes precedence over a name. `hf://OWNER/NAME` and `hf://OWNER/NAME@REVISION` are models on the
    Hugging Face Hub (extra `hub`). `checkpoint`, for runs, is "best" (the last one, if none is best yet), "last" or a
    step. `note` receives remarks, for example about a damaged checkpoint that was skipped; by default they are printed
    on stderr. `quatsphere models` lists the names.
    """
    path = pull_address(str(source)) if str(source).startswith(HUB_PREFIX) else Path(source)
    if not path.exists():
        path = shipped_models().get(str(source), path)
    run = RunFolder(path, note)
    if is_model_folder(path):
        return _assembled(run, *unpack(path), note)
    if not run.config.is_file():
        near = nearest_run(run.path)
        hint = "name the folder of a run" if near is None else f"did you mean {near}?"
        names = ", ".join(shipped_models())
        raise CheckpointError(f"no run in {run.path} (looked for config.yaml); {hint}, or a model: {names}")
    config = stored_config(run.config)
    found = _find_checkpoint(run, str(checkpoint))
    wrong = meta_misfit(found, config.model.num_classes, config.model.in_channels)
    wrong = sizes_misfit(config, found.weights) if wrong is None else wrong
    if wrong is not None:
        raise CheckpointError(f"checkpoint step {found.step} is damaged ({wrong}: {run.checkpoints}); load another one")
    return _assembled(run, config, found.weights, found.step, found.meta, note)


def _assembled(
    run: RunFolder, config: RunConfig, weights: dict[str, Tensor], step: int, meta: dict[str, Any], note: Note
) -> TrainedModel:
    model = build_model(config.model, seed=config.train.seed)
    restore_weights(model, weights, note=note)
    model.eval()
    return TrainedModel(run, config, model, step, meta)


def stored_config(path: Path) -> RunConfig:
    """Configuration in a run's `config.yaml`; settings newer than the run have their defaults."""
    stored = read_yaml(path)
    try:
        return config_from_dict(stored)
    except ConfigError as error:
        raise CheckpointError(f"not the settings of a run ({path}: {error}); restore the file") from error


def _find_checkpoint(run: RunFolder, which: str) -> Checkpoint:
    """Load the named checkpoint; an error lists those that exist."""
    paths = steps_in(run.checkpoints)
    best = read_pointer(run.checkpoints, "best")
    if not paths or (which == "best" and best is None):
        last = load_last_good(run.checkpoints, run.note) if run.checkpoints.is_dir() else None
        if last is None:
            raise CheckpointError(f"run '{run.name}' has no checkpoint yet; train it first")
        return last
    if which not in ("best", "last") and not which.isdecimal():
        raise ConfigError(f"checkpoint must be 'best', 'last' or a step: got {which!r:.40}")
    path = {"best": best, "last": paths[0]}.get(which) or run.checkpoints / step_name(int(which))
    others = ", ".join(str(step_of(other.name)) for other in paths if other != path)
    if path not in paths:
        raise CheckpointError(f"run '{run.name}' has no checkpoint {step_title(path)}; --checkpoint takes {others}")
    try:
        return load_checkpoint(path)
    except DamagedCheckpoint as damage:
        cure = f"load another checkpoint with --checkpoint {others}" if others else "no other is left, train it again"
        raise CheckpointError(f"{str(damage).rpartition('; ')[0]}; {cure}") from damage


# Fine-tuning.

DATA_SIZES = ("image_size", "in_channels", "num_classes")
CLASSIFIER = "classifier."


def initial_settings(source: str) -> dict[str, Any]:
    """Settings of a run that starts from a trained model: its `model.*`, and its fit, size and channels of images."""
    trained = load(source)
    config = RunConfig(model=trained.model.config)
    model = {f"model.{key}": value for key, value in config_to_dict(config)["model"].items() if key not in DATA_SIZES}
    channels = config.model.in_channels if config.model.in_channels in (1, 3) else None
    data = {"data.image_size": config.model.image_size, "data.channels": channels, "data.fit": trained.config.data.fit}
    return {**model, **data}


def start_from(model: Model, source: str, classes: tuple[str, ...], note: Callable[[str], None]) -> None:
    """Copy the weights of a trained model that fit; notes list what is copied and what is newly initialised.

    Tensors of another shape are newly initialised, and so is the classifier unless the classes are the same.
    """
    trained = load(source, note=note)
    if type(trained.model) is not type(model):
        names = trained.config.model.name, model.config.name
        raise ConfigError(f"train.init {printable(source)!r} is a model {names[0]!r}, not {names[1]!r}; choose another")
    own, given = model.state_dict(), trained.model.state_dict()
    fits = {name: given[name] for name in own if name in given and given[name].shape == own[name].shape}
    if trained.classes != classes:
        fits = {name: value for name, value in fits.items() if not name.startswith(CLASSIFIER)}
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    carried = sum(size for name, size in sizes.items() if name in fits)
    if not carried:
        raise ConfigError(f"no weight of train.init {printable(source)!r} fits the model; use its settings for model.*")
    restore_weights(model, {**own, **fits}, note=note)
    for line in _lines(model, trained, source, [name for name in sizes if name not in fits], carried):
        note(line)


def _lines(model: Model, trained: TrainedModel, source: str, fresh: list[str], carried: int) -> list[str]:
    """Lines for the user: copied parameters, newly initialised parts, a change of the image's size."""
    total = sum(parameter.numel() for parameter in model.parameters())
    old, new = trained.config.model, model.config
    parts = "all" if not fresh else _parts(model, fresh, new.num_classes, len(trained.classes))
    lines = [
        f"copied from {printable(source)}: {carried:,} of {total:,} parameters",
        f"initialised: {'nothing' if not fresh else parts}; optimiser, schedule and normalisation of the new data",
    ]
    if old.image_size != new.image_size:
        lines.append(f"images have {new.image_size} pixels instead of {old.image_size}: no weight depends on that")
    return lines


def _parts(model: Model, fresh: list[str], classes: int, before: int) -> str:
    """Parts of the model that the named parameters belong to."""
    table = model.PARTS if isinstance(model, LatticeModel) else ()
    names = [next((part for part, fragment in table if fragment in name), name.split(".")[0]) for name in fresh]
    shown = {name: f"classifier ({classes} classes, {before} before)" for name in names if name == "classifier"}
    return ", ".join(shown.get(name, name) for name in dict.fromkeys(names))
