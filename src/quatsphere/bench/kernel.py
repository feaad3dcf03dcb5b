"""Operators of the largest cross-shell step (320 -> 384 vertices, k = 16, 16 heads of 4 quaternions), one at a time.

Every candidate is a forward and a backward pass with gradients of all inputs, without dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.bench.timing import Pass
from quatsphere.geometry import quaternion, sphere
from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.kernels import Network, backends_on, dot_product_attention, feed_forward, perturb, quaternion_attention

SOURCES, TARGETS, K, HEADS, CHANNELS = 320, 384, 16, 16, 4
SLOW_CANDIDATES = ["quaternion: reference"]
"""Candidates that run in few rounds only."""
WIDTH = 4 * CHANNELS
"""Features per head."""


def graph() -> Tensor:
    """Neighbours of the largest cross-shell step."""
    return nearest_neighbours(sphere.fibonacci_sphere(TARGETS, 0.4), sphere.fibonacci_sphere(SOURCES, 0.55), K)


def forward_backward(compute: Callable[[], Tensor], leaves: list[Tensor]) -> Pass:
    """Pass that computes the output and its gradients."""
    with torch.no_grad():
        upstream = torch.randn_like(compute())
    return lambda: torch.autograd.grad(compute(), leaves, upstream)


def random_leaf(*shape: int) -> Tensor:
    """Normal random tensor that requires a gradient."""
    return torch.randn(*shape, requires_grad=True)


def quaternion_pass(backend: str, batch: int) -> Pass:
    """Quaternion attention; `reference` is the per-edge form, vectorised."""
    target = quaternion.random_unit(batch, TARGETS, HEADS).requires_grad_()
    source = quaternion.random_unit(batch, SOURCES, HEADS).requires_grad_()
    features, beta, neighbours = random_leaf(batch, SOURCES, HEADS, CHANNELS, 4), random_leaf(HEADS), graph()
    return forward_backward(
        lambda: quaternion_attention(target, source, features, neighbours, beta, backend=backend),
        [target, source, features, beta],
    )


def dense_pass(batch: int) -> Pass:
    """torch's scaled_dot_product_attention of the same size (head dimension 16), with the graph as a dense mask."""
    mask = torch.zeros(TARGETS, SOURCES, dtype=torch.bool).scatter_(1, graph(), True)
    q, k, v = leaves = [random_leaf(batch, HEADS, vertices, WIDTH) for vertices in (TARGETS, SOURCES, SOURCES)]
    return forward_backward(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), leaves)


def dot_pass(backend: str, batch: int) -> Pass:
    """Attention of the baseline on the same shapes."""
    neighbours = graph()
    q, k, v = leaves = [random_leaf(batch, vertices, HEADS, WIDTH) for vertices in (TARGETS, SOURCES, SOURCES)]
    return forward_backward(lambda: dot_product_attention(q, k, v, neighbours, backend=backend), leaves)


def field_pass(backend: str, batch: int) -> Pass:
    """GELU, last layer, tanh, exponential, product and normalisation of (B, V, H) quaternions."""
    dim = HEADS * WIDTH
    hidden, network = (
        random_leaf(batch, TARGETS, dim),
        Network(random_leaf(dim), random_leaf(HEADS, WIDTH, 3), random_leaf(HEADS, 3)),
    )
    bounds, base = torch.tensor([0.4], requires_grad=True), quaternion.random_unit(TARGETS, HEADS).requires_grad_()
    leaves = [hidden, *network, bounds, base]
    return forward_backward(lambda: perturb(hidden, network, bounds, base, backend=backend)[0], leaves)


def hamilton_pass(backend: str, batch: int) -> Pass:
    """Up projection, GELU, down projection per head."""
    wide, x = 4 * CHANNELS, random_leaf(batch, TARGETS, HEADS, WIDTH)
    up, down = random_leaf(HEADS, wide, CHANNELS, 4), random_leaf(HEADS, CHANNELS, wide, 4)
    return forward_backward(lambda: feed_forward(x, up, down, backend=backend), [x, up, down])


def head_major_pass(batch: int) -> Pass:
    """The same block as batched matrix products without permuted copies."""
    x, up, down = (
        random_leaf(HEADS, batch * TARGETS, WIDTH),
        random_leaf(HEADS, WIDTH, 4 * WIDTH),
        random_leaf(HEADS, 4 * WIDTH, WIDTH),
    )
    return forward_backward(lambda: F.gelu(x @ up) @ down, [x, up, down])


def candidates() -> dict[str, Callable[[int], Pass]]:
    """`operator: candidate` -> function that creates its pass for a batch size."""
    backends = backends_on("cpu")
    fused = [name for name in backends if name != "reference"]
    return {
        **{f"quaternion: {name}": partial(quaternion_pass, name) for name in backends},
        "quaternion: sdpa dense": dense_pass,
        **{f"dot product: {name}": partial(dot_pass, name) for name in fused},
        **{f"field: {name}": partial(field_pass, name) for name in fused},
        **{f"Hamilton: {name}": partial(hamilton_pass, name) for name in fused},
        "Hamilton: bmm head-major": head_major_pass,
    }
