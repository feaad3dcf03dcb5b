"""What every backend is handed: the checked arguments of one kernel application."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quatsphere.errors import ConfigError

ROUTINGS = ("alignment", "absolute", "uniform", "geometric")
TRANSPORTS = ("sandwich", "identity", "one_sided")
ONE_WAY = ("lift", "lower")
"""Transports that are a map before or after a kernel with transport `identity`; no backend has them itself."""


@dataclass(frozen=True)
class Problem:
    """One application of the kernel: targets (T) listen to k of the sources (S).

    target_field (B, T, H, 4), source_field (B, S, H, 4), features (B, S, H, Q, 4), neighbours (T, k) int64,
    beta (H,), keep (B, T, k, H) bool or None, directions (T, 3) and (S, 3) or None. Kept weights count keep_scale
    times.
    """

    target_field: Tensor
    source_field: Tensor
    features: Tensor
    neighbours: Tensor
    beta: Tensor
    routing: str
    transport: str
    keep: Tensor | None
    target_directions: Tensor | None
    source_directions: Tensor | None
    keep_scale: float = 1.0

    def __post_init__(self) -> None:
        _check_name("routing", self.routing, ROUTINGS)
        _check_name("transport", self.transport, (*TRANSPORTS, *ONE_WAY))
        B, T, H, _ = self.target_field.shape
        S, k = self.source_field.shape[1], self.neighbours.shape[-1]
        _check_shape("target_field", self.target_field, (B, T, H, 4))
        _check_shape("source_field", self.source_field, (B, S, H, 4))
        _check_shape("features", self.features, (B, S, H, self.features.shape[-2], 4))
        _check_shape("neighbours", self.neighbours, (T, k))
        _check_shape("beta", self.beta, (H,))
        if self.neighbours.dtype != torch.int64:
            raise ConfigError(f"neighbours must be int64: got {self.neighbours.dtype}; call .long()")
        if self.keep is not None:
            _check_shape("keep", self.keep, (B, T, k, H))
            if self.keep.dtype != torch.bool:
                raise ConfigError(
                    f"keep must be bool: got {self.keep.dtype}; give what survivors are worth as keep_scale"
                )
        if self.routing == "geometric":
            if self.target_directions is None or self.source_directions is None:
                raise ConfigError("routing 'geometric' needs target_directions (T, 3) and source_directions (S, 3)")
            _check_shape("target_directions", self.target_directions, (T, 3))
            _check_shape("source_directions", self.source_directions, (S, 3))

    def survivors(self, dtype: torch.dtype) -> Tensor | None:
        """What multiplies the weights after the softmax: keep_scale where kept, else zero; None where all are."""
        return None if self.keep is None else self.keep.to(dtype) * self.keep_scale

    def drop(self, weights: Tensor) -> Tensor:
        """The weights after dropout."""
        survivors = self.survivors(weights.dtype)
        return weights if survivors is None else weights * survivors


def _check_name(what: str, name: str, choices: tuple[str, ...]) -> None:
    if name not in choices:
        raise ConfigError(f"unknown {what} {name!r}; choose one of {', '.join(choices)}")


def _check_shape(what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{what} must have shape {shape}: got {tuple(tensor.shape)}")
