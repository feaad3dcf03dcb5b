"""A results folder: one small JSON file per finished cell, whole or not there, named by the cell; runs beside them.

cells/<cell>.json   what tables and claims read; small, to be kept under version control
settings/<id>.json  the configurations of cells, each once: cells that differ in their seed alone share one
plans.json          which cells each plan asked for
runs/<cell>/        the run folders; large, ignored by git, may be deleted when all cells are finished
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quatsphere.config import RunConfig
from quatsphere.config.resolve import rename
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.checkpoint import read_pointer
from quatsphere.storage.lock import folder_lock
from quatsphere.storage.run_folder import RunFolder
from quatsphere.study.plan import Cell, flat_settings, make_config
from quatsphere.train.provenance import MAY_CHANGE

Record = dict[str, Any]
LARGEST = 64 << 20
FORMAT = 2
"""1 had the configuration inside each cell's file."""
SEED = "train.seed"
"""The setting that a cell does not share with its siblings; a record has it beside its configuration."""
UNTRACKED = "runs/\n.lock\n"
"""What `.gitignore` in a results folder says."""


class Results:
    """The finished cells of a study and where the unfinished ones are."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.cells = self.path / "cells"
        self.settings = self.path / "settings"
        self.runs = self.path / "runs"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Create the folder and be its only runner."""
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
                atomic.write_text(self.path / ".gitignore", UNTRACKED)
            yield

    def require(self) -> None:
        """ConfigError unless the folder holds results."""
        if not self.cells.is_dir():
            raise ConfigError(
                f"no results in {self.path} (looked for cells/); name the folder of 'study run --results'"
            )

    def remember(self, plan: str, cells: Sequence[Cell]) -> None:
        """Add the cells that a plan asked for, so that `status` knows what is missing."""
        known = self.asked()
        merged = list(dict.fromkeys([*known.get(plan, []), *(cell.id for cell in cells)]))
        atomic.write_json(self.path / "plans.json", {**known, plan: merged})

    def asked(self) -> dict[str, list[str]]:
        """plan -> ids of its cells, as far as it was ever started here."""
        path = self.path / "plans.json"
        return dict(_read(path)) if path.exists() else {}

    def file(self, cell: str) -> Path:
        """Where a finished cell's numbers are."""
        return self.cells / f"{cell}.json"

    def run(self, cell: str) -> RunFolder:
        """The run folder of a cell."""
        return RunFolder(self.runs / cell, lambda message: None)

    def write(self, cell: str, record: Record) -> None:
        """Keep a finished cell: in one step, under its own name, so that it is never half there and never twice; after
        its settings, so that it never names what is not there."""
        text = _lines({key: value for key, value in record["config"].items() if key != SEED})
        name = _name(text.encode())
        atomic.write_text(self.settings / f"{name}.json", text)
        atomic.write_text(self.file(cell), _lines(_tidy({**record, "format": FORMAT, "config": name})))

    def read(self, cell: str) -> Record | None:
        """A finished cell, or None."""
        path = self.file(cell)
        return self._whole(path) if path.exists() else None

    def finished(self) -> list[Record]:
        """All finished cells, by name."""
        return [self._whole(path) for path in sorted(self.cells.glob("*.json")) if not atomic.is_leftover(path.name)]

    def _whole(self, path: Path) -> Record:
        """A record with its configuration."""
        record = _read(path)
        if not isinstance(record.get("config"), str):
            return {**record, "config": rename(record["config"])} if "config" in record else record
        file = self.settings / f"{record['config']}.json"
        text = read_regular(file, LARGEST) if file.is_file() else b""
        if _name(text) != file.stem:
            state = "were changed" if text else "are missing"
            raise CheckpointError(
                f"settings of {path.name} {state} ({file}); restore the file, it belongs to its cells"
            )
        return {**record, "config": {**rename(json.loads(text)), SEED: record["seed"]}}

    def drop_weights(self, cell: str, keep: str) -> None:
        """Delete checkpoints of a finished cell: all but the best one, or all."""
        folder = self.run(cell).checkpoints
        best = read_pointer(folder, "best")
        for path in folder.glob("step-*") if keep != "all" else ():
            if not (keep == "best" and path == best) and not atomic.is_leftover(path.name):
                atomic.remove_folder(path)


def differing_settings(stored: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Settings in which a finished cell is not the one asked for; a field younger than the cell counts as default."""
    asked = flat_settings(config)
    defaults = flat_settings(make_config({"model.name": config.model.name}))
    return [
        f"{key}: {stored.get(key, defaults[key])!r} there, {value!r} now"
        for key, value in asked.items()
        if key not in MAY_CHANGE and stored.get(key, defaults[key]) != value
    ]


def require_same_cell(record: Record, cell: Cell) -> None:
    """A finished cell may only be skipped if it is the same experiment."""
    differing = differing_settings(record["config"], cell.config)
    if differing:
        raise ConfigError(
            f"cell {cell.id} was finished with other settings ({'; '.join(differing[:6])}); "
            "use another --results, or delete its file to train it again"
        )


def _lines(record: Record) -> str:
    """JSON with a key per line."""
    values = {key: json.dumps(value, allow_nan=False, separators=(",", ":")) for key, value in record.items()}
    return "{\n" + ",\n".join(f"{json.dumps(key)}:{value}" for key, value in values.items()) + "\n}\n"


def _name(settings: bytes) -> str:
    """What a file of settings is called: the first digits of its hash."""
    return sha256_bytes(settings)[:12]


def _tidy(record: Record) -> Record:
    """Numbers to seven digits, nothing that is not finite."""
    return {key: _rounded(atomic.finite(value)) for key, value in record.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _read(path: Path) -> Record:
    try:
        content = json.loads(read_regular(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"damaged result ({path}: {error}); delete the file and run the plan again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"damaged result ({path}: no object); delete the file and run the plan again")
    return content
