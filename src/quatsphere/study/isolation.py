"""Check that a variant differs from its reference only in the component it targets.

Settings must be equal except for those the variant names; parameters and initial values except for what it declares
(`Variant.removes`, `adds`, `reinitialises`); data order, augmentation, targets and dropout keys must be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from quatsphere.config import RunConfig
from quatsphere.config.resolve import flat_settings
from quatsphere.data import Dataset
from quatsphere.models import build_model
from quatsphere.study.plan import Cell
from quatsphere.study.variants import Variant, find_variant
from quatsphere.train.batches import Batches
from quatsphere.train.run import fit_to_data, load_data

BY_MODEL = ("model.", "train.patience", "train.compile", "optim.peak_lr")
"""Settings that differ between models: their fields, the baselines' patience, learning rates from their own search."""
COMPARED_BATCHES = ((0, 0), (0, 1), (1, 0))
"""(epoch, step) of the batches whose contents are compared."""


def check_cells(cells: Sequence[Cell], references: Callable[[Cell], Cell]) -> dict[str, list[str]]:
    """`data set.row` -> undeclared differences from the reference, for the first cell of every row."""
    first = {(cell.dataset, cell.variant): cell for cell in reversed(cells)}
    datasets = {name: load_data(cell.config.data, lambda message: None) for (name, _), cell in first.items()}
    return {
        f"{cell.dataset}.{cell.variant}": find_differences(
            cell, references(cell), find_variant(cell.variant), datasets[cell.dataset]
        )
        for cell in sorted(first.values(), key=cells.index)
    }


def find_differences(cell: Cell, reference: Cell, variant: Variant, dataset: Dataset) -> list[str]:
    """Differences between a cell and its reference that the variant does not declare."""
    return [
        *setting_differences(cell.config, reference.config, variant),
        *batch_differences(cell.config, reference.config, dataset),
        *([] if variant.other_model else state_differences(cell.config, reference.config, variant, dataset)),
    ]


def setting_differences(config: RunConfig, reference: RunConfig, variant: Variant) -> Iterator[str]:
    """Settings that differ and are not named by the variant."""
    own, other = flat_settings(config), flat_settings(reference)
    for key in {**own, **other}:
        by_model = config.model.name != reference.model.name and key.startswith(BY_MODEL)
        if own.get(key) != other.get(key) and key not in variant.changes and not by_model:
            yield f"setting {key} is {own.get(key)!r}, in the reference {other.get(key)!r}"


def batch_differences(config: RunConfig, reference: RunConfig, dataset: Dataset) -> Iterator[str]:
    """Batches whose images, order, targets or dropout keys differ from the reference's in any bit."""
    own, other = (
        Batches(dataset, each.data, each.train.seed, each.train.batch_size, each.train.label_smoothing)
        for each in (config, reference)
    )
    for epoch, step in COMPARED_BATCHES:
        pair = (batches.batch(epoch, step, torch.device("cpu")) for batches in (own, other))
        if len({tensor_digest(vars(batch).values()) for batch in pair}) > 1:
            yield f"batch (epoch {epoch}, step {step}) differs"


def state_differences(config: RunConfig, reference: RunConfig, variant: Variant, dataset: Dataset) -> Iterator[str]:
    """Undeclared parameters and buffers that are missing, new, reshaped or initialised differently."""
    own, other = (build_model(fit_to_data(each, dataset).model, seed=each.train.seed) for each in (config, reference))
    shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in (own, other)]
    states = own.state_dict(), other.state_dict()
    both = states[0].keys() & states[1].keys()
    changed = {name for name in both if tensor_digest((states[0][name],)) != tensor_digest((states[1][name],))}
    found = {
        "remove": (variant.removes, shapes[1].keys() - shapes[0].keys(), "parameter {} is gone"),
        "add": (variant.adds, shapes[0].keys() - shapes[1].keys(), "parameter {} is new"),
        "reinitialise": (variant.reinitialises, changed, "{} has other initial values"),
    }
    for verb, (patterns, names, text) in found.items():
        allowed = (*patterns, *(variant.removes if verb == "reinitialise" else ()))
        undeclared = [name for name in sorted(names) if not any(fnmatchcase(name, pattern) for pattern in allowed)]
        yield from map(text.format, undeclared)
    for name in sorted(shapes[0].keys() & shapes[1].keys()):
        if shapes[0][name] != shapes[1][name]:
            yield f"parameter {name} has shape {shapes[0][name]}, in the reference {shapes[1][name]}"
    for verb, (patterns, names, _) in found.items():
        unused = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
        yield from (f"declared to {verb} {pattern}, but it does not" for pattern in unused)


def tensor_digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
