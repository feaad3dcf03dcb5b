"""How long a plan takes: images to see over images per second, known from finished cells or measured in a few steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F

from quatsphere.config import RunConfig
from quatsphere.models import build_model
from quatsphere.study.plan import Cell
from quatsphere.study.results import Record
from quatsphere.study.scales import TRAIN_IMAGES

FEWEST_STEPS, MOST_STEPS, PROBE_SECONDS = 3, 20, 4.0
"""Steps that are timed for a model without finished cells: until the seconds are over, within these limits."""
WORTH_A_PROBE = 10_000
"""Images of a cell from which on its time is estimated before it starts."""


def images_of(cell: Cell) -> int:
    """Images a cell sees at most: early stopping may end it sooner."""
    limit = cell.config.data.max_train_images
    count = TRAIN_IMAGES[cell.dataset]
    return cell.config.train.epochs * (count if limit is None else min(limit, count))


class Pace:
    """Images per second by row and by model."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.speeds: dict[str, float] = {}
        for record in records:
            speeds = [speed for speed in record["trajectory"]["images_per_second"] if speed]
            if speeds:
                self.learn(record["variant"], record["config"]["model.name"], statistics.median(speeds))

    def learn(self, variant: str, model: str, speed: float) -> None:
        """A row's speed, which is its model's too until another row of the model is heard."""
        self.speeds[variant] = self.speeds[f"model {model}"] = speed

    def measure(self, cells: Sequence[Cell], say: Callable[[str], None] = lambda text: None) -> None:
        """Time a few steps of every model without a known speed; cells of seconds are left out."""
        for cell in cells:
            model = cell.config.model.name
            if f"model {model}" not in self.speeds and images_of(cell) >= WORTH_A_PROBE:
                say(f"timing a few training steps of {model}, {cell.config.train.batch_size} images each ...")
                speed = self.speeds[f"model {model}"] = probe_speed(cell.config)
                say(f"{model}: {speed:.0f} images/s")

    def seconds(self, cell: Cell) -> float | None:
        """A cell's time, if its speed is known at all."""
        speed = self.speeds.get(cell.variant) or self.speeds.get(f"model {cell.config.model.name}")
        return None if speed is None else images_of(cell) / speed

    def left(self, cells: Sequence[Cell], jobs: int, done: float = 0.0) -> float | None:
        """Seconds until all are through, side by side; `done` is the part of the running ones, in seconds."""
        times = [self.seconds(cell) for cell in cells]
        known = [seconds for seconds in times if seconds is not None]
        if not known:
            return None
        return max(0.0, statistics.mean(known) * len(times) - done) / max(1, min(jobs, len(times)))


def probe_speed(config: RunConfig) -> float:
    """Images per second of forward and backward at the batch size of the cells."""
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
    """Median time of several steps: other work on the machine disturbs it little; the first step, untimed, compiles."""
    step()
    times: list[float] = []
    while len(times) < FEWEST_STEPS or (len(times) < MOST_STEPS and sum(times) < PROBE_SECONDS):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def spell_seconds(seconds: float) -> str:
    """Time for people."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
