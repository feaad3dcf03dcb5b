"""How long a training will take, from its first steps."""

from __future__ import annotations

from quatsphere.train.progress import Progress

STEPS, SECONDS = 5, 10.0
"""Steps to time, or fewer if they take this long; the first step of a process is slower and does not count."""
PER_IMAGE = 1 / 3
"""Time of a validation image in that of a training image: a forward pass without its gradient."""


class Forecast:
    """Times a few steps and gives one line; `images` has the sizes of the training and validation part."""

    def __init__(self, total_steps: int, images: dict[str, int]) -> None:
        self.total = total_steps
        self.with_validation = 1 + PER_IMAGE * images["val"] / images["train"]
        self._first: tuple[int, float] | None = None
        self._done = False

    def line(self, progress: Progress, steps: int) -> str | None:
        """The line, once, as soon as it is known; `steps` is the number of steps in an epoch."""
        if self._done:
            return None
        if self._first is None:
            self._first = progress.step, progress.seconds
        timed, seconds = progress.step - self._first[0], progress.seconds - self._first[1]
        if timed == 0 or (timed < STEPS and seconds < SECONDS):
            return None
        self._done = True
        begun = self._first[0] > 1
        left = self.total - progress.step if begun else self.total
        epochs = -(-left // steps)
        scope = f"{epochs} {'epoch' if epochs == 1 else 'epochs'}{' left' if begun else ''}"
        return f"about {spell(seconds / timed * left * self.with_validation)} for {scope}"


def spell(seconds: float) -> str:
    """`42 s`, `12 min`, `2.5 h`, `3 days`."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{round(seconds / size, 1 if seconds < 10 * size and unit != 'min' else None)} {unit}"
    return f"{max(1, round(seconds))} s"
