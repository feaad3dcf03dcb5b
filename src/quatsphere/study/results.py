"""A results folder: one small JSON file per finished cell, written atomically, and the run folders of the cells.

cells/<cell>.json   records that tables and claims read, sealed; small enough for version control
settings/<id>.json  configurations of the cells, each stored once: cells that differ only in their seed use the same
plans.json          cells of every plan that was started here
runs/<cell>/        run folders; large, ignored by git, may be deleted when all cells are finished
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from quatsphere.config.resolve import rename
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.optim.optimisers import SCHEDULES
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.checkpoint import read_pointer
from quatsphere.storage.run_folder import RunFolder, folder_lock
from quatsphere.storage.sealed_json import MAX_JSON_BYTES, misfit, natural, positive, read_sealed, seal
from quatsphere.study.statistics import MIN_SEEDS
from quatsphere.study.variants import TRAIN_IMAGES

CellRecord = Mapping[str, Any]
"""A cell's file: identity, configuration, accuracies, trajectory, diagnostics."""
AnyRecord = TypeVar("AnyRecord", bound=Mapping[str, Any])
RECORD_FORMAT = 3
"""Format 1 had the configuration inside each cell's file, format 2 no seal."""
SEALED_SINCE = 3
SEED = "train.seed"
"""The setting that is stored in the record and not in the shared file of settings."""
GITIGNORE = "runs/\n.lock\n"

_BY_STEP, _MAYBE = [(float, None)], (float, None)
_IDENTITY = {"cell": str, "dataset": set(TRAIN_IMAGES), "variant": str, "seed": int, "commit?": (str, None)}
_SETTINGS = {
    "model.name": str,
    "train.epochs": positive,
    "optim.schedule": set(SCHEDULES),
    **dict.fromkeys(("optim.warmup", "optim.initial_div", "optim.final_div"), float),
    **dict.fromkeys(("optim.peak_lr", "optim.weight_decay"), float),
    "model.shells?": int,
    "model.base_vertices?": int,
    "model.beta_start?": _MAYBE,
    "model.beta_frozen?": bool,
    "data.max_train_images?": (int, None),
}
_CURVES = ("train_loss", "train_accuracy", "images_per_second")
_BY_EPOCH = {
    "val_accuracy": _BY_STEP,
    **{key: [[float]] for key in ("beta", "routing_entropy", "routing_peak")},
    **{key: [_BY_STEP] for key in ("bound?", "field_motion?")},
    **{key: [[float]] for key in ("beta_min?", "beta_max?")},
}
_DIAGNOSTICS = {
    **dict.fromkeys(("clean_train_accuracy?", "clean_val_accuracy?"), _MAYBE),
    **dict.fromkeys(("energy?", "energy_start?", "nearest_min?", "entropy?", "peak?"), _BY_STEP),
    **{key: [float] for key in ("orientation_spread?", "score_spread?", "drift?", "displacement?", "spacing?")},
    **{key: [float] for key in ("beta_mean?", "beta_min?", "beta_max?", "agreement?")},
    "steps?": [str],
}
CELL_SHAPES: dict[str, dict[str, Any]] = {
    "diverged": {
        **_IDENTITY,
        "config": _SETTINGS,
        "trajectory": dict.fromkeys(_CURVES, _BY_STEP),
        "reason?": str,
    },
    "finished": {
        **_IDENTITY,
        "config": _SETTINGS,
        **dict.fromkeys(("epochs", "steps", "parameters", "images_seen?", "threads?"), positive),
        **dict.fromkeys(("test_accuracy", "val_accuracy", "seconds"), float),
        "nll?": _MAYBE,
        "ece?": _MAYBE,
        "best_epoch?": (int, None),
        **dict.fromkeys(("fingerprint", "processor?", "predictions?", "weights_sha256?"), str),
        "versions": {str: str},
        "per_class?": {str: _MAYBE},
        "test_counts?": [natural],
        "diagnostics?": _DIAGNOSTICS,
        "trajectory": {**_BY_EPOCH, **{key: [float, ...] for key in _CURVES}},
    },
}
"""Fields of a record by its status, as `storage.sealed_json.misfit` checks them."""


class Results:
    """Finished cells of a study and the run folders of unfinished ones."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.cells = self.path / "cells"
        self.settings = self.path / "settings"
        self.runs = self.path / "runs"

    def __repr__(self) -> str:
        """Folder and number of finished cells."""
        return f"Results({self.path}, {sum(1 for _ in self.cells.glob('*.json')):,} finished cells)"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the folder and lock it for writing."""
        try:
            self.cells.mkdir(parents=True, exist_ok=True)
            self.settings.mkdir(exist_ok=True)
            self.runs.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use results folder ({self.path}: {error.strerror}); use another") from error
        with folder_lock(self.path / ".lock", self.path.name, lambda message: None):
            atomic.remove_leftovers(self.cells)
            atomic.remove_leftovers(self.settings)
            if not (self.path / ".gitignore").exists():
                atomic.write_text(self.path / ".gitignore", GITIGNORE)
            yield

    def require(self) -> None:
        """Raise ConfigError unless the folder holds results."""
        if not self.cells.is_dir():
            raise ConfigError(
                f"no results in {self.path} (looked for cells/); name the folder of 'study run --results'"
            )

    def add_to_plan(self, plan: str, cells: Sequence[str]) -> None:
        """Add cells to the list of a plan."""
        planned = self.planned()
        merged = list(dict.fromkeys([*planned.get(plan, []), *cells]))
        atomic.write_json(self.path / "plans.json", {**planned, plan: merged})

    def planned(self) -> dict[str, list[str]]:
        """plan -> ids of its cells, for every plan that was started here."""
        path = self.path / "plans.json"
        try:
            return read_sealed(path, SEALED_SINCE, {str: [str]})[0] if path.exists() else {}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"damaged list of plans ({path}: {error}); restore or delete it") from error

    def file(self, cell: str) -> Path:
        """Path of a finished cell's record."""
        return self.cells / f"{cell}.json"

    def run(self, cell: str) -> RunFolder:
        """Run folder of a cell."""
        return RunFolder(self.runs / cell, lambda message: None)

    def write(self, cell: str, record: CellRecord) -> None:
        """Store a finished cell atomically, its settings first so that the record never refers to a missing file."""
        text = _to_json({key: value for key, value in record["config"].items() if key != SEED})
        name = sha256_bytes(text.encode())[:12]
        atomic.write_text(self.settings / f"{name}.json", text)
        values = {**record, "format": RECORD_FORMAT, "config": name}
        rounded = {key: _rounded(atomic.finite(value)) for key, value in values.items()}
        atomic.write_bytes(self.file(cell), seal(rounded, _to_json))

    def seal(self, cell: str) -> None:
        """Add the checksum to a record that an older version wrote; nothing else in it changes."""
        record, _ = read_sealed(self.file(cell), SEALED_SINCE)
        atomic.write_bytes(self.file(cell), seal({**record, "format": RECORD_FORMAT}, _to_json))

    def read(self, cell: str) -> dict[str, Any] | None:
        """Record of a finished cell, or None."""
        path = self.file(cell)
        return self._read_record(path)[0] if path.exists() else None

    def finished(self) -> list[dict[str, Any]]:
        """Records of all finished and diverged cells, sorted by name."""
        return [self._read_record(path)[0] for path in self._paths()]

    def check(self) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str]]:
        """Records by cell of all files that can be read, reasons of those that are damaged, cells without a seal."""
        records, damaged, unsealed = {}, {}, []
        for path in self._paths():
            try:
                records[path.stem], sealed = self._read_record(path)
            except CheckpointError as error:
                damaged[path.stem] = str(error)
            else:
                unsealed += [] if sealed else [path.stem]
        return records, damaged, unsealed

    def _paths(self) -> list[Path]:
        return [path for path in sorted(self.cells.glob("*.json")) if not atomic.is_leftover(path.name)]

    def _read_record(self, path: Path) -> tuple[dict[str, Any], bool]:
        """Read a record, insert its configuration and check every field; True if the file is sealed."""
        head = {"status": set(CELL_SHAPES), "seed": int, "cell": {path.stem}}
        try:
            record, sealed = read_sealed(path, SEALED_SINCE, head)
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error
        if isinstance(record.get("config"), str):
            record["config"] = {**rename(self._read_settings(path, record["config"])), SEED: record["seed"]}
        elif isinstance(record.get("config"), dict):
            record["config"] = rename(record["config"])
        wrong = misfit(record, CELL_SHAPES[record["status"]])
        if wrong is not None:
            raise _damaged(path, wrong)
        return record, sealed

    def _read_settings(self, path: Path, name: str) -> dict[str, Any]:
        """Settings of a cell: their name is their hash, so that a change is noticed."""
        file = self.settings / f"{name}.json"
        text = read_regular(file, MAX_JSON_BYTES) if re.fullmatch("[0-9a-f]{12}", name) and file.is_file() else b""
        if sha256_bytes(text)[:12] != name:
            state = "were changed" if text else "are missing"
            raise CheckpointError(f"settings of {path.name} {state} ({file}); restore the file, which the cells need")
        settings: dict[str, Any] = json.loads(text)
        return settings

    def drop_weights(self, cell: str, keep: str) -> None:
        """Delete the checkpoints of a finished cell except those to keep: `best`, `all` or `none`."""
        folder = self.run(cell).checkpoints
        best = read_pointer(folder, "best")
        for path in folder.glob("step-*") if keep != "all" else ():
            if not (keep == "best" and path == best) and not atomic.is_leftover(path.name):
                atomic.remove_folder(path)

    def status(self) -> dict[str, Any]:
        """Cells of every plan by state, and the epochs that unfinished cells have trained so far (`begun`)."""
        self.require()
        state: dict[str, str] = {record["cell"]: record["status"] for record in self.finished()}
        count, planned = len(state), self.planned()
        begun: dict[str, int] = {}
        for cell in dict.fromkeys(cell for ids in planned.values() for cell in ids):
            if cell not in state:
                is_begun = self.run(cell).config.is_file()
                state[cell] = "begun" if is_begun else "missing"
                begun |= {cell: len(self.run(cell).read_metrics())} if is_begun else {}
        names = ("finished", "diverged", "begun", "missing")
        plans = {
            plan: {"cells": ids, **{name: [cell for cell in ids if state[cell] == name] for name in names}}
            for plan, ids in planned.items()
        }
        return {"plans": plans, "begun": begun, "cells": count}


def read_records(folder: str | Path) -> list[dict[str, Any]]:
    """Records of all finished and diverged cells of a folder; ConfigError if it holds no results."""
    results = Results(folder)
    results.require()
    return results.finished()


def at_one_length(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """Cells of one training length, for tables that do not distinguish lengths.

    It is the greatest length with three seeds of the full model, or the greatest if there is none; cells whose name
    contains no length are always kept.
    """
    full_cells: dict[int, int] = {}
    for record in records:
        epochs = _length_in_name(record)
        if epochs is not None:
            full_cells[epochs] = full_cells.get(epochs, 0) + (record["variant"] == "full")
    if len(full_cells) < 2:
        return list(records)
    chosen = max(full_cells, key=lambda epochs: (full_cells[epochs] >= MIN_SEEDS, epochs))
    return [record for record in records if _length_in_name(record) in (None, chosen)]


def _length_in_name(record: CellRecord) -> int | None:
    """Epochs in a cell's name."""
    found = re.search(r"\.e(\d+)\.s\d+$", record["cell"])
    return None if found is None else int(found[1])


def _to_json(record: CellRecord) -> str:
    """JSON with one key per line."""
    values = {key: json.dumps(value, allow_nan=False, separators=(",", ":")) for key, value in record.items()}
    return "{\n" + ",\n".join(f"{json.dumps(key)}:{value}" for key, value in values.items()) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Round floats to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _damaged(path: Path, reason: object) -> CheckpointError:
    return CheckpointError(f"damaged result ({path}: {reason}); restore it, or delete it and run the plan again")
