"""Files of a run that reports and figures read: settings, metrics, result, diagnostics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.models.lattice import step_names
from quatsphere.storage.atomic import read_regular
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import read_yaml

DIAGNOSTICS_FILE = "diagnostics.json"
NEWEST_SCHEMA = 1
"""Latest version of diagnostics.json that can be read."""
MAX_JSON_BYTES = 64 << 20


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
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise CheckpointError(f"not the settings of a run ({run.config}); restore the file")
    metrics = [record for record in run.read_metrics() if "epoch" in record]
    diagnostics = read_json_object(run.path / DIAGNOSTICS_FILE)
    if diagnostics is not None and not diagnostics.get("schema", 0) <= NEWEST_SCHEMA:
        path = run.path / DIAGNOSTICS_FILE
        raise CheckpointError(f"{path} was written by a later quatsphere; run 'quatsphere diagnose' again")
    return RunFiles(run.name, run.path, config, metrics, read_json_object(run.result), diagnostics)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist."""
    try:
        content = json.loads(read_regular(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); make it again or delete it") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"cannot read {path} (no JSON object); make it again or delete it")
    return content
