"""Estimate of a plan's duration: images over images per second, from finished cells or from a few timed steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F

from quatsphere.config import RunConfig
from quatsphere.models import build_model
from quatsphere.study.plan import Cell
from quatsphere.study.results import CellRecord
from quatsphere.study.variants import images_per_epoch

MIN_STEPS, MAX_STEPS, PROBE_SECONDS = 3, 20, 4.0
"""Number of steps timed for a model without finished cells: until the seconds are over, within these limits."""
MIN_PROBED_IMAGES = 10_000
"""Minimum number of images of a cell whose model is timed before it starts."""


def images_of(cell: Cell) -> int:
    """Maximum number of training images of a cell; early stopping may end it sooner."""
    return cell.config.train.epochs * images_per_epoch(cell.dataset, cell.config.data.max_train_images)


class SpeedEstimator:
    """Images per second by row and by model."""

    def __init__(self, records: Iterable[CellRecord] = ()) -> None:
        self.speeds: dict[str, float] = {}
        for record in records:
            speeds = [speed for speed in record["trajectory"]["images_per_second"] if speed]
            if speeds:
                self.update(record["variant"], record["config"]["model.name"], statistics.median(speeds))

    def update(self, variant: str, model: str, speed: float) -> None:
        """Set the speed of a row; it is also used for rows of the model without a speed."""
        self.speeds[variant] = self.speeds[f"model {model}"] = speed

    def measure(self, cells: Sequence[Cell], note: Callable[[str], None] = lambda text: None) -> None:
        """Time a few steps of every model without a known speed, except for very short cells."""
        for cell in cells:
            model = cell.config.model.name
            if f"model {model}" not in self.speeds and images_of(cell) >= MIN_PROBED_IMAGES:
                note(f"timing a few training steps of {model}, {cell.config.train.batch_size} images each ...")
                speed = self.speeds[f"model {model}"] = probe_speed(cell.config)
                note(f"{model}: {speed:.0f} images/s")

    def seconds(self, cell: Cell) -> float | None:
        """Estimated duration of a cell, or None if its speed is unknown."""
        speed = self.speeds.get(cell.variant) or self.speeds.get(f"model {cell.config.model.name}")
        return None if speed is None else images_of(cell) / speed

    def remaining(self, cells: Sequence[Cell], jobs: int, done: float = 0.0) -> float | None:
        """Estimated seconds until all cells are finished, `jobs` at a time, less the `done` seconds of running ones."""
        times = [self.seconds(cell) for cell in cells]
        known = [seconds for seconds in times if seconds is not None]
        if not known:
            return None
        return max(0.0, statistics.mean(known) * len(times) - done) / max(1, min(jobs, len(times)))


def probe_speed(config: RunConfig) -> float:
    """Images per second of forward and backward passes at the configured batch size."""
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    model = build_model(config.model).to("cuda" if torch.cuda.is_available() else "cpu")
    device = next(model.parameters()).device
    side, count = config.model.image_size, config.train.batch_size
    images = torch.randn(count, config.model.in_channels, side, side, device=device)
    labels = torch.zeros(count, dtype=torch.int64, device=device)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return count / median_seconds(step)


def median_seconds(step: Callable[[], None]) -> float:
    """Median duration of several steps; the first step, which may compile, is not timed."""
    step()
    times: list[float] = []
    while len(times) < MIN_STEPS or (len(times) < MAX_STEPS and sum(times) < PROBE_SECONDS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def format_seconds(seconds: float) -> str:
    """Duration as `5 s`, `1 min 5 s` or `3 h 2 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (0 if hours else rest, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"
