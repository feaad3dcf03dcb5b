"""When a run is saved, and how patiently: by steps, by the clock, and again and again on a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable

from quatsphere.config import TrainConfig
from quatsphere.errors import ResourceError
from quatsphere.files.checkpoint import Checkpoint, prune, save_checkpoint
from quatsphere.train.setting import Setting
from quatsphere.train.signals import Interrupted

RETRY_SECONDS = 30.0
"""Pause between attempts to save on a full disk."""


class Keeper:
    """Writes checkpoints in the process that leads; in the others it only keeps time."""

    def __init__(self, setting: Setting, config: TrainConfig) -> None:
        self.setting, self.config = setting, config
        self._saved_at = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether so many steps or seconds have passed."""
        every = self.config.checkpoint_steps
        late = time.monotonic() - self._saved_at >= self.config.checkpoint_seconds
        return late or (every is not None and step % every == 0)

    def save(self, snapshot: Callable[[], Checkpoint], *, best: bool) -> None:
        """Write a checkpoint and forget old ones; on a full disk wait for space, as long as the user lets us."""
        folder = self.setting.run.checkpoints
        while self.setting.team.leads:
            try:
                save_checkpoint(folder, snapshot(), best=best)
                prune(folder, self.config.keep)
                break
            except ResourceError as error:
                self.setting.reporter.note(
                    f"{error}; training paused, retrying every {RETRY_SECONDS:g} s (Ctrl-C to stop)"
                )
                self.pause()
        self._saved_at = time.monotonic()

    def pause(self) -> None:
        """Wait for the next attempt; a signal ends the wait and the run."""
        until = time.monotonic() + RETRY_SECONDS
        while time.monotonic() < until:
            if self.setting.stop.number:
                raise Interrupted(
                    "stopped while the checkpoint could not be written; the last one is intact: go on with --resume",
                    self.setting.stop.number,
                )
            time.sleep(min(0.2, RETRY_SECONDS))
