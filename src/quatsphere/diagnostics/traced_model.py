"""A model with the images to diagnose it on, summaries of its traces, and its results without transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from quatsphere.data import Dataset, Split
from quatsphere.data.augment import normalized_batches
from quatsphere.diagnostics.measures import orientation_spread, score_spread, tangent_norms, weight_histogram
from quatsphere.models import Model, build_model
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.models.scoring import Evaluation, batch_logits
from quatsphere.nn.shell_step import ShellStep
from quatsphere.nn.trace import Trace, routing_entropy, routing_peak


@contextmanager
def patched_attribute(owner: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by `change(owner.name)` within the block, on this object only."""
    attributes = vars(owner)
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = change(getattr(owner, name))
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(before)


@contextmanager
def unfused_steps(model: Model) -> Iterator[None]:
    """Run no step in one fused operator within the block, so that patches and timers reach every part."""
    with ExitStack() as stack:
        for step in model_steps(model):
            if isinstance(step.module, ShellStep):
                stack.enter_context(patched_attribute(step.module, "fused", lambda fused: False))
        yield


def has_field(model: nn.Module) -> bool:
    """Return whether the model's tokens carry quaternions."""
    return hasattr(model, "fields")


TRACE_BATCH = 16
"""Images per forward pass with a trace, which holds every edge of every step."""


@dataclass(frozen=True)
class TraceSummary:
    """Measures of one batch's trace: by name one value per step, histograms (steps, bins), |ω| by shell."""

    images: int
    measures: dict[str, Tensor]
    histograms: Tensor
    tangents: dict[int, list[Tensor]]


@dataclass(frozen=True, repr=False)
class TracedModel:
    """A model with the images to diagnose it on; see `diagnose` for the fields."""

    model: Model
    dataset: Dataset
    split: str
    images: int
    accuracy_images: int | None
    seed: int | None
    metrics: Sequence[dict[str, Any]]
    progress: Callable[[int, int], None]

    def __repr__(self) -> str:
        name, data = self.model.config.name, self.dataset.name
        return f"TracedModel({name}, {len(self.steps)} steps, {len(self.traced)} {self.split} images of {data})"

    @cached_property
    def steps(self) -> list[ModelStep]:
        """Applications of the kernel, in order."""
        return model_steps(self.model)

    @cached_property
    def start(self) -> Model | None:
        """The model before training, rebuilt from the seed; None if the seed is unknown."""
        return None if self.seed is None else build_model(self.model.config, seed=self.seed)

    def subset(self, split: str, count: int | None) -> Split:
        """Return at most `count` images of a split, evenly spaced, because splits may be sorted by class."""
        full: Split = getattr(self.dataset, split)
        count = len(full) if count is None else min(count, len(full))
        chosen = torch.arange(count) * len(full) // max(1, count)
        return Split(full.images[chosen], full.labels[chosen])

    def batches(self, part: Split, size: int) -> Iterator[Tensor]:
        """Yield normalised images on the model's device."""
        device = next(self.model.parameters()).device
        for images in normalized_batches(part.images, self.dataset.mean, self.dataset.std, size):
            yield images.to(device)

    def evaluate(self, part: Split) -> Evaluation:
        """Evaluate the model on images without augmentation."""
        dataset = self.dataset
        batches = normalized_batches(part.images, dataset.mean, dataset.std, progress=self.progress)
        return Evaluation(batch_logits(self.model, batches, len(dataset.classes)), part.labels, dataset.classes)

    @cached_property
    def traced(self) -> Split:
        """The images whose traces are summarised."""
        return self.subset(self.split, self.images)

    @cached_property
    def summaries(self) -> list[TraceSummary]:
        """Summaries of the traces of all batches, from one pass."""
        out: list[TraceSummary] = []
        for images in self.batches(self.traced, TRACE_BATCH):
            self.progress(sum(summary.images for summary in out), len(self.traced))
            with torch.no_grad():
                out.append(self._summarize(self.model(images, return_trace=True)[1], len(images)))
        return out

    def _summarize(self, trace: Trace, images: int) -> TraceSummary:
        weights = trace["weights"]
        rows = {
            "entropy": [routing_entropy(weight) for weight in weights],
            "peak": [routing_peak(weight) for weight in weights],
        }
        tangents: dict[int, list[Tensor]] = {}
        if has_field(self.model):
            edges = list(zip(trace["field"], trace["source_field"], trace["neighbours"], strict=True))
            rows["orientation"] = [orientation_spread(*edge) for edge in edges]
            rows["score"] = [score_spread(*edge) for edge in edges]
            tangents = self._tangents(trace)
        histograms = torch.stack([weight_histogram(weight) for weight in weights])
        return TraceSummary(images, {name: torch.tensor(row) for name, row in rows.items()}, histograms, tangents)

    def _tangents(self, trace: Trace) -> dict[int, list[Tensor]]:
        """Return shell -> |ω| of its vertices in every step that perturbs them, as target or as source."""
        model: Any = self.model
        out: dict[int, list[Tensor]] = {}
        for step, target, source in zip(self.steps, trace["field"], trace["source_field"], strict=True):
            for shell, field in {step.target: target, step.source: source}.items():
                norms = tangent_norms(field, model.fields[shell - 1].base)
                out.setdefault(shell, []).append(norms.flatten().float().cpu())
        return out


# Test-time intervention: some heads or steps without transport, with the same routing weights.


@contextmanager
def transport_off(steps: Sequence[ModelStep], heads: Tensor) -> Iterator[None]:
    """Within the block, these steps pass x_j on instead of r_ij x_j r_ij* for the heads in the mask (H,)."""
    with ExitStack() as stack:
        for step in steps:
            attend = _without_transport(step.module.transport, heads)
            stack.enter_context(patched_attribute(step.module, "attend", attend))
        yield


def _without_transport(transport: Any, heads: Tensor) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Run the kernel with and without transport and choose between the two by head."""

    def change(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_twice(*arguments: Any) -> Tensor:
            rotated = attend(*arguments)
            with patched_attribute(transport, "rule", lambda rule: "identity"):
                unrotated = attend(*arguments)
            return torch.where(heads.to(rotated.device)[:, None, None], unrotated, rotated)

        return attend_twice

    return change


def transport_effects(model: Model, evaluate: Callable[[], Evaluation]) -> dict[str, Any]:
    """Return accuracy and likelihood, and their changes without each head's, each step's, and all transport.

    All evaluations run unfused, so differences contain no rounding of another code path.
    """
    steps = model_steps(model)
    count = int(steps[0].module.routing.beta.shape[0])
    all_heads = torch.ones(count, dtype=torch.bool)

    def effect(without: Sequence[ModelStep], heads: Tensor) -> dict[str, float]:
        with transport_off(without, heads):
            changed = evaluate()
        return {"accuracy": changed.accuracy - full.accuracy, "nll": changed.nll - full.nll}

    with unfused_steps(model):
        full = evaluate()
        return {
            "accuracy": full.accuracy,
            "nll": full.nll,
            "heads": [effect(steps, torch.arange(count) == head) for head in range(count)],
            "steps": [effect([step], all_heads) for step in steps],
            "all": effect(steps, all_heads),
        }
