"""Launches of the Hamilton block and of the field: blocks, warps, and the parts of the parameters' gradients."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from quatsphere.kernels.gpu.kernels import field, hamilton
from quatsphere.kernels.gpu.kernels import sums as part_sums
from quatsphere.kernels.gpu.launch import ACCUMULATE, mask_arguments
from quatsphere.kernels.neighbour_ops import reversed_edges

TOKENS, BACKWARD_TOKENS = 64, 32
"""Tokens of one head per program of the Hamilton block; with these no kernel spills registers."""
PARTS = 48
"""Programs per head that share the tokens in the Hamilton block's gradient."""
IMAGE_GROUPS, VERTICES = 16, 4
"""Programs per vertex that share the images in the field's kernels; vertices of a program in its gradients."""


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


class HamiltonGrads(NamedTuple):
    """Gradient of the input, lifted by the field, its inner products with the input, and parts of up and down."""

    lifted: Tensor
    through: Tensor
    parts: Tensor


def launch_hamilton_backward(
    gradient: Tensor, x: Tensor, field: Tensor, weights: tuple[Tensor, Tensor], dropout: Dropout, transport: int
) -> HamiltonGrads:
    """Gradients from that of the result (B, T, d); `field` (B, T, H, 4) had lowered x."""
    (B, T, _), (up, down) = x.shape, (weight.contiguous() for weight in weights)
    (heads, wide, channels, _), tiles = up.shape, triton.cdiv(B * T, BACKWARD_TOKENS)
    per_program = triton.cdiv(tiles, PARTS)
    count = triton.cdiv(tiles, per_program)
    parts = x.new_empty(2, count, heads, 16 * wide * channels)
    lifted, through = torch.empty_like(x), x.new_empty(B, T, heads)
    mask, keep = mask_arguments(*dropout)
    with torch.cuda.device_of(x):
        hamilton.hamilton_gradients_kernel[(count, heads)](
            gradient.contiguous(), x, field, up, down, x if dropout.keep is None else dropout.keep.contiguous(),
            lifted, through, parts[0], parts[1], B * T, T, per_program, *mask,
            TRANSPORT=transport, **keep, **_hamilton_constants(up, BACKWARD_TOKENS, x.dtype),
        )  # fmt: skip
    return HamiltonGrads(lifted, through, parts)


def _field_constants(weight: Tensor, images: int, dtype: torch.dtype) -> dict[str, Any]:
    heads, width, _ = weight.shape
    blocks = {"HEADS": triton.next_power_of_2(heads), "WIDTH": triton.next_power_of_2(width)}
    warps = min(8, max(1, blocks["HEADS"] * blocks["WIDTH"] // 256))
    sizes = {"H": heads, "I": width, "GROUPS": min(images, IMAGE_GROUPS)}
    return {**sizes, **blocks, "ACCUMULATE": ACCUMULATE[dtype], "num_warps": warps}


class LiftedFeatures(NamedTuple):
    """Features (B, V, d) of a shell and the memory (B, V, d) for them as its field lifts them, by a transport."""

    features: Tensor
    lifted: Tensor
    transport: int


def launch_perturb(
    rows: Tensor,
    network: tuple[Tensor, ...],
    bound: Tensor,
    base: Tensor,
    mixture: Mixture,
    features: LiftedFeatures | None = None,
) -> Tensor:
    """Field (B, V, H, 4) of a shell with base (V, H, 4) from rows (B, S, d) of the network's hidden numbers."""
    (images, sources, d), heads = rows.shape, base.shape[1]
    out, constants = base.new_empty(images, *base.shape), _field_constants(network[1], images, base.dtype)
    given, lifted, transport = features or LiftedFeatures(rows, out, 0)
    channels = d // (4 * heads)
    with torch.cuda.device_of(rows):
        field.perturb_kernel[(len(base), constants["GROUPS"])](
            rows, *(tensor.contiguous() for tensor in network), bound, base.contiguous(), *mixture.tensors(rows),
            given, out, lifted, images, len(base), sources, TERMS=mixture.terms, LIFT=features is not None,
            TRANSPORT=transport, Q=channels, CHANNELS=triton.next_power_of_2(channels), **constants,
        )  # fmt: skip
    return out


class ShellParts(NamedTuple):
    """Parts of the gradients of a step's parameters, in rows by program, and of a shell's base, (groups, V, H, 4)."""

    rows: Tensor
    base: Tensor


class StepParts:
    """Parts of the gradients of all parameters that belong to a step's field, with one row per program.

    A row holds weight, inner, bias, beta, the bounds of both shells and gate, padded to a multiple of 16 numbers: rows
    are aligned. Programs of the source shell come first.
    """

    def __init__(self, weight: Tensor, images: int, bases: tuple[Tensor, ...]) -> None:
        heads, width, _ = weight.shape
        self.weight, self.counts = weight, [len(base) for base in bases]
        self.groups = min(images, IMAGE_GROUPS)
        self.programs = [self.groups * triton.cdiv(count, VERTICES) for count in self.counts]
        self.columns = 4 * heads * width + 4 * heads + 3
        self.rows = bases[0].new_empty(sum(self.programs), 16 * triton.cdiv(self.columns, 16))
        self.base = bases[0].new_empty(self.groups, sum(self.counts), heads, 4)

    def of_shell(self, shell: int) -> ShellParts:
        """The parts of the source shell (0) or of the target shell (1)."""
        rows, base = self.rows.split(self.programs), self.base.split(self.counts, dim=1)
        return ShellParts(rows[shell], base[shell])


class EdgeParts(NamedTuple):
    """Parts of the gradients of beta (B, V, H) and of the gate (B, V) by vertices of a shell, where there are any."""

    beta: Tensor | None = None
    gate: Tensor | None = None


def launch_perturb_backward(
    gradients: tuple[Tensor, ...],
    rows: Tensor,
    network: tuple[Tensor, ...],
    bound: Tensor,
    base: Tensor,
    mixture: Mixture,
    parts: StepParts,
    shell: int,
    edge_parts: EdgeParts,
    targets: tuple[Tensor, Mixture] | None = None,
) -> Tensor:
    """Gradient of the rows of `launch_perturb` from one or two that are added; all others go to `parts`.

    `targets` = (gradient (B, T, d) of rows that were mixed from these, their mixture): added to the rows' gradient.
    """
    images, sources, d = rows.shape
    constants, own = _field_constants(network[1], images, base.dtype), parts.of_shell(shell)
    rows_gradient = rows.new_empty(images, len(base), d)
    adjoint: tuple[Any, ...] = (rows,) * 4
    if targets is not None and targets[1].indices is not None and targets[1].weights is not None:
        reverse = reversed_edges(targets[1].indices, sources)
        adjoint = (targets[0], *reverse, targets[1].weights.contiguous())
    with torch.cuda.device_of(rows):
        field.perturb_gradients_kernel[(triton.cdiv(len(base), VERTICES), parts.groups)](
            gradients[0].contiguous(), gradients[-1].contiguous(), rows, *(tensor.contiguous() for tensor in network),
            bound, base.contiguous(), *mixture.tensors(rows), *adjoint,
            *(rows if part is None else part for part in edge_parts), rows_gradient, own.base, own.rows,
            images, len(base), sources, 0 if targets is None else targets[0].shape[1], parts.base.shape[1],
            parts.rows.shape[1],
            TERMS=mixture.terms, ADJOINT=0 if targets is None else targets[1].terms, TWO=len(gradients) > 1,
            BETA=edge_parts.beta is not None, GATE=edge_parts.gate is not None, SHELL=shell, N=VERTICES, **constants,
        )  # fmt: skip
    return rows_gradient


def launch_step_perturb_backward(
    gradients: tuple[Tensor, Tensor],
    rows: Tensor,
    network: tuple[Tensor, ...],
    bounds: Tensor,
    bases: tuple[Tensor, ...],
    mixture: Mixture,
    parts: StepParts,
    edge_parts: tuple[Tensor | None, Tensor | None],
) -> Tensor:
    """Gradient (B, S, d) of the rows from those of the targets' and the sources' field; all others go to `parts`.

    `edge_parts` are those of beta, by targets, and of the gate, by sources. Within a shell both fields are one.
    """
    (outer, own), (beta, gate), nothing = gradients, edge_parts, Mixture(None, None)
    if len(bases) == 1:
        given = (rows, network, bounds[:1], bases[0], nothing, parts, 0, EdgeParts(beta, None))
        return launch_perturb_backward((own, outer), *given)
    given = (rows, network, bounds[1:], bases[1], mixture, parts, 1, EdgeParts(beta, None))
    targets = (launch_perturb_backward((outer,), *given), mixture)
    given = (rows, network, bounds[:1], bases[0], nothing, parts, 0, EdgeParts(None, gate))
    return launch_perturb_backward((own,), *given, targets)


class ParameterGrads(NamedTuple):
    """Gradients of the field's network, both bounds, the bases of the shells, beta, gate and the Hamilton block."""

    network: tuple[Tensor, Tensor, Tensor]
    bounds: Tensor
    bases: tuple[Tensor, ...]
    beta: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


def _aligned(section: Tensor) -> Tensor:
    """A section of a row, copied if it is not aligned to 16 bytes: torch.compile takes results as aligned."""
    return section if section.numel() == 1 or section.storage_offset() % 4 == 0 else section.clone()


def launch_sums(parts: StepParts, hamilton_parts: Tensor, weights: tuple[Tensor, Tensor]) -> ParameterGrads:
    """Add up the parts of all gradients."""
    (heads, width, _), (count, stride), columns = parts.weight.shape, parts.rows.shape, parts.columns
    sums, base = parts.rows.new_empty(columns), parts.base.new_empty(parts.base.shape[1:])
    up, down = (torch.empty_like(weight, memory_format=torch.contiguous_format) for weight in weights)
    (_, wide, channels, _), blocks, base_blocks = up.shape, triton.cdiv(columns, 8), triton.cdiv(base.numel(), 64)
    hamilton_blocks = 2 * heads * triton.cdiv(wide * channels, 32)
    with torch.cuda.device_of(sums):
        part_sums.sum_parts_kernel[(blocks + base_blocks + hamilton_blocks,)](
            parts.rows, sums, parts.base, base, hamilton_parts[0], up, hamilton_parts[1], down,
            count, columns, stride, parts.groups, base.numel(), hamilton_parts.shape[1], blocks, base_blocks,
            H=heads, C=4 * channels, M=4 * wide, N=32, ACCUMULATE=ACCUMULATE[sums.dtype], num_warps=4,
        )  # fmt: skip
    sizes = [3 * heads * width, heads * width, 3 * heads, heads, 2, 1]
    weight, inner, bias, beta, bounds, gate = map(_aligned, sums.split(sizes))
    network = (inner, weight.view(heads, width, 3), bias.view(heads, 3))
    return ParameterGrads(network, bounds, base.split(parts.counts), beta, gate, up, down)
