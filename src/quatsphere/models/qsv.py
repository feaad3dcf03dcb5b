"""Quat-Sphere-Vision. `QSV.logits` is the paper's figure "QSV in one view"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import QSVConfig
from quatsphere.models.lattice import LatticeModel, build_embedding, build_layout
from quatsphere.nn.extensions import build_routing, build_transport
from quatsphere.nn.field import BOUNDS, NoBound, NoPerturbation, Perturbation, PerturbationOfShells, ShellField
from quatsphere.nn.hamilton import HamiltonFFN, HamiltonLinear
from quatsphere.nn.layout import Layout
from quatsphere.nn.pooling import POOLINGS
from quatsphere.nn.shell_step import GatedResidual, Residual, ShellState, ShellStep, derive_for_all
from quatsphere.nn.trace import Trace
from quatsphere.nn.transport import HeadMixing
from quatsphere.randomness import KeyedDropout

FIELDS = {
    "learned": (None, True, True),
    "static": (None, True, False),
    "frozen_random": ("haar", False, False),
    "frozen_identity": ("aligned", False, False),
}
"""field -> (init or the configured one, base learned, perturbation on)."""


class QSV(LatticeModel):
    """Quat-Sphere-Vision: images (B, C, Y, X) -> logits (B, classes).

    639,187 parameters at the paper's size: field 81,920, positions 3,840, patch embedding 19,968,
    seven steps of 75,824 (post 1,024 + FFN 8,192 + perturbation 66,608), betas 112, bounds 5, gates 4,
    classifier 2,570. With a perturbation network per shell, five instead of seven: 505,971.

    It trains in any loop, with a DataLoader, autocast and `torch.compile` (examples/plain_loop.py). The loop must make
    two calls: `parameter_roles()["quaternions"]` once, for the names of the parameters that `RiemannianAdam` optimises
    in place of AdamW, and `constrain()` after every optimiser step, which projects the vertices onto their shells and
    updates the graphs. Both also exist for the other models.
    """

    PARTS = (
        ("field", ".base"),
        ("positions", ".positions"),
        ("patch embedding", "embed."),
        ("post", ".post."),
        ("ffn", ".ffn."),
        ("perturbation", ".perturbation."),
        ("value map", ".transport."),
        ("head mixing", ".head_mixing."),
        ("betas", ".beta_logit"),
        ("routing", ".routing."),
        ("bounds", ".bound.logit"),
        ("gates", ".gate.logit"),
        ("classifier", "classifier."),
    )

    fields: Sequence[ShellField]

    def __init__(self, config: QSVConfig | None = None, layout: Layout | None = None) -> None:
        super().__init__()
        self.config = config = config or QSVConfig()
        self.layout = layout or build_layout(config)
        counts = self.layout.vertex_counts
        self.embed = build_embedding(config, config.dim, counts[0])
        self.fields = nn.ModuleList(  # type: ignore[assignment]
            _build_field(config, count) for count in counts
        )
        self.within = _build_step(config, "within", gated=False, cross=False)
        self.cross = nn.ModuleList(
            _build_step(config, f"cross.{i}", gated=counts[i] != counts[i + 1], cross=True)
            for i in range(len(counts) - 1)
        )
        self.rounds = nn.ModuleList(
            _build_step(config, f"rounds.{i}", gated=False, cross=False) for i in range(config.rounds)
        )
        self.pool = POOLINGS[config.pooling]()
        self.classifier = nn.Linear(config.dim, config.num_classes)

    def logits(
        self, images: Float[Tensor, "b c y x"], keys: Int[Tensor, "b"] | None, trace: Trace
    ) -> Float[Tensor, "b classes"]:
        """The paper's figure from left to right."""
        keys = self.sample_keys(images, keys)
        if not torch.compiler.is_compiling():
            self.layout.refresh()
        shells = [ShellState(shell, field) for shell, field in zip(self.layout.shells, self.fields, strict=True)]
        tokens = embedded = self.embed(images, self.layout.image_coords())
        steps: list[tuple[Any, ShellState, ShellState]] = [(self.within, shells[0], shells[0])]
        steps += zip(self.cross, shells, shells[1:], strict=False)
        steps += [(step, shells[-1], shells[-1]) for step in self.rounds]
        graphs = [self.layout.within, *self.layout.cross, *[self.layout.last] * len(self.rounds)]
        derived = derive_for_all(steps, tokens)
        for (step, source, target), graph, own in zip(steps, graphs, derived, strict=True):
            tokens = step(tokens, source, target, graph, keys, trace, **({"derived": own} if own else {}))
        logits: Tensor = self.classifier(self.pool(tokens, self.fields[-1].base, trace))
        trace.note(lambda: {"tokens": embedded, "image_coords": self.layout.image_coords()})
        return logits

    def unreachable_parameters(self) -> set[str]:
        """Return the names of parameters that get no gradient from the task loss in this variant; all others get one.

        Registered rules are assumed to use the field and, for routing, β.
        """
        config, roles = self.config, self.parameter_roles()
        routes_by_field = config.routing != "uniform"
        constant_scores = config.field_mode == "frozen_identity" and config.routing in ("alignment", "absolute")
        out: set[str] = set()
        if config.routing != "geometric":
            out |= {name for name in roles["positions"] if not name.startswith("layout.shells.0.")}
        if config.routing == "uniform" or constant_scores:
            out |= set(roles["betas"])
        if not routes_by_field and config.transport in ("identity", "projected"):
            out |= set(roles["quaternions"]) | set(roles["bounds"])
            out |= {name for name in roles["weights"] if ".perturbation." in name}
        if not routes_by_field and config.transport == "lift" and self.cross and not self.rounds:
            last = f"fields.{len(self.cross)}."  # a shell that is never a source
            out |= {name for name, _ in self.named_parameters() if name.startswith(last)}
        return out


def _build_field(config: QSVConfig, vertices: int) -> ShellField:
    init, learned, perturbed = FIELDS[config.field_mode]
    bound = BOUNDS[config.bound]() if perturbed else NoBound()
    own = _build_perturbation(config) if perturbed and config.perturbation == "shell" else None
    return ShellField(vertices, config.heads, init or config.field_init, learned, bound, own)


def _build_perturbation(config: QSVConfig) -> Perturbation:
    return Perturbation(config.dim, config.heads, config.zero_init, config.backend)


def _step_perturbation(config: QSVConfig) -> Perturbation | PerturbationOfShells | NoPerturbation:
    """Perturbation of a step: none, the networks of its shells, or a network of the step."""
    _, _, perturbed = FIELDS[config.field_mode]
    if not perturbed:
        return NoPerturbation()
    return PerturbationOfShells() if config.perturbation == "shell" else _build_perturbation(config)


def _build_step(config: QSVConfig, site: str, *, gated: bool, cross: bool) -> ShellStep:
    """Build one step; the β probes apply to the cross-shell steps only."""
    heads, channels = config.heads, config.channels
    beta_start, beta_frozen = (config.beta_start, config.beta_frozen) if cross else (None, False)
    return ShellStep(
        _step_perturbation(config),
        build_routing(config.routing, heads, channels, beta_start, beta_frozen),
        build_transport(config.transport, heads, channels),
        (
            HamiltonLinear(heads, channels, channels),
            HamiltonFFN(heads, channels, backend=config.backend, skip=config.inner_skip == "residual"),
        ),
        GatedResidual() if gated else Residual(),
        (
            KeyedDropout(config.attention_dropout, f"{site}.attention"),
            KeyedDropout(config.output_dropout, f"{site}.output"),
        ),
        config.backend,
        HeadMixing(config.dim) if config.head_mixing == "linear" else None,
    )
