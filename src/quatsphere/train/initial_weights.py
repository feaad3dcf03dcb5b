"""Fine-tuning: start a run from the weights of a trained model, as far as they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from quatsphere.config import RunConfig
from quatsphere.config.resolve import config_to_dict
from quatsphere.errors import ConfigError, printable
from quatsphere.models import Model
from quatsphere.models.lattice import LatticeModel
from quatsphere.train.checkpointing import restore_weights

if TYPE_CHECKING:
    from quatsphere.train.load import TrainedModel

DATA_SIZES = ("image_size", "in_channels", "num_classes")
CLASSIFIER = "classifier."


def initial_settings(source: str) -> dict[str, Any]:
    """Settings of a run that starts from a trained model: its `model.*`, and its fit, size and channels of images."""
    from quatsphere.train.load import load

    trained = load(source)
    config = RunConfig(model=trained.model.config)
    model = {f"model.{key}": value for key, value in config_to_dict(config)["model"].items() if key not in DATA_SIZES}
    channels = config.model.in_channels if config.model.in_channels in (1, 3) else None
    data = {"data.image_size": config.model.image_size, "data.channels": channels, "data.fit": trained.config.data.fit}
    return {**model, **data}


def start_from(model: Model, source: str, classes: tuple[str, ...], note: Callable[[str], None]) -> None:
    """Copy the weights of a trained model that fit; notes say what is carried over and what starts anew.

    Tensors of another shape start anew, and so does the classifier unless the classes are the same.
    """
    from quatsphere.train.load import load

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
    """What is carried over, what starts anew, and a change of the image's size, one line each."""
    total = sum(parameter.numel() for parameter in model.parameters())
    old, new = trained.config.model, model.config
    parts = "all" if not fresh else _parts(model, fresh, new.num_classes, len(trained.classes))
    lines = [
        f"carried over from {printable(source)}: {carried:,} of {total:,} parameters",
        f"starts anew: {'nothing' if not fresh else parts}; optimiser, schedule and normalisation of the new data",
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
