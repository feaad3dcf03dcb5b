"""The operators of the largest cross-shell step (320 -> 384 vertices, k = 16, 16 heads of 4 quaternions), each alone.

Every contender is a forward and a backward pass with gradients of everything that has one, dropout off.
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
SELDOM = ["quaternion: reference"]
"""So slow that it runs in few rounds."""
WIDTH = 4 * CHANNELS
"""Numbers per head."""


def graph() -> Tensor:
    """Neighbours of the largest cross-shell step."""
    return nearest_neighbours(sphere.fibonacci_sphere(TARGETS, 0.4), sphere.fibonacci_sphere(SOURCES, 0.55), K)


def both_ways(compute: Callable[[], Tensor], leaves: list[Tensor]) -> Pass:
    """Forward and backward."""
    with torch.no_grad():
        upstream = torch.randn_like(compute())
    return lambda: torch.autograd.grad(compute(), leaves, upstream)


def leaf(*shape: int) -> Tensor:
    """Normal numbers that want a gradient."""
    return torch.randn(*shape, requires_grad=True)


def quaternion_pass(backend: str, batch: int) -> Pass:
    """The coupled kernel; `reference` is the per-edge form, vectorised."""
    target = quaternion.random_unit(batch, TARGETS, HEADS).requires_grad_()
    source = quaternion.random_unit(batch, SOURCES, HEADS).requires_grad_()
    features, beta, neighbours = leaf(batch, SOURCES, HEADS, CHANNELS, 4), leaf(HEADS), graph()
    return both_ways(
        lambda: quaternion_attention(target, source, features, neighbours, beta, backend=backend),
        [target, source, features, beta],
    )


def dense_pass(batch: int) -> Pass:
    """torch's scaled_dot_product_attention on as many numbers (head dimension 16), the graph as a dense mask."""
    mask = torch.zeros(TARGETS, SOURCES, dtype=torch.bool).scatter_(1, graph(), True)
    q, k, v = leaves = [leaf(batch, HEADS, vertices, WIDTH) for vertices in (TARGETS, SOURCES, SOURCES)]
    return both_ways(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), leaves)


def dot_pass(backend: str, batch: int) -> Pass:
    """The baseline's kernel on the same shapes."""
    neighbours = graph()
    q, k, v = leaves = [leaf(batch, vertices, HEADS, WIDTH) for vertices in (TARGETS, SOURCES, SOURCES)]
    return both_ways(lambda: dot_product_attention(q, k, v, neighbours, backend=backend), leaves)


def field_pass(backend: str, batch: int) -> Pass:
    """GELU, last layer, tanh, exponential, product and normalisation of (B, V, H) quaternions."""
    dim = HEADS * WIDTH
    hidden, network = leaf(batch, TARGETS, dim), Network(leaf(dim), leaf(HEADS, WIDTH, 3), leaf(HEADS, 3))
    bounds, base = torch.tensor([0.4], requires_grad=True), quaternion.random_unit(TARGETS, HEADS).requires_grad_()
    leaves = [hidden, *network, bounds, base]
    return both_ways(lambda: perturb(hidden, network, bounds, base, backend=backend)[0], leaves)


def hamilton_pass(backend: str, batch: int) -> Pass:
    """Up projection, GELU, down projection per head."""
    wide, x = 4 * CHANNELS, leaf(batch, TARGETS, HEADS, WIDTH)
    up, down = leaf(HEADS, wide, CHANNELS, 4), leaf(HEADS, CHANNELS, wide, 4)
    return both_ways(lambda: feed_forward(x, up, down, backend=backend), [x, up, down])


def head_major_pass(batch: int) -> Pass:
    """The same block as batched products without permuted copies."""
    x, up, down = leaf(HEADS, batch * TARGETS, WIDTH), leaf(HEADS, WIDTH, 4 * WIDTH), leaf(HEADS, 4 * WIDTH, WIDTH)
    return both_ways(lambda: F.gelu(x @ up) @ down, [x, up, down])


def contenders() -> dict[str, Callable[[int], Pass]]:
    """`operator: contender` -> how to make its pass for a batch."""
    here = backends_on("cpu")
    fused = [name for name in here if name != "reference"]
    return {
        **{f"quaternion: {name}": partial(quaternion_pass, name) for name in here},
        "quaternion: sdpa dense": dense_pass,
        **{f"dot product: {name}": partial(dot_pass, name) for name in fused},
        **{f"field: {name}": partial(field_pass, name) for name in fused},
        **{f"Hamilton: {name}": partial(hamilton_pass, name) for name in fused},
        "Hamilton: bmm head-major": head_major_pass,
    }
