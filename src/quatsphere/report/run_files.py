"""The files of a run that reports and figures read: settings, metrics, result, diagnostics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage.atomic import read_regular
from quatsphere.storage.run_folder import RunFolder
from quatsphere.storage.safe_yaml import read_yaml

DIAGNOSTICS = "diagnostics.json"
NEWEST_SCHEMA = 1
"""Latest layout of diagnostics.json that can be drawn."""
LARGEST = 64 << 20


@dataclass(frozen=True)
class RunFiles:
    """One run as its files tell it; `result` and `diagnostics` are none where there is no such file."""

    name: str
    path: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    diagnostics: dict[str, Any] | None

    def section(self, name: str) -> dict[str, Any] | None:
        """A section of the diagnostics, or none where it is missing or does not apply."""
        found = (self.diagnostics or {}).get(name)
        return found if isinstance(found, dict) and "absent" not in found else None

    @property
    def step_names(self) -> list[str]:
        """Names of the steps, from the diagnostics or, without them, from the settings."""
        if self.diagnostics is not None:
            return [step["name"] for step in self.diagnostics["steps"]]
        model = self.config["model"]
        cross, rounds = range(1, model.get("shells", 1)), range(1, 1 + model.get("rounds", 0))
        return ["within", *(f"cross {i}" for i in cross), *(f"round {i}" for i in rounds)]


def read_run_files(path: str | Path) -> RunFiles:
    """Read a run folder; one without settings is refused."""
    run = RunFolder(path)
    if not run.config.is_file():
        raise ConfigError(f"no run in {Path(path)} (looked for config.yaml); name the folder of a run")
    config = read_yaml(run.config)
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise CheckpointError(f"not the settings of a run ({run.config}); restore the file")
    metrics = [record for record in run.read_metrics() if "epoch" in record]
    diagnostics = read_object(run.path / DIAGNOSTICS)
    if diagnostics is not None and not diagnostics.get("schema", 0) <= NEWEST_SCHEMA:
        raise CheckpointError(f"{run.path / DIAGNOSTICS} is of a later quatsphere; run 'quatsphere diagnose' again")
    return RunFiles(run.name, run.path, config, metrics, read_object(run.result), diagnostics)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, none where there is no file."""
    try:
        content = json.loads(read_regular(path, LARGEST))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path} ({error}); make it again or delete it") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"cannot read {path} (no JSON object); make it again or delete it")
    return content
