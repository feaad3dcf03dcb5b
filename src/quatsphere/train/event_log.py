"""TensorBoard events beside `metrics.jsonl`, for those who like to watch there (extra `track`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.errors import ConfigError
from quatsphere.train.progress import Relay, Reporter


class EventLog(Relay):
    """Passes all news on and writes each epoch's numbers as events; a full disk costs events, not the run."""

    def __init__(self, inner: Reporter, folder: Path, step: int = 0) -> None:
        """Events after `step`, of a life that was given up, are taken back."""
        super().__init__(inner)
        self.writer: Any = writer_class()(str(folder / "events"), purge_step=step + 1)

    def epoch(self, record: dict[str, Any]) -> None:
        """Every number of the record as a scalar, lists by index."""
        for name, value in _scalars("", record):
            self.writer.add_scalar(name, value, record["step"])
        self.writer.flush()
        super().epoch(record)

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
        super().close()


def writer_class() -> Any:
    """TensorBoard's writer; ask before a run writes anything."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("train.tensorboard needs TensorBoard; pip install 'quatsphere[track]'") from error
    return SummaryWriter


def _scalars(prefix: str, value: Any) -> list[tuple[str, float]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _scalars(f"{prefix}/{key}".strip("/"), inner)]
    if isinstance(value, list):
        return [pair for index, inner in enumerate(value) for pair in _scalars(f"{prefix}/{index}", inner)]
    return [(prefix, float(value))] if isinstance(value, (int, float)) else []
