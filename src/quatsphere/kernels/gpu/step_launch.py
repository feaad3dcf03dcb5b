"""Launches of the Hamilton block and of the field: blocks, warps, and the parts of the parameters' gradients."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from quatsphere.kernels.gpu.kernels import field, hamilton
from quatsphere.kernels.gpu.launch import ACCUMULATE, mask_arguments
from quatsphere.kernels.neighbour_ops import reversed_edges

TOKENS, BACKWARD_TOKENS = 64, 32
"""Tokens of one head per program of the Hamilton block; with these no kernel spills registers."""
PARTS = 48
"""Programs per head that share the tokens in the Hamilton block's gradient."""
IMAGE_GROUPS = 16
"""Programs per vertex that share the images in the field's kernels."""


class Dropout(NamedTuple):
    """Mask of the update: a bool tensor or the keys (B,) of a hashed one, its site, and the scale of the kept."""

    keep: Tensor | None
    site: int
    keep_scale: float


class Mixture(NamedTuple):
    """Interpolation (T, terms) between two shells, or nothing within one."""

    indices: Tensor | None
    weights: Tensor | None

    @property
    def terms(self) -> int:
        """Rows that a target mixes, 0 within a shell."""
        return 0 if self.indices is None else self.indices.shape[1]

    def tensors(self, absent: Tensor) -> tuple[Tensor, Tensor]:
        """Contiguous tables; `absent` stands for missing ones, which are never read."""
        if self.indices is None or self.weights is None:
            return absent, absent
        return self.indices.contiguous(), self.weights.contiguous()


def _hamilton_constants(up: Tensor, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    heads, wide, channels, _ = up.shape
    sizes = {"H": heads, "C": 4 * channels, "M": 4 * wide}
    blocks = {"WIDTH": _block(4 * channels), "HIDDEN": _block(4 * wide), "N": tokens}
    return {**sizes, **blocks, "ACCUMULATE": ACCUMULATE[dtype], "num_warps": 4}


def _block(size: int) -> int:
    """Power of two that holds `size`, at least the 16 that products of blocks need."""
    return max(16, triton.next_power_of_2(size))


def launch_hamilton(
    x: Tensor, weights: tuple[Tensor, Tensor], dropout: Dropout, residual: Tensor, gate: Tensor | None, mixture: Mixture
) -> Tensor:
    """dropout(down gelu(up x)) + residual for x (B, T, d), in the residual's dtype."""
    (B, T, d), (up, down) = x.shape, (weight.contiguous() for weight in weights)
    out = residual.new_empty(B, T, d)
    mask, keep = mask_arguments(*dropout)
    constants = _hamilton_constants(up, TOKENS, x.dtype)
    with torch.cuda.device_of(x):
        hamilton.hamilton_kernel[(triton.cdiv(B * T, TOKENS), len(up))](
            x, up, down, x if dropout.keep is None else dropout.keep.contiguous(), residual.contiguous(),
            x if gate is None else gate, *mixture.tensors(x), out, B * T, T, residual.shape[1], *mask,
            TERMS=mixture.terms, RESIDUAL=1 if gate is None else 2, **keep, **constants,
        )  # fmt: skip
    return out


def launch_hamilton_backward(
    gradient: Tensor, x: Tensor, weights: tuple[Tensor, Tensor], dropout: Dropout
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, up and down from that of the result (B, T, d)."""
    (B, T, _), (up, down) = x.shape, (weight.contiguous() for weight in weights)
    (heads, wide, channels, _), tiles = up.shape, triton.cdiv(B * T, BACKWARD_TOKENS)
    per_program = triton.cdiv(tiles, PARTS)
    count = triton.cdiv(tiles, per_program)
    parts = x.new_empty(2, count, heads, 16 * wide * channels)
    x_gradient, into = torch.empty_like(x), (torch.empty_like(up), torch.empty_like(down))
    mask, keep = mask_arguments(*dropout)
    with torch.cuda.device_of(x):
        hamilton.hamilton_gradients_kernel[(count, heads)](
            gradient.contiguous(), x, up, down, x if dropout.keep is None else dropout.keep.contiguous(),
            x_gradient, parts[0], parts[1], B * T, T, per_program, *mask,
            **keep, **_hamilton_constants(up, BACKWARD_TOKENS, x.dtype),
        )  # fmt: skip
        for part, weight in zip(parts, into, strict=True):
            rows, columns = 4 * weight.shape[1], 4 * weight.shape[2]
            hamilton.weight_gradient_kernel[(triton.cdiv(wide * channels, 32), heads)](
                part, weight, count, ROWS=rows, COLUMNS=columns, N=32, ACCUMULATE=ACCUMULATE[x.dtype], num_warps=1
            )
    return x_gradient, *into


def _field_constants(weight: Tensor, images: int, dtype: torch.dtype) -> dict[str, Any]:
    heads, width, _ = weight.shape
    blocks = {"HEADS": triton.next_power_of_2(heads), "WIDTH": triton.next_power_of_2(width)}
    warps = min(8, max(1, blocks["HEADS"] * blocks["WIDTH"] // 256))
    sizes = {"H": heads, "I": width, "GROUPS": min(images, IMAGE_GROUPS)}
    return {**sizes, **blocks, "ACCUMULATE": ACCUMULATE[dtype], "num_warps": warps}


def launch_perturb(rows: Tensor, network: tuple[Tensor, ...], bound: Tensor, base: Tensor, mixture: Mixture) -> Tensor:
    """Field (B, V, H, 4) of a shell with base (V, H, 4) from rows (B, S, d) of the network's hidden numbers."""
    images, sources, _ = rows.shape
    out, constants = base.new_empty(images, *base.shape), _field_constants(network[1], images, base.dtype)
    with torch.cuda.device_of(rows):
        field.perturb_kernel[(len(base), constants["GROUPS"])](
            rows, *(tensor.contiguous() for tensor in network), bound, base.contiguous(), *mixture.tensors(rows), out,
            images, len(base), sources, TERMS=mixture.terms, **constants,
        )  # fmt: skip
    return out


class ShellGrads(NamedTuple):
    """Gradients of a shell's rows, network (inner, weight, bias), bound and base."""

    rows: Tensor
    network: tuple[Tensor, Tensor, Tensor]
    bound: Tensor
    base: Tensor


def launch_perturb_backward(
    gradients: tuple[Tensor, ...],
    rows: Tensor,
    network: tuple[Tensor, ...],
    bound: Tensor,
    base: Tensor,
    mixture: Mixture,
    targets: tuple[Tensor, Mixture] | None = None,
) -> ShellGrads:
    """Gradients of `launch_perturb` from one or two that are added.

    `targets` = (gradient (B, T, d) of rows that were mixed from these, their mixture): added to the rows' gradient.
    """
    (images, sources, d), (heads, width, _) = rows.shape, network[1].shape
    constants = _field_constants(network[1], images, base.dtype)
    groups, vertices = constants["GROUPS"], len(base)
    rows_gradient = rows.new_empty(images, vertices, d)
    base_parts = base.new_empty(groups, *base.shape)
    parts = base.new_empty(groups * vertices, heads * (4 * width + 3) + 1)
    adjoint: tuple[Any, ...] = (rows,) * 4
    if targets is not None and targets[1].indices is not None and targets[1].weights is not None:
        reverse = reversed_edges(targets[1].indices, sources)
        adjoint = (targets[0], *reverse, targets[1].weights.contiguous())
    with torch.cuda.device_of(rows):
        field.perturb_gradients_kernel[(vertices, groups)](
            gradients[0].contiguous(), gradients[-1].contiguous(), rows, *(tensor.contiguous() for tensor in network),
            bound, base.contiguous(), *mixture.tensors(rows), *adjoint, rows_gradient, base_parts, parts,
            images, vertices, sources, 0 if targets is None else targets[0].shape[1], TERMS=mixture.terms,
            ADJOINT=0 if targets is None else targets[1].terms, TWO=len(gradients) > 1, **constants,
        )  # fmt: skip
    weight, bias, inner, limit = parts.sum(0).split([3 * heads * width, 3 * heads, heads * width, 1])
    network_gradients = (inner, weight.view(heads, width, 3), bias.view(heads, 3))
    return ShellGrads(rows_gradient, network_gradients, limit, base_parts.sum(0))
