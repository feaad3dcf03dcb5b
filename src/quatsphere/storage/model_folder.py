"""Model folders: a trained model as four files that can be copied and published without its run.

    model.safetensors   weights
    preprocessing.json  classes, image size, channels, fit, mean and standard deviation
    config.json         settings, recorded result, size and hash of the two files above, sealed by its own hash
    README.md           model card, for people; it is not read

Files are read below size limits and verified by their hashes before they are parsed. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quatsphere
from quatsphere.errors import CheckpointError, ConfigError, printable
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.sealed_json import describe_files, seal, unseal

MODEL_FORMAT = 1
"""Increased when a file changes its meaning; newer formats are refused."""
MODEL_WEIGHTS, PREPROCESSING, MODEL_CONFIG, CARD = "model.safetensors", "preprocessing.json", "config.json", "README.md"
MODEL_FILES = (MODEL_WEIGHTS, PREPROCESSING, MODEL_CONFIG, CARD)
LARGEST_JSON = 8 << 20
LARGEST_WEIGHTS = 4 << 30
SHIPPED = Path(quatsphere.__file__).parent / "pretrained"
"""Folder of the model folders that come with the package."""


@dataclass(frozen=True, repr=False)
class ModelFolder:
    """Verified content of a model folder."""

    path: Path
    config: dict[str, Any]
    """`settings` (groups and fields), `result` (numbers of the run), `licence`, `format`, `quatsphere`, `files`."""
    preprocessing: dict[str, Any]
    weights: bytes

    def __repr__(self) -> str:
        return f"ModelFolder({self.path.name}: {len(self.weights):,} bytes of weights)"


def is_model_folder(path: Path) -> bool:
    """True if a folder has the files of a model and is not a run."""
    return (path / MODEL_CONFIG).is_file() and (path / MODEL_WEIGHTS).is_file()


def shipped_models() -> dict[str, Path]:
    """Name -> folder of every model that comes with the package."""
    return {path.name: path for path in sorted(SHIPPED.glob("*")) if is_model_folder(path)}


def seal_config(fields: dict[str, Any], weights: bytes, preprocessing: bytes) -> bytes:
    """Text of `config.json`: `fields` with format, version and hashes."""
    files = describe_files({MODEL_WEIGHTS: weights, PREPROCESSING: preprocessing})
    return seal({"format": MODEL_FORMAT, "quatsphere": quatsphere.__version__, **fields, "files": files})


def write_model_folder(path: Path, files: dict[str, bytes], *, overwrite: bool = False) -> None:
    """Write the files to a new folder, all or none; with `overwrite` a model folder in its place is replaced."""
    parent = path.absolute().parent
    if not parent.is_dir():
        raise ConfigError(f"no folder {printable(parent)}; create it or choose another folder")
    if path.exists() and not (overwrite and is_model_folder(path)):
        cure = "pass --overwrite or choose another" if is_model_folder(path) else "choose another"
        raise ConfigError(f"{printable(path)} exists; {cure}")
    temporary = parent / f".{path.name}.new.tmp.{os.getpid()}"  # `remove_folder` uses the name without `new`
    needed = sum(map(len, files.values()))
    with atomic.disk_errors("model", parent, needed, "free some space"), atomic.new_folder(temporary, files):
        if path.exists():
            atomic.remove_folder(path)
        atomic.rename_durably(temporary, path)


def read_model_config(path: Path) -> dict[str, Any]:
    """Verified `config.json` of a model folder; CheckpointError if a bit has changed or a newer version wrote it."""
    try:
        fields = unseal(_read(path, MODEL_CONFIG, LARGEST_JSON))
        written = int(fields["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path, MODEL_CONFIG, f"not as 'quatsphere pack' wrote it, {error}") from error
    if written > MODEL_FORMAT:
        raise CheckpointError(
            f"model written by quatsphere {fields.get('quatsphere')} (format {written}), this is "
            f"{quatsphere.__version__} (format {MODEL_FORMAT}) ({path}); upgrade quatsphere"
        )
    return fields


def read_model_folder(path: Path) -> ModelFolder:
    """Read and verify a model folder; sizes are checked before a file is read, hashes before it is parsed."""
    config = read_model_config(path)
    sizes = listed_sizes(path, config)
    if not all(isinstance(config.get(part), dict) for part in ("settings", "result")):
        raise damaged(path, MODEL_CONFIG, "settings and result must be groups of fields")
    data = {name: _read_hashed(path, name, size, str(config["files"][name]["sha256"])) for name, size in sizes.items()}
    try:
        preprocessing = json.loads(data[PREPROCESSING])
    except (ValueError, RecursionError) as error:
        raise damaged(path, PREPROCESSING, "not JSON") from error
    if not isinstance(preprocessing, dict):
        raise damaged(path, PREPROCESSING, "not an object")
    return ModelFolder(path, config, preprocessing, data[MODEL_WEIGHTS])


_HASHED = {MODEL_WEIGHTS: LARGEST_WEIGHTS, PREPROCESSING: LARGEST_JSON}


def listed_sizes(path: Path, config: dict[str, Any]) -> dict[str, int]:
    """Size of each file that `config.json` lists with its hash; CheckpointError above the limits."""
    try:
        sizes = {name: int(config["files"][name]["size"]) for name in _HASHED if config["files"][name]["sha256"]}
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, MODEL_CONFIG, f"field {error} is missing or wrong") from error
    for name, limit in _HASHED.items():
        if not 0 <= sizes.get(name, -1) <= limit:
            raise damaged(path, name, f"{sizes.get(name)} bytes, the limit is {limit}")
    return sizes


def damaged(path: Path, name: str, reason: str) -> CheckpointError:
    """Error for a model folder that cannot be used."""
    return CheckpointError(f"model is damaged ({printable(path / name)}: {reason}); fetch or pack it again")


def _read_hashed(path: Path, name: str, size: int, digest: str) -> bytes:
    data = _read(path, name, size)
    if len(data) != size or sha256_bytes(data) != digest:
        raise damaged(path, name, "hash differs from config.json")
    return data


def _read(path: Path, name: str, limit: int) -> bytes:
    try:
        return read_regular(path / name, limit)
    except OSError as error:
        raise damaged(path, name, error.strerror or "unreadable") from error
