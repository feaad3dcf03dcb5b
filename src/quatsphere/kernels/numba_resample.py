"""The loops of `interp`: every target is a weighted sum of a few sources, and its adjoint."""

from typing import Any

from quatsphere.kernels.numba_neighbours import reverse_graph
from quatsphere.kernels.numba_threads import compiled, share_out
from quatsphere.kernels.numba_vector import inner


@inner
def set_row(out, at, width, weight, table, row):  # type: ignore[no-untyped-def]
    """out[at:] = weight table[row:]."""
    for channel in range(width):
        out[at + channel] = weight * table[row + channel]


@inner
def add_row(out, at, width, weight, table, row):  # type: ignore[no-untyped-def]
    """out[at:] += weight table[row:]."""
    for channel in range(width):
        out[at + channel] += weight * table[row + channel]


@compiled
def gather(images, sizes, indices, weights, x, out):  # type: ignore[no-untyped-def]
    """out_i = Σ_m w_im x_n(i,m) of these images; sizes = (targets, sources, terms, width)."""
    targets, sources, terms, width = sizes
    for image in range(*images):
        for target in range(targets):
            at, edge = (image * targets + target) * width, target * terms
            set_row(out, at, width, weights[edge], x, (image * sources + indices[edge]) * width)
            for term in range(edge + 1, edge + terms):
                add_row(out, at, width, weights[term], x, (image * sources + indices[term]) * width)


@compiled
def scatter(images, sizes, graph, weights, gradient, out):  # type: ignore[no-untyped-def]
    """out_j = Σ of w_im g_i over the edges into j, in their order: the adjoint of `gather`."""
    targets, sources, _, width = sizes
    for image in range(*images):
        for source in range(sources):
            at = (image * sources + source) * width
            out[at : at + width] = 0.0
            for number in range(graph.offsets[source], graph.offsets[source + 1]):
                row = (image * targets + graph.listeners[number]) * width
                add_row(out, at, width, weights[graph.edges[number]], gradient, row)


def gather_all(sizes: Any, images: int, indices: Any, weights: Any, x: Any, out: Any) -> None:
    """All images."""
    share_out(gather, images, sizes, indices, weights, x, out)


def scatter_all(sizes: Any, images: int, indices: Any, weights: Any, gradient: Any, out: Any) -> None:
    """All images."""
    graph = reverse_graph(indices, sizes[2], sizes[1])
    share_out(scatter, images, sizes, graph, weights, gradient, out)
