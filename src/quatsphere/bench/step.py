"""Whole models: a training step as the trainer makes it, and inference, of QSV and of its matched baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from quatsphere.bench.timing import Pass, best_and_median, interleave, peak_mb
from quatsphere.config import AttentionConfig, OptimConfig, QSVConfig, TrainConfig
from quatsphere.config.presets import LITE_BUDGET, LITE_QSV, LITE_SHELLS
from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.models import create_model, model_config
from quatsphere.models.attention_net import solve_width
from quatsphere.nn.dot_attention import AttentionStep, NeighbourAttention
from quatsphere.optim import repel
from quatsphere.runtime import disable_malloc_trimming
from quatsphere.train.batches import Batch
from quatsphere.train.losses import smooth_targets
from quatsphere.train.step import OptimisationStep

CPU = torch.device("cpu")
TOTAL = 10_000
"""Steps of the run that the measured step belongs to."""
EAGER = ["qsv", "attention fused", "attention dense"]
"""Variants in eager mode; `--compile` and bf16 add the same variants compiled and in bf16."""


STUDY_QSV = {"dim": 64, "heads": 4}
MODEL_SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "lite": {"qsv": LITE_QSV, "attention": LITE_SHELLS | {"budget": LITE_BUDGET}},
    "study": {"qsv": LITE_QSV | STUDY_QSV, "attention": LITE_SHELLS | {"budget": 43_111}},
}
"""Size -> settings of each model: the paper's, of presets `lite` and `lite-attention`, and of the study's scale `lite`,
where the baseline has as many parameters as its QSV."""


class DenseAttention(nn.Module):
    """A baseline's attention with torch's scaled_dot_product_attention instead of ours, the graph as a dense mask."""

    mask: Tensor | None

    def __init__(self, ours: NeighbourAttention) -> None:
        super().__init__()
        self.ours, self.heads = ours, ours.heads
        self.register_buffer("mask", None, persistent=False)

    def forward(
        self, target: Tensor, source: Tensor, graph: Any, keep: object, keep_scale: float, trace: object
    ) -> Tensor:
        """The same function; the mask is made once (the baseline's positions are frozen)."""
        if self.mask is None:
            shape = target.shape[1], source.shape[1]
            self.mask = torch.zeros(shape, dtype=torch.bool).scatter_(1, graph.neighbours, True)
        queries, keys, values = (
            rearrange(x, "b v (h c) -> b h v c", h=self.heads)
            for x in (self.ours.query(target), self.ours.key(source), self.ours.value(source))
        )
        aggregated = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)
        out: Tensor = self.ours.output(rearrange(aggregated, "b h v c -> b v (h c)"))
        return out


def build(variant: str, size: str = "paper", **overrides: Any) -> Any:
    """Build the model of a variant: `qsv`, `attention fused` or `attention dense`; further words choose how it runs."""
    name, *how = variant.split()
    model = create_model(**{"name": name, **MODEL_SIZES[size].get(name, {}), **overrides})
    if "dense" in how:
        for module in model.modules():
            if isinstance(module, AttentionStep):
                module.attention = DenseAttention(module.attention)  # type: ignore[assignment]
    return model


def variants(*, compiled: bool = False, bf16: bool = False) -> list[str]:
    """Names of the variants: eager, then compiled, then all of them in bf16."""
    names = EAGER + [f"{name} compiled" for name in EAGER if compiled]
    return names + [f"{name} bf16" for name in names if bf16]


class TrainingStep:
    """`OptimisationStep` on one batch of random images; repulsion, which runs every tenth step, is `repulse`."""

    def __init__(self, variant: str, batch: int, *, device: torch.device = CPU, **overrides: Any) -> None:
        self.model = model = build(variant, **overrides).to(device)
        words, classes, size = variant.split(), model.config.num_classes, model.config.image_size
        train = TrainConfig(
            compile="compiled" in words,
            cuda_graph="recorded" in words,
            precision="bf16" if "bf16" in words else "fp32",
        )
        self.optimise = OptimisationStep(model, train, OptimConfig(repulsion=False), TOTAL, device=device)
        self.optimise.auxiliary.store_fields()
        self.positions = list(self.optimise.positions.values())
        labels, keys = torch.arange(batch) % classes, torch.arange(batch)
        targets = smooth_targets(labels, classes, train.label_smoothing)
        images = torch.randn(batch, model.config.in_channels, size, size)
        self.batch = Batch(images, targets, labels, keys, keys).to(device)
        self.step = 0

    def __call__(self) -> None:
        self.optimise(self.batch, len(self.batch.samples), self.step)
        self.step += 1

    def repulse(self) -> None:
        """Apply one repulsion step and update the graphs."""
        repel(self.positions, 0, TOTAL, OptimConfig())
        self.model.constrain()


def inference(variant: str, batch: int, *, device: torch.device = CPU, **overrides: Any) -> Pass:
    """Logits of a batch in eval mode, without gradients."""
    model = build(variant, **overrides).to(device).eval()
    forward = torch.compile(model) if "compiled" in variant.split() else model
    images = torch.randn(batch, model.config.in_channels, model.config.image_size, model.config.image_size).to(device)

    def run() -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, "bf16" in variant.split()):
            logits: Tensor = forward(images)
            return logits

    return run


GROUPS: list[tuple[str, tuple[str, ...]]] = [
    ("optimisers", ("Optimizer.step", "Optimizer.zero_grad")),
    ("graph", ("quatsphere::constrain",)),
    ("finite check", ("quatsphere::finite_check",)),
    ("kernel", ("quatsphere::attend", "quatsphere::dot_attend", "aten::_scaled_dot_product", "quatsphere::edge_dot")),
    ("Hamilton block", ("quatsphere::feed_forward",)),
    ("field", ("quatsphere::perturb",)),
    ("dropout masks", ("quatsphere::keep_mask",)),
    ("resample", ("quatsphere::resample",)),
    ("patch sampling", ("aten::grid_sampler",)),
    ("layer norm", ("aten::native_layer_norm",)),
    ("GEMM", ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "mkldnn")),
]
"""part -> prefixes of the names of its operators; of nested operators the outermost that matches counts."""
WHOLE = "quatsphere::step"
"""Fused steps: their time outside all listed parts is the forward pass of field, kernel and Hamilton block."""


def group_of(names: list[str]) -> str:
    """The part that a chain of operators (innermost first) belongs to."""
    for name in reversed(names):
        for group, starts in GROUPS:
            if name.startswith(starts):
                return group
    whole = any(name.startswith(WHOLE) for name in names)
    return "steps, forward" if whole else "rest"


def profiled(run: Pass, steps: int = 2) -> list[dict[str, Any]]:
    """Milliseconds per step and share of every part, largest first; the profiler's overhead is included."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for _ in range(steps):
            run()
    spent: dict[str, float] = {}
    for event in record.events() or []:
        names, at = [], event
        while at is not None:
            names.append(at.name)
            at = at.cpu_parent
        group = group_of(names)
        spent[group] = spent.get(group, 0.0) + event.self_cpu_time_total / 1000 / steps
    total = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda part: -part[1])
    return [{"part": part, "ms": ms, "share": ms / total} for part, ms in ordered]


STENCIL = 25
Step = tuple[int, int]


def steps_of(config: QSVConfig | AttentionConfig) -> list[Step]:
    """(sources, targets) of every step: within the first shell, from shell to shell, rounds on the last."""
    counts = shell_sizes(config.base_vertices, config.shells)
    return [(counts[0], counts[0]), *pairwise(counts), *[(counts[-1], counts[-1])] * config.rounds]


def qsv_flops(config: QSVConfig) -> dict[str, int]:
    """Forward pass of one image by part: perturbation networks 2 d² per source; Hamilton layers 18 d²/H per target."""
    dim, steps = config.dim, steps_of(config)
    return {
        "patch embedding": 2 * steps[0][0] * STENCIL * config.in_channels * dim,
        "perturbation": sum(2 * sources * dim * dim for sources, _ in steps),
        "Hamilton": sum(18 * targets * dim * dim // config.heads for _, targets in steps),
        "classifier": 2 * dim * config.num_classes,
    }


def attention_flops(config: AttentionConfig) -> dict[str, int]:
    """Forward pass of one image by part: queries and outputs 4 d² per target, keys and values 4 d² per source."""
    config = solve_width(config)
    assert config.dim is not None
    dim, steps = config.dim, steps_of(config)
    per_source = 4 if config.value == "projected" else 2
    return {
        "patch embedding": 2 * steps[0][0] * STENCIL * config.in_channels * dim,
        "projections": sum((4 * targets + per_source * sources) * dim * dim for sources, targets in steps),
        "feed-forward": sum(16 * targets * dim * dim for _, targets in steps),
        "classifier": 2 * dim * config.num_classes,
    }


def forward_flops(config: object) -> int:
    """Floating-point operations of the forward pass of one image."""
    if isinstance(config, QSVConfig):
        return sum(qsv_flops(config).values())
    if isinstance(config, AttentionConfig):
        return sum(attention_flops(config).values())
    raise ConfigError(f"no operation count for {type(config).__name__}; there is one for qsv and attention")


def training_flops(config: object) -> int:
    """Floating-point operations of a training step per image: forward, and twice as much backward."""
    return 3 * forward_flops(config)


SIZES = [1_280, 3_200, 10_000, 32_000, 100_000]
"""Vertices in all shells; the five shells have 1, 1.5, 2, 2.5 and 3 tenths of them."""
NEIGHBOURS = 16


def scaling_settings(vertices: int, dim: int) -> dict[str, int]:
    """Valid settings of a QSV with this total number of vertices."""
    if vertices < 10 * NEIGHBOURS:
        raise ConfigError(f"scaling needs {10 * NEIGHBOURS} vertices or more, k of them on each shell: got {vertices}")
    settings = {"dim": dim, "base_vertices": vertices // 10, "neighbours": NEIGHBOURS}
    model_config("qsv", **settings)
    return settings


def compile_kernels(dim: int) -> None:
    """Compile the kernels by a training step of a small model."""
    TrainingStep("qsv", 1, dim=dim, base_vertices=16, shells=2, neighbours=8)()


def measure_size(vertices: int, dim: int, rounds: int) -> dict[str, Any]:
    """Seconds of a training step of a QSV of this size, and the memory that training adds to this process."""
    settings = scaling_settings(vertices, dim)
    compile_kernels(dim)
    steps: list[TrainingStep] = []

    def start() -> None:
        steps.append(TrainingStep("qsv", 1, device=CPU, **settings))
        steps[0]()
        steps[0].repulse()

    peak = peak_mb(start)
    disable_malloc_trimming()  # as in training; only after the peak is measured, from which it would hide memory
    model = steps[0].model
    laps = best_and_median(interleave({"step": steps[0]}, rounds)["step"])
    return {
        "vertices": sum(model.layout.vertex_counts),
        "dim": dim,
        "seconds": laps["best_ms"] / 1000,
        "median_seconds": laps["median_ms"] / 1000,
        "peak_mb": peak,
    }


def exponent(points: Sequence[Mapping[str, Any]], key: str) -> float:
    """Exponent p of the least-squares fit key = c vertices^p; nan for a single size."""
    sizes, values = (np.log([point[name] for point in points]) for name in ("vertices", key))
    return float(np.polyfit(sizes, values, 1)[0]) if len(set(sizes)) > 1 else math.nan
