"""Checkpoints of a run: `step-NNNNNN/{weights.safetensors,state.safetensors,manifest.json}`, verified by digests.

A checkpoint exists from the moment at which a finished `step-N.tmp.PID` folder is renamed. A checkpoint that it
replaces is kept as `step-N.old` until then, and is read from there if the rename never happens. The folder has
everything a resume needs, including the name of the best step so far; the files `best` and `last` beside the folders
only repeat that for people and for `load_best`, and a resume corrects them if the process was killed in between.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import quatsphere
from quatsphere.errors import CheckpointError, ConfigError
from quatsphere.storage import atomic
from quatsphere.storage.atomic import read_regular, sha256_bytes
from quatsphere.storage.sealed_json import MAX_JSON_BYTES, describe_files, seal, unseal

CHECKPOINT_FORMAT = 1
WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.safetensors", "manifest.json"
_NAME = re.compile(r"step-(\d{6,12})")
_ASIDE = ".old"
_FOREIGN = ((b"PK\x03\x04", "a zip archive (torch.save or TorchScript)"), (b"\x80", "a pickle"), (b"\x1f\x8b", "gzip"))

# Tensors.


def dump_tensors(tensors: dict[str, Tensor]) -> bytes:
    """Serialise tensors as safetensors; equal tensors give equal bytes.

    Each tensor is copied, because safetensors refuses views that share memory, such as the moments of optimisers.
    """
    copies = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    return save(copies)


def parse_tensors(data: bytes, where: str) -> dict[str, Tensor]:
    """Parse safetensors bytes; CheckpointError naming `where` for anything else, including pickles and zips.

    The header is checked before the parser runs; the parser refuses gaps and trailing bytes, so that a file that is
    also a valid zip does not pass.
    """
    reason = _why_not_safetensors(data)
    if reason is None:
        try:
            return load(data)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
    raise CheckpointError(f"refused: not a safetensors file ({where}: {reason}); only safetensors are read")


def _why_not_safetensors(data: bytes) -> str | None:
    """Reason why the frame (8 bytes of header length, a JSON object of that length) is wrong; None if it is right."""
    for magic, name in _FOREIGN:
        if data.startswith(magic) and data[8:9] != b"{":
            return f"it is {name}"
    if len(data) < 10:
        return f"only {len(data)} bytes"
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8 or data[8:9] != b"{":
        return "no header"
    try:
        json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        return "its header is not JSON"
    return None


# Step folders.


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
        fields = unseal(_read_part(path, MANIFEST, MAX_JSON_BYTES))
        _refuse_newer(path, fields)
        parts = [_read_tensors(path, name, **fields["files"][name]) for name in (WEIGHTS, STATE)]
        best = fields["best"]
        if best is not None and step_of(best) is None:  # it becomes part of a path
            raise TypeError("best is not a step folder")
        content = StepFolder(int(fields["step"]), best, dict(fields["meta"]), *parts)
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


def _aside(path: Path) -> Path:
    """Path of a step while it is replaced; neither the name of a step nor of a leftover."""
    return path.with_name(path.name + _ASIDE)


def _manifest(content: StepFolder) -> bytes:
    """Bytes of the manifest; a NaN in meta is an error, because null in its place would make a resume differ."""
    fields = {
        "format": CHECKPOINT_FORMAT,
        "quatsphere": quatsphere.__version__,
        "step": content.step,
        "best": content.best,
        "files": describe_files({WEIGHTS: content.weights, STATE: content.state}),
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


def _write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Build the folder under a temporary name, then rename it.

    An existing folder is moved aside and deleted last, so that the old or the new one exists at every moment.
    """
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        with atomic.new_folder(temporary, files):
            if path.exists():
                atomic.rename_durably(path, _aside(path))
            atomic.rename_durably(temporary, path)
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


# Checkpoints.


@dataclass(frozen=True)
class Checkpoint:
    """State of a run from which training continues."""

    step: int
    """Optimiser steps taken."""
    weights: dict[str, Tensor]
    """The model's parameters and buffers."""
    state: dict[str, Tensor]
    """All other tensors: optimiser moments, the stored field."""
    meta: dict[str, Any]
    """Everything else, as JSON: tuples come back as lists."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, best: bool) -> Path:
    """Add a checkpoint to `folder`; return its path when it is on the disk and `last` (and `best`) name it.

    If the step exists with the same tensors, only a manifest whose meta has changed is written.
    """
    path = folder / step_name(checkpoint.step)
    best_path = path if best else read_pointer(folder, "best")
    content = StepFolder(
        checkpoint.step,
        None if best_path is None else best_path.name,
        checkpoint.meta,
        dump_tensors(checkpoint.weights),
        dump_tensors(checkpoint.state),
    )
    older = steps_in(folder)
    advice = f"{step_title(older[0])} kept; free some space" if older else "free some space"
    with atomic.disk_errors("checkpoint", folder, content.size, advice):
        if not folder.is_dir():
            folder.mkdir(parents=True)
            atomic.sync_folder(folder.parent)
        write_step(path, content)
        _point(folder, best_path, path)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Load the checkpoint in a step folder; CheckpointError if a single bit of its three files has changed."""
    return _parse(path, read_step(path))


def load_last_good(
    folder: Path, warn: Callable[[str], None], check: Callable[[Checkpoint], str | None] = lambda checkpoint: None
) -> Checkpoint | None:
    """Load the newest undamaged checkpoint, for a resume; None if there is no checkpoint at all.

    `check` returns what is wrong with the fields or tensors of a checkpoint, which then counts as damaged. The folders
    decide, not `last`, which is written after the rename of a new folder. Both pointers are then made to agree with the
    loaded checkpoint, so the caller must be the run's only writer.
    """
    paths = steps_in(folder)
    for path, *older in (paths[i : i + 2] for i in range(len(paths))):
        try:
            content = read_step(path)
            checkpoint = _parse(path, content)
            wrong = check(checkpoint)
            if wrong is not None:
                raise DamagedCheckpoint(path, wrong, MANIFEST)
        except DamagedCheckpoint as damage:
            if not older:
                raise CheckpointError(
                    f"no good checkpoint left ({folder}: {len(paths)} damaged, {step_title(path)}: {damage.reason}); "
                    "start again under another name"
                ) from damage
            warn(f"checkpoint {step_title(path)} is damaged ({damage.reason}); falling back to {step_title(older[0])}")
        else:
            best = None if content.best is None else folder / content.best
            with atomic.disk_errors("checkpoint", folder, 2 * len(path.name), "free some space"):
                _point(folder, best, path)
            return checkpoint
    return None


def load_best(folder: Path) -> Checkpoint:
    """Load the checkpoint that `best` names; CheckpointError if there is none or it is damaged."""
    path = read_pointer(folder, "best")
    if path is None:
        raise CheckpointError(f"no best checkpoint ({folder / 'best'} is missing or names none); resume the run")
    return load_checkpoint(path)


def read_pointer(folder: Path, name: str) -> Path | None:
    """Step folder that the pointer `best` or `last` names, or None."""
    try:
        text = read_regular(folder / name, 100).decode().strip()
    except (OSError, ValueError):
        return None
    return None if step_of(text) is None else folder / text


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, `best`, and the best step named in each of those that are kept.

    Steps newer than `last` are deleted too: they are damaged or belong to an abandoned continuation. Nothing is deleted
    unless `last` can be read, so the last good checkpoint always stays.
    """
    if keep < 2:
        raise ConfigError(f"keep must be >= 2: got {keep}; a damaged checkpoint needs an older one to fall back to")
    paths = steps_in(folder)
    last = read_pointer(folder, "last")
    if last is None or last not in paths:
        return
    newest = paths[paths.index(last) :][:keep]
    kept = {*newest, read_pointer(folder, "best")}
    for path in newest:
        try:
            best = read_step(path).best
        except CheckpointError:
            if path == last:
                return
        else:
            kept |= set() if best is None else {folder / best}
    for path in paths:
        if path not in kept:
            atomic.remove_folder(path)


def _parse(path: Path, content: StepFolder) -> Checkpoint:
    weights = parse_tensors(content.weights, str(path / WEIGHTS))
    state = parse_tensors(content.state, str(path / STATE))
    return Checkpoint(content.step, weights, state, content.meta)


def _point(folder: Path, best: Path | None, last: Path) -> None:
    for name, path in (("best", best), ("last", last)):
        if path is None:
            (folder / name).unlink(missing_ok=True)
        elif read_pointer(folder, name) != path:
            atomic.replace_bytes(folder / name, f"{path.name}\n".encode())
