"""One checkpoint on disk, `step-NNNNNN/{weights.safetensors,state.safetensors,manifest.json}`, verified by digests."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import quatsphere
from quatsphere.errors import CheckpointError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.sealed_json import seal, unseal

CHECKPOINT_FORMAT = 1
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "manifest.json"
_NAME = re.compile(r"step-(\d{6,12})")
_ASIDE = ".old"
_MANIFEST_LIMIT = 64 << 20


class DamagedCheckpoint(CheckpointError):
    """A checkpoint that differs from what was saved; an older one may still be good."""

    def __init__(self, path: Path, reason: str, where: str) -> None:
        super().__init__(
            f"checkpoint {step_title(path)} is damaged ({reason}: {path / where}); load another checkpoint"
        )
        self.reason = reason


@dataclass(frozen=True)
class StepFolder:
    """Content of a step folder, verified or about to be written."""

    step: int
    best: str | None
    """Name of the best step folder when this one was saved; stored here, so that it always agrees with the rest."""
    meta: dict[str, Any]
    weights: bytes
    state: bytes

    @property
    def size(self) -> int:
        """Bytes of the tensors, without the small manifest."""
        return len(self.weights) + len(self.state)


def step_name(step: int) -> str:
    """`step-001200` for 1200."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """1200 for `step-001200`; None for any other name, unfinished `step-001200.tmp.PID` folders included."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def steps_in(folder: Path) -> list[Path]:
    """Paths of all steps, newest first, including a step that was moved aside and not replaced."""
    names = {path.name.removesuffix(_ASIDE) for path in folder.glob("step-*")}
    found = [(step, name) for name in names if (step := step_of(name)) is not None]
    return [folder / name for _, name in sorted(found, reverse=True)]


def step_title(path: Path) -> str:
    """`step 1200` for `step-001200`, else the folder's name, which may be anything in a copy."""
    step = step_of(path.name)
    return f"'{path.name}'" if step is None else f"step {step}"


def write_step(path: Path, content: StepFolder) -> None:
    """Write `content` to `path`; if the tensors are there already only a changed manifest is written."""
    manifest = _manifest(content)
    finish_replacement(path)
    try:
        old = read_step(path)
    except CheckpointError:
        old = None
    if old is None or (old.weights, old.state) != (content.weights, content.state):
        _write_folder(path, {WEIGHTS: content.weights, STATE: content.state, MANIFEST: manifest})
    elif old != content:
        atomic.replace_bytes(path / MANIFEST, manifest)


def read_step(path: Path) -> StepFolder:
    """Read a step folder; every byte is verified before it is parsed. DamagedCheckpoint if one differs.

    A step that is being replaced is read from the folder it was moved to.
    """
    if not path.is_dir() and _aside(path).is_dir():
        path = _aside(path)
    if not path.is_dir():
        raise CheckpointError(f"no checkpoint ({path} is not a folder); give a folder 'step-NNNNNN' of a run")
    try:
        fields = unseal(_read_part(path, MANIFEST, _MANIFEST_LIMIT))
        _refuse_newer(path, fields)
        parts = [_read_tensors(path, name, **fields["files"][name]) for name in (WEIGHTS, STATE)]
        content = StepFolder(int(fields["step"]), _best_name(fields["best"]), dict(fields["meta"]), *parts)
    except ValueError as error:
        raise DamagedCheckpoint(path, "hash", MANIFEST) from error
    except (KeyError, TypeError) as error:
        raise DamagedCheckpoint(path, "fields", MANIFEST) from error
    if step_of(path.name) not in (None, content.step):
        raise DamagedCheckpoint(path, f"holds step {content.step}", MANIFEST)
    return content


def finish_replacement(path: Path) -> None:
    """Finish an interrupted replacement: delete the old folder if the new one is there, else move it back."""
    aside = _aside(path)
    if path.exists() and aside.exists():
        atomic.remove_folder(aside)
    elif aside.exists():
        os.replace(aside, path)
        atomic.sync_folder(path.parent)


def finish_replacements(folder: Path) -> None:
    """Call `finish_replacement` for every step of a folder; for its only writer."""
    for path in steps_in(folder):
        finish_replacement(path)


def _aside(path: Path) -> Path:
    """Path of a step while it is replaced; neither the name of a step nor of a leftover."""
    return path.with_name(path.name + _ASIDE)


def _manifest(content: StepFolder) -> bytes:
    """Bytes of the manifest; a NaN in meta is an error, because null in its place would make a resume differ."""
    files = {WEIGHTS: content.weights, STATE: content.state}
    fields = {
        "format": CHECKPOINT_FORMAT,
        "quatsphere": quatsphere.__version__,
        "step": content.step,
        "best": content.best,
        "files": {name: {"size": len(data), "sha256": sha256_bytes(data)} for name, data in files.items()},
        "meta": content.meta,
    }
    try:
        return seal(fields)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"meta is not JSON (checkpoint step {content.step}: {error}); store null") from error


def _refuse_newer(path: Path, fields: dict[str, Any]) -> None:
    written = int(fields["format"])
    if written > CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"checkpoint written by quatsphere {fields['quatsphere']} (format {written}), "
            f"this is {quatsphere.__version__} (format {CHECKPOINT_FORMAT}) ({path}); upgrade quatsphere"
        )


def _best_name(best: Any) -> str | None:
    """Validated name of the best step folder: it becomes part of a path."""
    if best is None or (isinstance(best, str) and step_of(best) is not None):
        return best
    raise TypeError("best is not a step folder")


def _write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Build the folder under a temporary name, then rename it.

    An existing folder is moved aside and deleted last, so that the old or the new one exists at every moment.
    """
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, data in files.items():
            atomic.write_durable(temporary / name, data)
        atomic.sync_folder(temporary)
        if path.exists():
            atomic.rename_durably(path, _aside(path))
        atomic.rename_durably(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        finish_replacement(path)


def _read_tensors(path: Path, name: str, size: int, sha256: str) -> bytes:
    data = _read_part(path, name, size)
    if len(data) != size:
        raise DamagedCheckpoint(path, "size", name)
    if sha256_bytes(data) != sha256:
        raise DamagedCheckpoint(path, "hash", name)
    return data


def _read_part(path: Path, name: str, limit: int) -> bytes:
    try:
        return read_regular(path / name, limit)
    except OSError as error:
        raise DamagedCheckpoint(path, error.strerror or "unreadable", name) from error
