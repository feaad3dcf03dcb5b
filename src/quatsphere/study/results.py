"""A results folder: one small JSON file per finished cell, written atomically, and the run folders of the cells.

cells/<cell>.json   records that tables and claims read; small enough for version control
settings/<id>.json  configurations of the cells, each stored once: cells that differ only in their seed share one
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
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.checkpoint import read_pointer
from quatsphere.storage.lock import folder_lock
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.statistics import MIN_SEEDS

CellRecord = Mapping[str, Any]
"""A cell's file: identity, configuration, accuracies, trajectory, diagnostics."""
AnyRecord = TypeVar("AnyRecord", bound=Mapping[str, Any])
MAX_BYTES = 64 << 20
RECORD_FORMAT = 2
"""Format 1 had the configuration inside each cell's file."""
SEED = "train.seed"
"""The setting that is stored in the record and not in the shared file of settings."""
GITIGNORE = "runs/\n.lock\n"


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
        return _read(path) if path.exists() else {}

    def file(self, cell: str) -> Path:
        """Path of a finished cell's record."""
        return self.cells / f"{cell}.json"

    def run(self, cell: str) -> RunFolder:
        """Run folder of a cell."""
        return RunFolder(self.runs / cell, lambda message: None)

    def write(self, cell: str, record: CellRecord) -> None:
        """Store a finished cell atomically, its settings first so that the record never refers to a missing file."""
        text = _to_json({key: value for key, value in record["config"].items() if key != SEED})
        name = _settings_id(text.encode())
        atomic.write_text(self.settings / f"{name}.json", text)
        values = {**record, "format": RECORD_FORMAT, "config": name}
        rounded = {key: _rounded(atomic.finite(value)) for key, value in values.items()}
        atomic.write_text(self.file(cell), _to_json(rounded))

    def read(self, cell: str) -> dict[str, Any] | None:
        """Record of a finished cell, or None."""
        path = self.file(cell)
        return self._read_record(path) if path.exists() else None

    def finished(self) -> list[dict[str, Any]]:
        """Records of all finished and diverged cells, sorted by name."""
        paths = sorted(self.cells.glob("*.json"))
        return [self._read_record(path) for path in paths if not atomic.is_leftover(path.name)]

    def _read_record(self, path: Path) -> dict[str, Any]:
        """Read a record and insert its configuration."""
        record = _read(path)
        if not isinstance(record.get("config"), str):
            return {**record, "config": rename(record["config"])} if "config" in record else record
        file = self.settings / f"{record['config']}.json"
        text = read_regular(file, MAX_BYTES) if file.is_file() else b""
        if _settings_id(text) != file.stem:
            state = "were changed" if text else "are missing"
            raise CheckpointError(
                f"settings of {path.name} {state} ({file}); restore the file, it belongs to its cells"
            )
        return {**record, "config": {**rename(json.loads(text)), SEED: record["seed"]}}

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
        state = {record["cell"]: record["status"] for record in self.finished()}
        planned = self.planned()
        cells = dict.fromkeys(cell for ids in planned.values() for cell in ids)
        begun = {
            cell: len(self.run(cell).read_metrics())
            for cell in cells
            if cell not in state and self.run(cell).config.is_file()
        }
        plans = {
            plan: {
                "cells": ids,
                "finished": [cell for cell in ids if state.get(cell) == "finished"],
                "diverged": [cell for cell in ids if state.get(cell) == "diverged"],
                "begun": [cell for cell in ids if cell in begun],
                "missing": [cell for cell in ids if cell not in state and cell not in begun],
            }
            for plan, ids in planned.items()
        }
        return {"plans": plans, "begun": begun, "cells": len(state)}


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


def _settings_id(settings: bytes) -> str:
    """Name of a file of settings: the first digits of its hash."""
    return sha256_bytes(settings)[:12]


def _rounded(value: Any) -> Any:
    """Round floats to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_regular(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"damaged result ({path}: {error}); delete the file and run the plan again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"damaged result ({path}: no object); delete the file and run the plan again")
    return content
