"""What is measured: a model, images it reads, what it looked like at the start; and one pass that sees its inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quatsphere.data import Dataset, Split
from quatsphere.data.augment import normalize
from quatsphere.diagnostics import measures as fields
from quatsphere.diagnostics.measures import weight_histogram
from quatsphere.models import Model, build_model
from quatsphere.models.scoring import Evaluation
from quatsphere.nn.layout import Graph
from quatsphere.nn.measures import routing_entropy, routing_peak
from quatsphere.nn.shell_step import ShellStep
from quatsphere.nn.trace import Trace


@contextmanager
def shadow(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Within the block `owner.name` is `change(owner.name)`; its class and all other objects keep theirs."""
    own = vars(owner)
    before = {name: own[name]} if name in own else {}
    own[name] = change(getattr(owner, name))
    try:
        yield
    finally:
        del own[name]
        own.update(before)


class Step(NamedTuple):
    """One application of the kernel: tokens of shell `source` become tokens of shell `target`."""

    name: str
    source: int
    target: int
    module: Any
    graph: Graph


def steps_of(model: Model) -> list[Step]:
    """within, cross 1 ... cross L-1, round 1 ...: the order of a trace; none for a model without shells."""
    layout: Any = getattr(model, "layout", None)
    if layout is None:
        return []
    last = len(layout.shells)
    cross: Any = model.cross
    rounds: Any = model.rounds
    return [
        Step("within", 1, 1, model.within, layout.within),
        *(Step(f"cross {i}", i, i + 1, cross[i - 1], layout.cross[i - 1]) for i in range(1, last)),
        *(Step(f"round {i}", last, last, module, layout.last) for i, module in enumerate(rounds, start=1)),
    ]


@contextmanager
def part_by_part(model: Model) -> Iterator[None]:
    """Within the block no step runs in one operator: interventions and clocks reach every part."""
    with ExitStack() as stack:
        for step in steps_of(model):
            if isinstance(step.module, ShellStep):
                stack.enter_context(shadow(step.module, "fused", lambda fused: False))
        yield


def has_field(model: nn.Module) -> bool:
    """Whether the model's tokens carry quaternions."""
    return hasattr(model, "fields")


TRACED, PLAIN = 16, 256
"""Images at once, with and without a trace (which holds every edge of every step)."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Seen:
    """What one batch's trace gave: a row of numbers per measure, one per step; |ω| by shell."""

    images: int
    measures: dict[str, Tensor]
    histograms: Tensor
    tangents: dict[int, list[Tensor]]


@dataclass(frozen=True)
class Subject:
    """A model with the images to look at."""

    model: Model
    dataset: Dataset
    split: str
    images: int
    accuracy_images: int | None
    seed: int | None
    metrics: Sequence[dict[str, Any]]
    progress: Progress

    @cached_property
    def steps(self) -> list[Step]:
        """Every application of the kernel."""
        return steps_of(self.model)

    @cached_property
    def start(self) -> Model | None:
        """The model before training: its weights follow from the seed."""
        return None if self.seed is None else build_model(self.model.config, seed=self.seed)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def part(self, split: str, count: int | None) -> Split:
        """At most `count` images of a split, evenly spread, so over all classes (images are sorted by class)."""
        whole: Split = getattr(self.dataset, split)
        count = len(whole) if count is None else min(count, len(whole))
        chosen = torch.arange(count) * len(whole) // max(1, count)
        return Split(whole.images[chosen], whole.labels[chosen])

    def batches(self, part: Split, size: int) -> Iterator[Tensor]:
        """Images as the model reads them, on its device."""
        for images in part.images.split(size):
            yield normalize(images, self.dataset.mean, self.dataset.std).to(self.device)

    @torch.no_grad()
    def evaluate(self, part: Split) -> Evaluation:
        """The model's answers, without augmentation."""
        logits = [torch.empty(0, len(self.dataset.classes))]
        for done, images in enumerate(self.batches(part, PLAIN)):
            self.progress(done * PLAIN, len(part))
            logits.append(self.model(images).float().cpu())
        return Evaluation(torch.cat(logits), part.labels, self.dataset.classes)

    @cached_property
    def traced(self) -> Split:
        """The images whose traces are looked at."""
        return self.part(self.split, self.images)

    @cached_property
    def seen(self) -> list[Seen]:
        """One pass over the traced images."""
        out: list[Seen] = []
        for images in self.batches(self.traced, TRACED):
            self.progress(sum(seen.images for seen in out), len(self.traced))
            with torch.no_grad():
                out.append(self._look(self.model(images, return_trace=True)[1], len(images)))
        return out

    def _look(self, trace: Trace, images: int) -> Seen:
        weights = trace["weights"]
        rows = {
            "entropy": [routing_entropy(weight) for weight in weights],
            "peak": [routing_peak(weight) for weight in weights],
        }
        tangents: dict[int, list[Tensor]] = {}
        if has_field(self.model):
            ends = list(zip(trace["field"], trace["source_field"], trace["neighbours"], strict=True))
            rows["orientation"] = [fields.orientation_spread(*end) for end in ends]
            rows["score"] = [fields.score_spread(*end) for end in ends]
            tangents = self._tangents(trace)
        histograms = torch.stack([weight_histogram(weight) for weight in weights])
        return Seen(images, {name: torch.tensor(row) for name, row in rows.items()}, histograms, tangents)

    def _tangents(self, trace: Trace) -> dict[int, list[Tensor]]:
        """shell -> |ω| of its vertices in every step that turns them, as target or as source."""
        model: Any = self.model
        out: dict[int, list[Tensor]] = {}
        for step, target, source in zip(self.steps, trace["field"], trace["source_field"], strict=True):
            ends = {step.target: target, step.source: source}
            for shell, field in ends.items():
                norms = fields.tangent_norms(field, model.fields[shell - 1].base)
                out.setdefault(shell, []).append(norms.flatten().float().cpu())
        return out
