"""QSV as plain torch with constants: see `quatsphere.export.frozen`.

Features of a token have the order (component, channel, head) instead of (head, channel, component): a component is
then a contiguous block, and rotations and routing weights act on rows of heads. The order is folded into the weights.
Tokens are columns (B, d, V), so that vertices are the innermost axis: operations on components act on long rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quatsphere.export.frames import LIFTS, LOWERINGS, apply_matrices, change_frame, inverse_rotations, left_products
from quatsphere.export.frozen_parts import Interpolation, NeighbourBlocks, frozen_parameter, permuted_linear, sampler_of
from quatsphere.geometry.quaternion import block_expand, normalize
from quatsphere.kernels import Rule
from quatsphere.models import QSV
from quatsphere.models.lattice import ModelStep, model_steps
from quatsphere.nn.field import LearnedBound, NoPerturbation, ShellField
from quatsphere.nn.layout import Shell
from quatsphere.nn.pooling import MeanPooling, PerHeadPooling
from quatsphere.nn.trace import Trace


class FrozenQSV(nn.Module):
    """QSV with the constants of its layout and field."""

    def __init__(self, model: QSV) -> None:
        super().__init__()
        config = model.config
        order = feature_order(config.heads, config.channels)
        self.sampler = sampler_of(model)
        self.projection = permuted_linear(model.embed.projection, rows=order)
        self.projection.weight = frozen_parameter(self.projection.weight[:, self.sampler.column_order])
        self.norm = copy.deepcopy(model.embed.norm)
        self.norm.weight, self.norm.bias = (frozen_parameter(p[order]) for p in (self.norm.weight, self.norm.bias))
        self.steps = nn.ModuleList(FrozenStep(model, step, order) for step in model_steps(model))
        self.pool = FrozenPooling(model, order)
        self.classifier = permuted_linear(model.classifier, columns=order)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images -> logits."""
        tokens = self.norm(self.projection(self.sampler(images))).transpose(1, 2)
        for step in self.steps:
            tokens = step(tokens)
        logits: Tensor = self.classifier(self.pool(tokens))
        return logits


class PerturbationNetwork(nn.Module):
    """q_eff = normalize(q_base ⊗ exp(ω)) of one shell, after the product with the network's first layer."""

    base: Tensor
    products: Tensor
    first: Tensor
    inner: Tensor
    outer: Tensor
    outer_bias: Tensor
    bound: Tensor

    def __init__(self, network: Any, shell: ShellField, order: Tensor) -> None:
        super().__init__()
        base = normalize(shell.base.detach())
        heads = base.shape[1]
        self.register_buffer("base", base.permute(2, 1, 0).contiguous())  # (4, H, V)
        self.register_buffer("products", left_products(base)[None], persistent=False)
        self.perturbed = not isinstance(network, NoPerturbation)
        self.bounded = self.perturbed and isinstance(shell.bound, LearnedBound)
        if not self.perturbed:
            return
        width = len(order) // heads
        rows = torch.arange(len(order)).view(heads, width).T.flatten()  # hidden units in the order (unit, head)
        self.register_buffer("first", network.inner.weight.detach()[rows][:, order])
        self.register_buffer("inner", network.inner.bias.detach()[rows])
        diagonal = torch.eye(heads)[None, :, None, :] * network.outer_weight.detach().permute(1, 0, 2)[..., None]
        self.register_buffer("outer", diagonal.reshape(len(order), 3 * heads))  # (unit, head) -> (axis, head)
        self.register_buffer("outer_bias", network.outer_bias.detach().T.flatten())
        if isinstance(shell.bound, LearnedBound):
            self.register_buffer("bound", shell.bound.value.detach().reshape(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """Field (B, 4, H, V) from first-layer outputs (B, d, V)."""
        if not self.perturbed:
            return self.base.expand(hidden.shape[0], -1, -1, -1)
        tangent = self.outer.T @ F.gelu(hidden + self.inner[:, None]) + self.outer_bias[:, None]
        if self.bounded:
            tangent = self.bound * torch.tanh(tangent)
        tangent = tangent.unflatten(1, (3, -1))
        angle = torch.sqrt((tangent * tangent).sum(1, keepdim=True)).clamp(min=1e-6)  # sin(angle) / angle is 1 there
        turn = torch.cat([torch.cos(angle), torch.sin(angle) / angle * tangent], 1)
        return apply_matrices(self.products, turn.unsqueeze(2)).squeeze(2)


class ColumnInterpolation(Interpolation):
    """`interp` of columns, (B, d, S) -> (B, d, T)."""

    def forward(self, x: Tensor) -> Tensor:
        """Interpolate rows: they are contiguous."""
        return x if self.identity else super().forward(x.transpose(1, 2)).transpose(1, 2)


class FrozenStep(nn.Module):
    """One step of QSV: (B, d, S) -> (B, d, T)."""

    neighbours: Tensor
    mask: Tensor
    equal: Tensor
    up_matrix: Tensor
    down_matrix: Tensor
    beta: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    skip: Tensor
    value_map: Tensor
    target_directions: Tensor
    source_directions: Tensor

    def __init__(self, model: QSV, step: ModelStep, order: Tensor) -> None:
        super().__init__()
        module, config = step.module, model.config
        self.heads, self.channels, self.k = config.heads, config.channels, step.graph.neighbours.shape[1]
        shells = [model.fields[step.source - 1], model.fields[step.target - 1]]
        self.within = shells[0] is shells[1]
        own = [shell.perturbation or module.perturbation for shell in shells]
        self.source = PerturbationNetwork(own[0], shells[0], order)
        self.target = None if self.within else PerturbationNetwork(own[1], shells[1], order)
        self.shared_first = own[0] is own[1]
        self.register_buffer("neighbours", step.graph.neighbours.clone())
        self.register_buffer("beta", module.routing.beta.detach())
        self.interpolation = ColumnInterpolation(step.graph)
        sources, positions = len(shells[0].base), model.layout.shells[step.target - 1].positions.detach()
        self.blocks = NeighbourBlocks(step.graph.neighbours, sources, positions)
        self.register_buffer("mask", self.blocks.mask, persistent=False)
        self.register_buffer("equal", self.blocks.equal, persistent=False)
        gate = module.gate.value
        self.register_buffer("gate", None if gate is None else gate.detach().reshape(1))
        self.routing: Rule = module.routing.rule
        self.transport: Rule = module.transport.rule
        self._freeze_directions(model.layout.shells, step)
        self._freeze_values(module, order)
        self._freeze_block(module)

    def _freeze_directions(self, shells: Sequence[Shell], step: ModelStep) -> None:
        if self.routing == "geometric":
            self.register_buffer("target_directions", shells[step.target - 1].directions().detach())
            self.register_buffer("source_directions", shells[step.source - 1].directions().detach())

    def _freeze_values(self, module: Any, order: Tensor) -> None:
        """Fold head mixing and a value map per head into one matrix on the right of the tokens."""
        maps = []
        if isinstance(getattr(module.head_mixing, "weight", None), Tensor):
            maps.append(module.head_mixing.weight.detach())
        if isinstance(getattr(module.transport, "weight", None), Tensor):
            maps.append(torch.block_diag(*module.transport.weight.detach()))
        whole = torch.linalg.multi_dot([*maps[::-1], torch.eye(len(order))]) if maps else None
        self.register_buffer("value_map", None if whole is None else whole[order][:, order].T.contiguous())

    def _freeze_block(self, module: Any) -> None:
        """Real matrices of the Hamilton block per head, (4Q, 16Q) and (16Q, 4Q), inputs and outputs (component, Q)."""
        inner = feature_order(1, self.channels)
        up, down = (block_expand(weight.detach()) for weight in module.ffn.weights(module.post))
        self.register_buffer("up", up.transpose(1, 2)[:, inner].contiguous())
        self.register_buffer("down", down.transpose(1, 2)[:, :, inner].contiguous())
        skip = block_expand(module.post.weight.detach()).transpose(1, 2)[:, inner][:, :, inner]
        self.register_buffer("skip", skip.contiguous() if module.ffn.skip else None)
        self.register_buffer("up_matrix", self.up.transpose(1, 2).contiguous(), persistent=False)
        self.register_buffer("down_matrix", self.down.transpose(1, 2).contiguous(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Field, routing, transport, Hamilton block and residual."""
        source, target = self.fields(tokens)
        values = tokens if self.value_map is None else self.value_map.T @ tokens
        sent = values.unflatten(1, (4, self.channels, self.heads))
        received = self.aggregate(self.weights(source, target), source, target, sent)
        mixed = received.flatten(1, 2).transpose(1, 2)  # (B, H, 4Q, T)
        update = self.down_matrix @ F.gelu(self.up_matrix @ mixed)
        if self.skip is not None:
            update = update + self.skip.transpose(1, 2) @ mixed
        residual = self.interpolation(tokens)
        return update.transpose(1, 2).flatten(1, 2) + (residual if self.gate is None else self.gate * residual)

    def fields(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of sources and targets; the first layer is linear, so it commutes with interpolation."""
        hidden = self.source.first @ tokens if self.source.perturbed else tokens
        source = self.source(hidden)
        if self.target is None:
            return source, source
        if self.target.perturbed and not self.shared_first:
            hidden = self.target.first @ tokens
        return source, self.target(self.interpolation(hidden) if self.target.perturbed else hidden)

    def weights(self, source: Tensor, target: Tensor) -> Tensor:
        """Routing weights (B, H, C, N, W) in the blocks of the graph."""
        if self.routing == "uniform":
            return self.equal
        if not isinstance(self.routing, str):
            return self.blocks.from_edges(self.routing(*self.edge_fields(source, target), self.beta))
        return torch.softmax(self.scores(source, target) + self.mask, dim=-1)

    def scores(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of built-in routings times beta."""
        if self.routing == "geometric":  # -‖p_i - q_i p_j q_i*‖² up to terms that are equal for all neighbours
            query = apply_matrices(inverse_rotations(target), self.target_directions.T[None, :, None, None]).squeeze(2)
            key = 2 * self.source_directions.T[None, :, None]
        else:
            query, key = target, source
        query = self.blocks.of_targets((query * self.beta[:, None]).permute(0, 2, 3, 1))
        scores = query @ self.blocks.of_sources(key.permute(0, 2, 3, 1)).transpose(-1, -2)
        return scores.abs() if self.routing == "absolute" else scores

    def edge_fields(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Fields as a registered rule receives them: (B, T, 1, H, 4) and (B, T, k, H, 4)."""
        here, there = (field.permute(0, 3, 2, 1) for field in (source, target))
        return there.unsqueeze(2), self.gather(here)

    def gather(self, x: Tensor) -> Tensor:
        """(B, S, ...) at all neighbours, (B, T, k, ...)."""
        return x.index_select(1, self.neighbours.flatten()).unflatten(1, (-1, self.k))

    def aggregate(self, weights: Tensor, source: Tensor, target: Tensor, sent: Tensor) -> Tensor:
        """Weighted sum of the messages, (B, 4, Q, H, S) -> (B, 4, Q, H, T)."""
        if not isinstance(self.transport, str):
            return self.aggregate_registered(weights, source, target, sent)
        lifted = change_frame(LIFTS[self.transport], source, sent).flatten(1, 2)  # (B, 4Q, H, S)
        rows = self.blocks.of_sources(lifted.permute(0, 2, 3, 1))
        total = self.blocks.to_targets(weights @ rows).permute(0, 3, 1, 2)  # (B, 4Q, H, T)
        return change_frame(LOWERINGS[self.transport], target, total.unflatten(1, (4, self.channels)))

    def aggregate_registered(self, weights: Tensor, source: Tensor, target: Tensor, sent: Tensor) -> Tensor:
        """`aggregate` with a transport given as a function on edges."""
        assert callable(self.transport)
        features = self.gather(sent.permute(0, 4, 3, 2, 1))  # (B, T, k, H, Q, 4)
        messages = self.transport(*self.edge_fields(source, target), features)
        shares = torch.full_like(messages[..., 0, 0], 1 / self.k)
        if self.routing != "uniform":
            shares = self.blocks.at_edges(weights)
        total = (shares[..., None, None] * messages).sum(2)  # (B, T, H, Q, 4)
        return total.permute(0, 4, 3, 2, 1)


class FrozenPooling(nn.Module):
    """Tokens of the last shell -> one vector, with the pooled axis as a constant."""

    axis: Tensor

    def __init__(self, model: QSV, order: Tensor) -> None:
        super().__init__()
        self.mean = isinstance(model.pool, MeanPooling)
        self.heads = model.config.heads if isinstance(model.pool, PerHeadPooling) else 1
        if not self.mean:
            trace = Trace()
            model.pool(torch.zeros(1, len(model.fields[-1].base), len(order)), model.fields[-1].base, trace)
            direction = F.pad(trace["pool_direction"].detach(), (1, 0))  # (0, d) for each quaternion
            self.register_buffer("axis", direction.repeat(len(order) // 4)[order])

    def forward(self, tokens: Tensor) -> Tensor:
        """Softmax of the scores along the axis, over vertices; with one softmax per head, of its channels only."""
        if self.mean:
            return tokens.mean(2)
        scores = (tokens * self.axis[:, None]).unflatten(1, (-1, self.heads)).sum(1)
        weights = torch.softmax(scores, dim=2).unsqueeze(1)
        return (tokens.unflatten(1, (-1, self.heads)) * weights).sum(3).flatten(1)


def feature_order(heads: int, channels: int) -> Tensor:
    """Features (head, channel, component) in the order (component, channel, head)."""
    return torch.arange(heads * channels * 4).view(heads, channels, 4).permute(2, 1, 0).flatten()
