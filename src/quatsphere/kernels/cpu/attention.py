"""Operators of the fused quaternion attention on CPUs."""

from typing import Any

import torch
from torch import Tensor

from quatsphere.kernels import torch_backend
from quatsphere.kernels.caches import GraphCache
from quatsphere.kernels.cpu import available as available
from quatsphere.kernels.cpu.arrays import check_neighbours, flat, flat_mask, lane_heads, sum_in_order
from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.resample import residual_grad
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, AttentionInputs
from quatsphere.torch_operators import backward_operator, operator, register_backward


def quaternion_attention(inputs: AttentionInputs) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) -> (B, T, H, Q, 4) in one pass over the graph."""
    return attend(
        inputs.target_field,
        inputs.source_field,
        inputs.features,
        inputs.neighbours,
        inputs.beta,
        inputs.keep,
        inputs.target_directions,
        inputs.source_directions,
        ROUTINGS.index(inputs.routing),
        TRANSPORTS.index(inputs.transport),
        inputs.keep_scale,
    )


@operator("attend", "cpu")
def attend(
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    keep: Tensor | None,
    target_directions: Tensor | None,
    source_directions: Tensor | None,
    routing: int,
    transport: int,
    keep_scale: float,
) -> Tensor:
    """`quaternion_attention` of the fields of `AttentionInputs`; routing and transport are indices into their lists."""
    from quatsphere.kernels.cpu.loops.attention import run_attention

    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    inputs, sizes = attention_arguments(tensors, routing, transport, keep_scale)
    out = features.new_empty(sizes.images, sizes.targets, *features.shape[2:])
    run_attention(inputs, sizes, flat(out))
    return out


@backward_operator(attend, ("gradient", "out"))
def attend_backward(gradient: Tensor, out: Tensor, *inputs: Any) -> list[Tensor]:
    """Gradients of (target_field, source_field, features, beta, target_directions, source_directions)."""
    return attention_gradients(gradient, out, inputs[:8], inputs[8:], None)[:6]


_reversed = GraphCache()


def attention_gradients(
    gradient: Tensor, out: Tensor, tensors: tuple[Any, ...], modes: tuple[Any, ...], residual: Any
) -> list[Tensor]:
    """The gradients of `attend_backward` and that of a residual's gate; the features' gradient includes that of the
    residual (`ResidualGrad` of the loops, or None). modes = (routing, transport, keep_scale)."""
    from quatsphere.kernels.cpu.loops.attention import chunk_count
    from quatsphere.kernels.cpu.loops.attention_backward import AttentionGrads, run_attention_backward
    from quatsphere.kernels.cpu.loops.neighbour_sums import reverse_graph

    target_field, source_field, features, neighbours, *_ = tensors
    inputs, sizes = attention_arguments(tensors, modes[0], modes[1], modes[2], True)
    direction_items = sizes.items if ROUTINGS[modes[0]] == "geometric" else 0
    into = (
        torch.empty_like(target_field, memory_format=torch.contiguous_format),
        torch.empty_like(source_field, memory_format=torch.contiguous_format),
        torch.empty_like(features, memory_format=torch.contiguous_format),
        features.new_empty(sizes.items, chunk_count(sizes.targets), LANES),
        features.new_empty(direction_items, sizes.targets, 3),
        features.new_empty(direction_items, sizes.sources, 3),
        features.new_zeros(
            0 if residual is None else sizes.images * sizes.blocks, chunk_count(sizes.sources), 2 * LANES
        ),
    )
    if residual is None:
        nothing = features.new_empty(0, 0, 0)
        residual = residual_grad(nothing, nothing, None, None, 1.0)
    k, sources = sizes.neighbours, sizes.sources
    graph = _reversed.get((neighbours,), sources, lambda: reverse_graph(inputs.neighbours, k, sources))
    outputs, gradients = (flat(out), flat(gradient)), AttentionGrads(*map(flat, into))
    run_attention_backward(inputs, sizes, outputs, residual, gradients, graph)
    beta_gradient = sum_in_order(_by_head(into[3], sizes), (0, 1))
    directions = [sum_in_order(part, 0) if direction_items else part.new_zeros(part.shape[1:]) for part in into[4:6]]
    return [*into[:3], beta_gradient, *directions, sum_in_order(into[6], (0, 1, 2))]


@attend.register_fake
def _(target_field: Tensor, source_field: Tensor, features: Tensor, *rest: Any) -> Tensor:
    return features.new_empty(features.shape[0], target_field.shape[1], *features.shape[2:])


@attend_backward.register_fake
def _(gradient: Tensor, out: Tensor, *inputs: Any) -> list[Tensor]:
    target_field, source_field, features, _, beta, *_ = inputs
    directions = (beta.new_empty(target_field.shape[1], 3), beta.new_empty(source_field.shape[1], 3))
    return [*(tensor.new_empty(tensor.shape) for tensor in (target_field, source_field, features, beta)), *directions]


register_backward(attend, attend_backward, torch_backend.attend, 8, (0, 1, 2, 4, 6, 7), save_output=True)


def attention_arguments(
    tensors: tuple[Any, ...], routing: int, transport: int, keep_scale: float, checked: bool = False
) -> tuple[Any, Any]:
    """(AttentionArrays, AttentionSizes) of the loops; `checked` if the neighbours are known to be in range."""
    from quatsphere.kernels.cpu.loops.attention import AttentionArrays, AttentionSizes

    _, _, features, neighbours, beta, keep, *_ = tensors
    B, S, H, Q, _ = features.shape
    T, k = neighbours.shape
    if not checked:
        check_neighbours(neighbours, S)
    empty = flat(features.new_empty(0))
    arrays = [empty if tensor is None else flat(tensor) for tensor in tensors]
    packed = _packed_images(B, H)
    arrays[4], arrays[5] = flat(beta[lane_heads(H, packed)]), flat_mask(keep, B * T * k * H)
    sizes = AttentionSizes(B, T, S, k, H, Q, routing, transport, keep is not None, keep_scale, packed)
    return AttentionArrays(*arrays), sizes


def _packed_images(images: int, heads: int) -> int:
    """Images whose heads fill a vector together."""
    return max(1, min(LANES // heads, images))


def _by_head(parts: Tensor, sizes: Any) -> Tensor:
    """(items, chunks, 8) -> (images, chunks, H)."""
    chunks = parts.shape[1]
    if sizes.packed > 1:
        images = parts[..., : sizes.packed * sizes.heads].unflatten(2, (sizes.packed, sizes.heads)).transpose(1, 2)
        return images.flatten(0, 1)[: sizes.images].contiguous()
    return (
        parts.view(sizes.images, sizes.blocks, chunks, LANES)
        .transpose(1, 2)
        .flatten(2)[..., : sizes.heads]
        .contiguous()
    )
