"""TensorBoard events beside `metrics.jsonl`, for those who like to watch there (extra `track`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.errors import ConfigError
from quatsphere.train.progress import Progress, Reporter


class EventLog(Reporter):
    """Passes all news on and writes each epoch's numbers as events."""

    def __init__(self, inner: Reporter, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError("train.tensorboard needs TensorBoard; pip install 'quatsphere[track]'") from error
        self.inner = inner
        self.writer: Any = SummaryWriter(str(folder / "events"))

    @staticmethod
    def around(reporter: Reporter, folder: Path, wanted: bool) -> Reporter:
        """The reporter itself, or inside an event log."""
        return EventLog(reporter, folder) if wanted else reporter

    def start(self, facts: dict[str, Any]) -> None:
        """Pass on."""
        self.inner.start(facts)

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        """Pass on."""
        self.inner.step(progress, steps, epochs, images_per_second)

    def validating(self, done: int, total: int) -> None:
        """Pass on."""
        self.inner.validating(done, total)

    def epoch(self, record: dict[str, Any]) -> None:
        """Every number of the record as a scalar, lists by index."""
        for name, value in _scalars("", record):
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()
        self.inner.epoch(record)

    def note(self, message: str) -> None:
        """Pass on."""
        self.inner.note(message)

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
        self.inner.close()


def _scalars(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _scalars(f"{prefix}/{key}".strip("/"), inner)]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in _scalars(f"{prefix}/{index}", inner)]
    return [(prefix, float(value))] if isinstance(value, (int, float)) else []
