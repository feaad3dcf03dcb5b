"""Files of a run that reports and figures read: settings, metrics, result, diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.models.lattice import step_names
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.storage.sealed_json import misfit, read_sealed

DIAGNOSTICS_FILE = "diagnostics.json"
NEWEST_SCHEMA = 1
"""Latest version of diagnostics.json that can be read."""
UNSEALED_BEFORE = 2
"""Files of an earlier `format` need not be sealed."""
SETTINGS_SHAPE = {
    "model": {"name": str, "shells?": int, "rounds?": int, "beta_start?": (float, None), "beta_frozen?": bool},
    "data": {"name": str},
    "train": {"epochs": int, "seed?": int},
}
EPOCH_SHAPE = {
    "epoch": int,
    "train": {"loss": (float, None), "accuracy": (float, None)},
    **dict.fromkeys(("val_accuracy", "images_per_second"), (float, None)),
}
"""Fields that a line of metrics needs to be drawn, beside the types that `RunFolder.read_metrics` checks."""
ENVIRONMENT_SHAPE = {"versions?": {str: str}, "command?": list}
DIAGNOSTICS_SHAPE = {
    "schema": int,
    "steps": [{"name": str}],
    "images": int,
    "split": str,
    "step": int,
    "layout?": object,
}


@dataclass(frozen=True, repr=False)
class RunFiles:
    """Content of a run folder; `result` and `diagnostics` are None if the file does not exist."""

    name: str
    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    diagnostics: dict[str, Any] | None

    def __repr__(self) -> str:
        present = [name for name in ("result", "diagnostics") if getattr(self, name) is not None]
        return f"RunFiles({self.name!r}, {self.config['model'].get('name')}, {len(self.metrics)} epochs, {present})"

    def section(self, name: str) -> dict[str, Any] | None:
        """Return a section of the diagnostics, or None if it is missing or does not apply."""
        found = (self.diagnostics or {}).get(name)
        return found if isinstance(found, dict) and "absent" not in found else None

    @property
    def step_names(self) -> list[str]:
        """Names of the steps, from the diagnostics or else from the settings."""
        if self.diagnostics is not None:
            return [step["name"] for step in self.diagnostics["steps"]]
        model = self.config["model"]
        return step_names(model.get("shells", 1), model.get("rounds", 0))


def read_run_files(path: str | Path) -> RunFiles:
    """Read a run folder; ConfigError if it has no settings."""
    run = RunFolder(path)
    if not run.config.is_file():
        raise ConfigError(f"no run in {Path(path)} (looked for config.yaml); name the folder of a run")
    config = read_yaml(run.config)
    wrong = misfit(config, SETTINGS_SHAPE)
    if wrong is not None:
        raise CheckpointError(f"not the settings of a run ({run.config}: {wrong}); restore the file")
    metrics = [record for record in run.read_metrics() if misfit(record, EPOCH_SHAPE) is None]
    diagnostics = read_json_object(run.path / DIAGNOSTICS_FILE, DIAGNOSTICS_SHAPE)
    if diagnostics is not None and diagnostics["schema"] > NEWEST_SCHEMA:
        path = run.path / DIAGNOSTICS_FILE
        raise CheckpointError(f"{path} was written by a later quatsphere; run 'quatsphere diagnose' again")
    return RunFiles(run.name, run.path, config, metrics, run.read_result(), diagnostics)


def read_json_object(path: Path, shape: Any) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist; its seal, if any, and shape are checked."""
    try:
        return read_sealed(path, UNSEALED_BEFORE, shape)[0]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); make it again or delete it") from error
