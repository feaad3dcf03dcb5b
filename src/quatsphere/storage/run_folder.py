"""The folder of one run: `config.yaml`, `environment.json`, `metrics.jsonl`, `checkpoints/`, `result.json`."""

from __future__ import annotations

import datetime
import difflib
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import lock_descriptor

from quatsphere.errors import CheckpointError, ConfigError, ResourceError
from quatsphere.runtime import print_stderr
from quatsphere.storage import atomic
from quatsphere.storage.atomic import disk_errors, read_regular
from quatsphere.storage.safe_yaml import read_yaml
from quatsphere.storage.sealed_json import misfit, read_sealed, write_sealed

_LOCK = ".lock"
_LONGEST_INSIDE = len("/checkpoints/step-000000000000.tmp.4194304/weights.safetensors")
_METRICS_LIMIT = 1 << 30
RESULT_FORMAT = 2
"""Format 1 had no seal, and no field `format`."""
_MAYBE = (float, None)
RESULT_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("test_accuracy", "val_accuracy", "seconds"), float),
    **dict.fromkeys(("best_step", "best_epoch", "epochs", "steps", "seed", "parameters"), int),
    **dict.fromkeys(("model", "data", "fingerprint", "predictions?"), str),
    "commit?": (str, None),
    "versions?": {str: str},
    "threads?": int,
    "images_seen?": int,
    "deterministic?": bool,
    "test": {
        "images": int,
        "accuracy": float,
        "nll": _MAYBE,
        "ece": float,
        "per_class": {str: _MAYBE},
        "confusion": [[int]],
    },
}
"""Fields of `result.json`, as `sealed_json.misfit` checks them."""
METRICS_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("epoch?", "step?", "lines_lost_before?"), int),
    **dict.fromkeys(("val_accuracy?", "best_val_accuracy?", "seconds?", "images_per_second?"), _MAYBE),
    **{key: {str: _MAYBE} for key in ("train?", "learning_rates?")},
    **{key: [_MAYBE] for key in ("routing_entropy?", "routing_peak?", "beta?", "bound?", "field_motion?")},
    "beta_heads?": [[_MAYBE]],
}
"""Fields of a line of `metrics.jsonl`; all are optional, because older lines have fewer."""


def print_note(message: str) -> None:
    """Print a message for the user, which is not an error, on stderr."""
    print_stderr(f"quatsphere: note: {message}")


def free_folder(wanted: str) -> str:
    """Return the wanted folder, with a number appended if it exists; the folder above it is created."""
    try:
        Path(wanted).absolute().parent.mkdir(parents=True, exist_ok=True)
        candidates = [wanted, *(f"{wanted}-{number}" for number in range(2, 10_000))]
        return next(name for name in candidates if not Path(name).exists())
    except (OSError, ValueError) as error:
        raise _path_error(Path(wanted), error) from error


class RunFolder:
    """Paths of a run's files, access to the folder, and the append-only metrics.

    A writer calls `claim` first and then works inside `lock`; readers need neither. `note` receives messages.
    """

    def __init__(self, path: str | Path, note: Callable[[str], None] = print_note) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"  # every setting
        self.environment = self.path / "environment.json"  # versions, commit, machine
        self.metrics = self.path / "metrics.jsonl"  # one line per epoch, append-only
        self.checkpoints = self.path / "checkpoints"  # step folders and the pointers `best` and `last`
        self.result = self.path / "result.json"  # written once, at the end
        self.note = note
        self._lines_lost = 0
        self._noted_full = self._noted_unsealed = False

    @property
    def name(self) -> str:
        """Name of the run in messages."""
        return self.path.absolute().name

    @property
    def finished(self) -> bool:
        """True if the run has a result that can be read."""
        try:
            return self.read_result() is not None
        except CheckpointError:
            return False

    def write_result(self, result: dict[str, Any]) -> None:
        """Write `result.json`, sealed, so that a changed bit is noticed."""
        write_sealed(self.result, {"format": RESULT_FORMAT, **result})

    def read_result(self) -> dict[str, Any] | None:
        """Content of `result.json`, or None if there is none; CheckpointError if its seal or a field is wrong.

        A result that is older than the seal is read with a note.
        """
        try:
            result, sealed = read_sealed(self.result, RESULT_FORMAT, RESULT_SHAPE)
            counts, classes = result["test"]["confusion"], result["test"]["per_class"]
            if {len(classes)} != {len(counts), *map(len, counts)}:
                raise ValueError("field test.confusion has another size than test.per_class")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise CheckpointError(
                f"damaged result ({self.result}: {reason}); 'quatsphere train --resume' tests the run again"
            ) from error
        if not sealed and not self._noted_unsealed:
            self._noted_unsealed = True
            self.note(f"the result has no checksum, because an older version wrote it ({self.result})")
        result.pop("format", None)
        return result

    def claim(self, *, resume: bool) -> None:
        """Create the folder or accept it; ConfigError for an existing run unless `resume`, and for other files.

        It may be repeated: call it again inside the lock, because two processes may start at the same time.
        """
        _check_path(self.path)
        try:
            self.path.mkdir(exist_ok=True)
            atomic.sync_folder(self.path.parent)
            inside = {path.name for path in self.path.iterdir() if not atomic.is_leftover(path.name)} - {_LOCK}
        except (OSError, ValueError) as error:
            raise _path_error(self.path, error) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise ConfigError(f"cannot write to run '{self.name}' ({self.path}); choose a folder that you can write to")
        self._require_writable()
        own = {path.name for path in (self.config, self.environment, self.metrics, self.checkpoints, self.result)}
        if inside and not inside & own:
            raise ConfigError(
                f"'{self.name}' holds other files and no run ({self.path}: {min(inside)}); use another name"
            )
        if inside and not resume:
            raise ConfigError(f"run '{self.name}' exists{self._progress()}; use --resume or another name")

    def _require_writable(self) -> None:
        """Raise ResourceError for a file where a folder should be, a pipe, a device or missing permissions.

        Otherwise the run would end with the first checkpoint, or with its result.
        """
        files = (self.config, self.environment, self.metrics, self.result)
        wrong = [path for path in files if os.path.lexists(path) and not path.is_file()]
        wrong += [self.checkpoints] if os.path.lexists(self.checkpoints) and not self.checkpoints.is_dir() else []
        if wrong:
            kind = "folder" if wrong[0] == self.checkpoints else "file"
            raise ResourceError(
                f"cannot write a run ({wrong[0]} is not a {kind}); move it away or use another --run-dir"
            )
        for path in (self.metrics, self.checkpoints):
            if path.exists() and not os.access(path, os.R_OK | os.W_OK):
                raise ResourceError(f"cannot write a run ({path}: permission denied); change its permissions")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder as its only writer; on entry, unfinished writes of killed processes are removed."""
        from quatsphere.storage.checkpoint import finish_replacement, steps_in  # which imports torch

        with folder_lock(self.path / _LOCK, self.name, self.note):
            for step in steps_in(self.checkpoints):
                finish_replacement(step)
            atomic.remove_leftovers(self.path)
            yield

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append a JSON line, NaN as null; on a full disk the line is lost and the run continues.

        The next line that fits holds the number of lines lost before it.
        """
        atomic.failpoint("before_metrics")
        lost = {"lines_lost_before": self._lines_lost} if self._lines_lost else {}
        line = json.dumps(atomic.finite({**record, **lost}), allow_nan=False).encode() + b"\n"
        try:
            _append(self.metrics, line)
            self._lines_lost = 0
        except OSError as error:
            if not atomic.is_disk_full(error):
                raise ResourceError(
                    f"cannot write metrics ({self.metrics}: {error.strerror}); check the disk"
                ) from error
            self._lines_lost += 1
            if not self._noted_full:
                self._noted_full = True
                self.note(f"no space for metrics ({self.metrics}); training continues, but lines are lost meanwhile")

    def metrics_offset(self) -> int:
        """Bytes of metrics on the disk; a checkpoint stores the number and a resume truncates to it."""
        if not self.metrics.exists():
            return 0
        with disk_errors("metrics", self.path, 0, "free some space"), open(self.metrics, "rb+") as file:
            os.fsync(file.fileno())
            return file.seek(0, os.SEEK_END)

    def truncate_metrics(self, offset: int) -> None:
        """Remove the lines after `offset`: a resumed run writes them again."""
        if not self.metrics.exists() and offset == 0:
            return
        with disk_errors("metrics", self.path, 0, "free some space"), open(self.metrics, "ab+") as file:
            size = file.tell()
            if size < offset:
                file.seek(0)
                offset = file.read(_METRICS_LIMIT).rfind(b"\n") + 1
                self.note(
                    f"metrics are shorter than when the checkpoint was written ({self.metrics}); some lines are lost"
                )
            file.truncate(offset)
            os.fsync(file.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all records, without a half-written last line and without damaged lines, which are noted."""
        try:
            lines = read_regular(self.metrics, _METRICS_LIMIT).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ResourceError(f"cannot read metrics ({self.metrics}: {error.strerror}); check the file") from error
        records = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if isinstance(record, dict) and misfit(record, METRICS_SHAPE) is None:
                records.append(record)
            else:
                self.note(f"line {number} is damaged ({self.metrics}); left out")
        return records

    def _progress(self) -> str:
        """` (epoch 12 of 500)`, as far as metrics and config have it."""
        epoch = next((record["epoch"] for record in reversed(self.read_metrics()) if "epoch" in record), None)
        try:
            total = read_yaml(self.config)["train"]["epochs"]
        except (ConfigError, LookupError, TypeError):
            total = None
        if epoch is None:
            return ""
        return f" (epoch {epoch})" if total is None else f" (epoch {epoch} of {total})"


def nearest_run(path: Path) -> Path | None:
    """Run beside `path` with the most similar name, for the message that there is no run at `path`."""
    try:
        beside = {entry.name for entry in path.absolute().parent.iterdir() if RunFolder(entry).config.is_file()}
    except (OSError, ValueError):
        return None
    names = difflib.get_close_matches(path.absolute().name, sorted(beside), 1)
    return path.with_name(names[0]) if names else None


def _check_path(path: Path) -> None:
    """Check the path before anything is created: a name too long would otherwise fail at the first checkpoint."""
    parent = path.absolute().parent
    try:
        if not parent.is_dir():
            raise ConfigError(f"no folder {parent} (for run '{path.name}'); create it or use another --run-dir")
        longest = os.pathconf(parent, "PC_PATH_MAX")
    except (OSError, ValueError) as error:
        raise _path_error(path, error) from error
    if len(os.fsencode(path.absolute())) + _LONGEST_INSIDE >= longest:
        raise _path_error(path, OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))


def _path_error(path: Path, error: OSError | ValueError) -> ConfigError:
    text = ascii(str(path)) if len(str(path)) <= 120 else ascii(str(path)[:120]) + "..."
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return ConfigError(f"cannot use run folder ({text}: {reason}); use another --run-dir")


def _append(path: Path, line: bytes) -> None:
    """Append the whole line or nothing."""
    with open(path, "ab", buffering=0) as file:
        start = file.tell()
        if file.write(line) < len(line):
            file.truncate(start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# The lock: a locked file that names its holder.


@contextmanager
def folder_lock(path: Path, name: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path` of the run `name`; CheckpointError naming the holder if another process has it.

    The system releases the lock when the holder dies, so a stale lock is a file with text that is not locked. The file
    itself stays: if it were deleted, two processes could lock two files of the same name.
    """
    with disk_errors(path.name, path.parent, 1000, "free some space"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            locked = lock_descriptor(descriptor, blocking=False)
        except OSError as error:
            raise CheckpointError(f"cannot lock ({path}: {error.strerror}); use a local disk") from error
        if not locked:
            message = f"run '{name}' is locked by {_read_holder(descriptor)}; wait until it ends or use another name"
            raise CheckpointError(message)
        if os.fstat(descriptor).st_size:
            note(f"took over a stale lock of run '{name}': {_read_holder(descriptor)} is gone")
        since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
        with disk_errors(path.name, path.parent, len(text), "free some space"):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, text.encode())
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _read_holder(descriptor: int) -> str:
    """Description of the holder; a holder that has not written its name yet is 'another process'.

    The first byte, always a brace, is not read: on Windows the lock makes it unreadable for others.
    """
    os.lseek(descriptor, 1, os.SEEK_SET)
    try:
        holder = json.loads(b"{" + os.read(descriptor, 1000))
        return f"pid {holder['pid']} on host {holder['host']} since {holder['since']}"
    except (ValueError, LookupError, TypeError):
        return "another process"
