"""The fused quaternion kernel on CPUs (Numba): torch operators around the loops of `numba_attention`.

Numba itself is imported by the first call: importing this file costs nothing and works without it.
"""

import importlib.util
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import torch_backend as plain
from quatsphere.kernels.inputs import ROUTINGS, TRANSPORTS, Problem
from quatsphere.kernels.transforms import differentiated_again, plain_gradients

LANES = 8


def available() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


def quaternion_attention(problem: Problem) -> Tensor:
    """lower_i(Σ_j C_ij lift_j(x_j)) -> (B, T, H, Q, 4) in one pass over the graph; see `attend`."""
    return attend(
        problem.target_field,
        problem.source_field,
        problem.features,
        problem.neighbours,
        problem.beta,
        problem.keep,
        problem.target_directions,
        problem.source_directions,
        ROUTINGS.index(problem.routing),
        TRANSPORTS.index(problem.transport),
        problem.keep_scale,
    )


@torch.library.custom_op("quatsphere::attend", mutates_args=(), device_types="cpu")
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
    """The kernel of a `Problem`, routing and transport by their place in the lists of `problem`."""
    from quatsphere.kernels import numba_attention_parallel as loops

    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    inputs, sizes = arguments(tensors, routing, transport, keep_scale)
    out = features.new_empty(sizes.images, sizes.targets, *features.shape[2:])
    loops.attend(inputs, sizes, flat(out))
    return out


@torch.library.custom_op("quatsphere::attend_backward", mutates_args=(), device_types="cpu")
def attend_backward(
    gradient: Tensor,
    out: Tensor,
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of (target_field, source_field, features, beta, target_directions, source_directions)."""
    tensors = (target_field, source_field, features, neighbours, beta, keep, target_directions, source_directions)
    *found, _ = differentiate(gradient, out, tensors, (routing, transport, keep_scale), None)
    target_gradient, source_gradient, feature_gradient, beta_gradient, *directions = found
    return target_gradient, source_gradient, feature_gradient, beta_gradient, directions[0], directions[1]


def differentiate(
    gradient: Tensor, out: Tensor, tensors: tuple[Tensor | None, ...], rules: tuple[int, int, float], told: Any
) -> tuple[Tensor, ...]:
    """The six gradients of `attend_backward` and that of a residual's gate; what the residual tells back (`Told` of the
    compiled loops) is added to the features' gradient."""
    from quatsphere.kernels import numba_attention_parallel as loops
    from quatsphere.kernels.numba_attention_backward import Gradients

    target_field, source_field, features, *_ = tensors
    assert target_field is not None
    assert source_field is not None
    assert features is not None
    inputs, sizes = arguments(tensors, *rules)
    items, chunks = sizes.images * sizes.blocks, [-(-count // loops.CHUNK) for count in (sizes.targets, sizes.sources)]
    geometric = ROUTINGS[rules[0]] == "geometric"
    into = (
        torch.empty_like(target_field, memory_format=torch.contiguous_format),
        torch.empty_like(source_field, memory_format=torch.contiguous_format),
        torch.empty_like(features, memory_format=torch.contiguous_format),
        features.new_empty(sizes.images, sizes.blocks, chunks[0], LANES),
        features.new_empty(items if geometric else 0, sizes.targets, 3),
        features.new_empty(items if geometric else 0, sizes.sources, 3),
        features.new_empty(0 if told is None else items, chunks[1], 2 * LANES),
    )
    back = told or no_residual(features)
    loops.attend_backward(inputs, sizes, (flat(out), flat(gradient)), back, Gradients(*map(flat, into)))
    beta_gradient = sum_in_order(into[3], (0, 2)).reshape(-1)[: sizes.heads]
    directions = sum_in_order(into[4], 0), sum_in_order(into[5], 0)
    return *into[:3], beta_gradient.clone(), *directions, sum_in_order(into[6], (0, 1, 2))


def no_residual(like: Tensor) -> Any:
    """`Told` of a kernel that stands alone."""
    return told_back(like.new_empty(0, 0, 0), like.new_empty(0, 0, 0), None, None, 1.0)


def told_back(gradient: Tensor, x: Tensor, indices: Tensor | None, shares: Tensor | None, gate: float) -> Any:
    """`Told` of the compiled loops: what a residual from x (B, S, d) with this gradient (B, T, d) tells back."""
    from quatsphere.kernels.numba_neighbours import reverse_graph
    from quatsphere.kernels.numba_rows import Told

    if indices is None or shares is None:
        indices, shares = torch.empty(0, 1, dtype=torch.int64), x.new_empty(0)
    graph = reverse_graph(flat(indices), indices.shape[1], x.shape[1])
    return Told(flat(gradient), flat(x), graph, flat(shares.to(x.dtype)), gate, gradient.shape[1], gradient.shape[2])


@attend.register_fake
def _(target_field: Tensor, source_field: Tensor, features: Tensor, *rest: Any) -> Tensor:
    return features.new_empty(features.shape[0], target_field.shape[1], *features.shape[2:])


@attend_backward.register_fake
def _(
    gradient: Tensor,
    out: Tensor,
    target_field: Tensor,
    source_field: Tensor,
    features: Tensor,
    neighbours: Tensor,
    beta: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    targets, sources = target_field.shape[1], source_field.shape[1]
    fields = (target_field.new_empty(target_field.shape), source_field.new_empty(source_field.shape))
    directions = (beta.new_empty(targets, 3), beta.new_empty(sources, 3))
    return *fields, features.new_empty(features.shape), beta.new_empty(beta.shape), *directions


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs[:8])
    ctx.rules = inputs[8:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_again():
        return plain_gradients(plain.attend, (*ctx.saved_tensors[1:], *ctx.rules), gradient)
    found = attend_backward(gradient, *ctx.saved_tensors, *ctx.rules)
    order = (found[0], found[1], found[2], None, found[3], None, found[4], found[5])
    needed = zip(order, ctx.needs_input_grad, strict=False)
    return *(value if need else None for value, need in needed), None, None, None


attend.register_autograd(_backward, setup_context=_save)


def flat(tensor: Tensor) -> Any:
    """The tensor's numbers as a flat numpy array."""
    return tensor.detach().contiguous().numpy().reshape(-1)


def flat_mask(keep: Tensor | None, count: int) -> Any:
    """A dropout mask of so many numbers as a flat array of bytes, empty where nothing is dropped."""
    if keep is None:
        return flat(torch.empty(0, dtype=torch.uint8))
    if keep.dtype != torch.bool or keep.numel() != count:
        raise ConfigError(f"keep must be bool with {count:,} entries: got {keep.dtype} with {keep.numel():,}")
    return flat(keep.contiguous().view(torch.uint8))


def check_neighbours(neighbours: Tensor, sources: int) -> None:
    """Compiled loops read wherever an index points: refuse one that is no source."""
    if neighbours.numel() == 0:
        return
    low, high = torch.aminmax(neighbours)
    if int(low) < 0 or int(high) >= sources:
        raise IndexError(f"neighbours must lie in 0..{sources - 1}, the source vertices: got {int(low)}..{int(high)}")


def sum_in_order(parts: Tensor, axes: int | tuple[int, ...]) -> Tensor:
    """Sum in a fixed order and in float64: numpy adds in one thread, torch's order depends on their number."""
    return torch.from_numpy(numpy.asarray(parts.numpy().sum(axis=axes, dtype="float64"))).to(parts.dtype)


def arguments(tensors: tuple[Tensor | None, ...], routing: int, transport: int, keep_scale: float) -> tuple[Any, Any]:
    """(Inputs, Sizes) of the compiled loops."""
    from quatsphere.kernels.numba_attention import Inputs, Sizes

    target_field, _, features, neighbours, beta, keep, *_ = tensors
    assert target_field is not None
    assert features is not None
    assert neighbours is not None
    assert beta is not None
    B, S, H, Q, _ = features.shape
    T, k = neighbours.shape
    check_neighbours(neighbours, S)
    empty = features.new_empty(0)
    present = [flat(empty if tensor is None else tensor) for tensor in tensors]
    present[4], present[5] = flat(F.pad(beta, (0, -H % LANES))), flat_mask(keep, B * T * k * H)
    return Inputs(*present), Sizes(B, T, S, k, H, Q, routing, transport, keep is not None, keep_scale)
