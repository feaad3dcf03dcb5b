"""The matched baseline: dot-product attention on the same lattice, its width solved from QSV's parameter budget."""

from __future__ import annotations

import dataclasses
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import AttentionConfig, QSVConfig
from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.models.lattice import LatticeModel, build_embedding, build_layout
from quatsphere.models.qsv import QSV
from quatsphere.nn.dot_attention import AttentionStep
from quatsphere.nn.layout import Layout
from quatsphere.nn.pooling import MeanPooling
from quatsphere.nn.trace import Trace
from quatsphere.randomness import KeyedDropout

PAPER_HEADS = 6


def qsv_budget(config: AttentionConfig) -> int:
    """Number of parameters of the paper's QSV for the same image, shells and classes."""
    shared = ("image_size", "in_channels", "num_classes", "base_vertices", "shells")
    qsv = QSV(QSVConfig(**{name: getattr(config, name) for name in shared}))
    return sum(parameter.numel() for parameter in qsv.parameters())


def solve_width(config: AttentionConfig) -> AttentionConfig:
    """Return the configuration with width and heads filled in: the largest multiple of 8 within the budget (96).

    The width is solved with the value projection in place, so that removing it changes nothing else.
    """
    whole = dataclasses.replace(config, value="projected")
    dim = config.dim or _widest(whole, config.budget or qsv_budget(config))
    return dataclasses.replace(config, dim=dim, heads=config.heads or default_heads(dim))


def default_heads(dim: int) -> int:
    """6 where it divides the width (96: head dimension 16); else head dimension 16, or 8."""
    if dim % PAPER_HEADS == 0:
        return PAPER_HEADS
    return next((dim // size for size in (16, 8) if dim % size == 0), 1)


def _widest(config: AttentionConfig, budget: int) -> int:
    multiple = 8 if config.heads is None else math.lcm(8, config.heads)
    dim = multiple
    while attention_parameters(config, dim + multiple) <= budget:
        dim += multiple
    if attention_parameters(config, dim) > budget:
        raise ConfigError(
            f"no width fits a budget of {budget:,} parameters: the smallest, dim={dim}, needs "
            f"{attention_parameters(config, dim):,}; raise budget or set dim"
        )
    return dim


def attention_parameters(config: AttentionConfig, dim: int) -> int:
    """Number of parameters at a width, in closed form (a test compares it with the built model)."""
    steps = config.shells + config.rounds
    projections = 4 if config.value == "projected" else 3
    per_step = projections * (dim * dim + dim) + 8 * dim * dim + 5 * dim + 4 * dim
    patch = 25 * config.in_channels * dim + dim + 2 * dim
    learned = config.layout == "sphere" and config.positions == "learned"
    positions = 3 * sum(shell_sizes(config.base_vertices, config.shells)) if learned else 0
    return patch + steps * per_step + (dim + 1) * config.num_classes + positions


class AttentionNet(LatticeModel):
    """Matched baseline: dot-product attention over the same neighbours, (B, C, Y, X) -> (B, classes).

    567,658 parameters at the paper's size (d = 96): patch 7,488, five steps of 111,840, classifier 970."""

    PARTS = (
        ("positions", ".positions"),
        ("patch embedding", "embed."),
        ("norms", "_norm."),
        ("projections", ".attention."),
        ("ffn", ".ffn."),
        ("classifier", "classifier."),
    )

    def __init__(self, config: AttentionConfig | None = None, layout: Layout | None = None) -> None:
        super().__init__()
        self.config = config = solve_width(config or AttentionConfig())
        assert config.dim is not None
        self.layout = layout or build_layout(config)
        counts = self.layout.vertex_counts
        self.embed = build_embedding(config, config.dim, counts[0])
        self.within = _build_step(config, "within")
        self.cross = nn.ModuleList(_build_step(config, f"cross.{i}") for i in range(len(counts) - 1))
        self.rounds = nn.ModuleList(_build_step(config, f"rounds.{i}") for i in range(config.rounds))
        self.pool = MeanPooling()
        self.classifier = nn.Linear(config.dim, config.num_classes)

    def logits(
        self, images: Float[Tensor, "b c y x"], keys: Int[Tensor, "b"] | None, trace: Trace
    ) -> Float[Tensor, "b classes"]:
        """QSV's steps with attention in their place."""
        keys = self.sample_keys(images, keys)
        if not torch.compiler.is_compiling():
            self.layout.refresh()
        tokens = embedded = self.embed(images, self.layout.image_coords())
        tokens = self.within(tokens, self.layout.within, keys, trace)
        for step, graph in zip(self.cross, self.layout.cross, strict=True):
            tokens = step(tokens, graph, keys, trace)
        for step in self.rounds:
            tokens = step(tokens, self.layout.last, keys, trace)
        logits: Tensor = self.classifier(self.pool(tokens, None, trace))
        trace.note(lambda: {"tokens": embedded, "image_coords": self.layout.image_coords()})
        return logits

    def unreachable_parameters(self) -> set[str]:
        """Inner positions (the graph has no gradient) and key biases (the softmax cancels them); with uniform routing
        all of queries and keys."""
        positions = {n for n in self.parameter_roles()["positions"] if not n.startswith("layout.shells.0.")}
        unused = (".query.", ".key.") if self.config.routing == "uniform" else (".key.bias",)
        return positions | {name for name, _ in self.named_parameters() if any(part in name for part in unused)}


def _build_step(config: AttentionConfig, site: str) -> AttentionStep:
    assert config.dim is not None
    assert config.heads is not None
    dropouts = (
        KeyedDropout(config.attention_dropout, f"{site}.attention"),
        KeyedDropout(config.output_dropout, f"{site}.output"),
        KeyedDropout(config.output_dropout, f"{site}.ffn"),
    )
    return AttentionStep(config.dim, config.heads, config.value, dropouts, config.routing)
