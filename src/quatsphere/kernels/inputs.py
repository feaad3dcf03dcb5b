"""Inputs of the kernels: one application of the attention kernel, and one whole step of QSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from quatsphere.errors import ConfigError

ROUTINGS = ("alignment", "absolute", "uniform", "geometric")
TRANSPORTS = ("sandwich", "identity", "one_sided")
ONE_WAY = ("lift", "lower")
"""Transports that are a map before or after a kernel with transport `identity`; no backend implements them."""

EdgeFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A rule given as a function on edges: of target quaternions (B, T, 1, H, 4), source quaternions (B, T, k, H, 4) and,
for routing, β (H,) -> weights (B, T, k, H); for transport, features (B, T, k, H, Q, 4) -> messages of that shape."""
Rule: TypeAlias = str | EdgeFunction


@dataclass(frozen=True)
class AttentionInputs:
    """One application of the kernel: each of T targets attends to k of S sources.

    target_field (B, T, H, 4), source_field (B, S, H, 4), features (B, S, H, Q, 4), neighbours (T, k) int64,
    beta (H,), keep (B, T, k, H) bool or None, directions (T, 3) and (S, 3) or None. Kept weights are multiplied by
    keep_scale. A rule is a name or an `EdgeFunction`.
    """

    target_field: Tensor
    source_field: Tensor
    features: Tensor
    neighbours: Tensor
    beta: Tensor
    routing: Rule
    transport: Rule
    keep: Tensor | None
    target_directions: Tensor | None
    source_directions: Tensor | None
    keep_scale: float = 1.0

    def __post_init__(self) -> None:
        edges = self.target_field.shape[1], self.neighbours.shape[-1]
        check_shape("neighbours", self.neighbours, edges)
        if self.neighbours.dtype != torch.int64:
            raise ConfigError(f"neighbours must be int64: got {self.neighbours.dtype}; call .long()")
        check_inputs(self, edges)

    def survivors(self, dtype: torch.dtype) -> Tensor | None:
        """Factor of the weights after the softmax: keep_scale where kept, else zero; None without dropout."""
        return None if self.keep is None else self.keep.to(dtype) * self.keep_scale

    def drop(self, weights: Tensor) -> Tensor:
        """Apply the dropout mask to the weights."""
        survivors = self.survivors(weights.dtype)
        return weights if survivors is None else weights * survivors

    def edge_weights(self, routing: EdgeFunction) -> Tensor:
        """Weights (B, T, k, H) of a routing given as a function."""
        weights = routing(self.target_field[:, :, None], gather(self.source_field, self.neighbours), self.beta)
        check_shape("the weights of a routing function", weights, self._edges)
        return weights

    def edge_messages(self, transport: EdgeFunction) -> Tensor:
        """Messages (B, T, k, H, Q, 4) of a transport given as a function."""
        source, features = (gather(x, self.neighbours) for x in (self.source_field, self.features))
        messages = transport(self.target_field[:, :, None], source, features)
        check_shape("the messages of a transport function", messages, (*self._edges, *self.features.shape[3:]))
        return messages

    @property
    def _edges(self) -> tuple[int, ...]:
        B, T, H, _ = self.target_field.shape
        return B, T, self.neighbours.shape[1], H


def check_inputs(inputs: Any, edges: tuple[int, ...]) -> None:
    """Raise ConfigError for an unknown rule, or tensors that do not belong together; `edges` is the graph's shape."""
    check_name("routing", inputs.routing, ROUTINGS)
    check_name("transport", inputs.transport, (*TRANSPORTS, *ONE_WAY))
    (B, T, H, _), S = inputs.target_field.shape, inputs.source_field.shape[1]
    check_shape("target_field", inputs.target_field, (B, T, H, 4))
    check_shape("source_field", inputs.source_field, (B, S, H, 4))
    check_shape("features", inputs.features, (B, S, H, inputs.features.shape[-2], 4))
    check_shape("beta", inputs.beta, (H,))
    if inputs.keep is not None:
        check_shape("keep", inputs.keep, (B, *edges, H))
        if inputs.keep.dtype != torch.bool:
            raise ConfigError(
                f"keep must be bool: got {inputs.keep.dtype}; give the scale of kept weights as keep_scale"
            )
    if inputs.routing == "geometric":
        if inputs.target_directions is None or inputs.source_directions is None:
            raise ConfigError("routing 'geometric' needs target_directions (T, 3) and source_directions (S, 3)")
        check_shape("target_directions", inputs.target_directions, (T, 3))
        check_shape("source_directions", inputs.source_directions, (S, 3))


def gather(x: Tensor, neighbours: Tensor) -> Tensor:
    """Return x_j of every edge: (B, S, ...) -> (B, T, k, ...)."""
    return x.index_select(1, neighbours.reshape(-1)).unflatten(1, neighbours.shape)


def check_name(what: str, name: Rule, choices: Sequence[str]) -> None:
    """Raise ConfigError for a name that is none of the choices."""
    if isinstance(name, str) and name not in choices:
        raise ConfigError(f"unknown {what} {name!r}; choose one of {', '.join(choices)}")


def check_shape(what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ConfigError unless the tensor has this shape."""
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{what} must have shape {shape}: got {tuple(tensor.shape)}")


class Network(NamedTuple):
    """The perturbation network after its first product: inner bias (H * I), weight (H, I, 3), bias (H, 3)."""

    inner: Tensor
    weight: Tensor
    bias: Tensor


class Mixing(NamedTuple):
    """Interpolation between shells: indices of source rows and their weights, which sum to one, both (T, terms)."""

    indices: Tensor
    shares: Tensor


class ShellPair(NamedTuple):
    """Bounds and bases of a step's two shells, (S, H, 4) and (T, H, 4); the target is None within one shell."""

    bounds: Tensor
    source: Tensor
    target: Tensor | None


class DropoutMasks(NamedTuple):
    """Dropout of the weights (B, T, k, H) and of the update (B, T, d): masks or None, and scales of the kept.

    For a backend that hashes masks itself, keys (B,) and a site in place of a mask (`randomness.draw_mask`).
    """

    edges: Tensor | None
    update: Tensor | None
    edge_scale: float
    update_scale: float
    edge_site: int = 0
    update_site: int = 0


@dataclass(frozen=True)
class FusedStepInputs:
    """Tensors of one whole step: tokens (B, S, d) -> (B, T, d).

    first (d, d) is the first layer of the perturbation network, up and down the Hamilton block; gate and mixing, the
    residual between shells, are None within one. Rules are names.
    """

    tokens: Tensor
    first: Tensor
    network: Network
    shells: ShellPair
    neighbours: Tensor
    beta: Tensor
    up: Tensor
    down: Tensor
    gate: Tensor | None
    mixing: Mixing | None
    masks: DropoutMasks
    routing: str
    transport: str

    def narrowed(self, dtype: torch.dtype, first: torch.dtype) -> FusedStepInputs:
        """The same inputs in one dtype, except the first layer, in whose dtype its products are computed."""
        wide = {name: getattr(self, name) for name in ("tokens", "beta", "up", "down", "gate")}
        wide = {name: None if value is None else value.to(dtype) for name, value in wide.items()}
        shells = self.shells._replace(bounds=self.shells.bounds.to(dtype))
        return replace(self, first=self.first.to(first), shells=shells, **wide)

    def operands(self) -> tuple[Any, ...]:
        """Arguments of the operator for whole steps, rules by their index in ROUTINGS and TRANSPORTS."""
        rules = ROUTINGS.index(self.routing), TRANSPORTS.index(self.transport)
        parameters = (self.first, *self.network, *self.shells, self.beta, self.up, self.down, self.gate)
        return self.tokens, *parameters, self.neighbours, *(self.mixing or (None, None)), *self.masks[:4], *rules


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """Widest dtype among the inputs, at least float32: the kernels cast at their border."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype
