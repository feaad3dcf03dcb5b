"""The loops of `interp`: every target is a weighted sum of a few sources, and its adjoint; sums stay in registers."""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_neighbours import reverse_graph
from quatsphere.kernels.numba_threads import compiled, share_out
from quatsphere.kernels.numba_vector import LANES, fma, fma_number, inner, load, splat, spread, store


class Sizes(NamedTuple):
    """Targets, sources, terms of each sum, numbers per row, and whether there is a second operand: the tensor that
    `gather` adds to, or the one that `scatter` multiplies with."""

    targets: int
    sources: int
    terms: int
    width: int
    second: bool


@inner
def gather_row(sizes, indices, weights, x, onto, out, image, target):  # type: ignore[no-untyped-def]
    """out_i = onto_i + Σ_m w_im x_n(i,m) for one target i."""
    at, edges = (image * sizes.targets + target) * sizes.width, range(target * sizes.terms, (target + 1) * sizes.terms)
    first = image * sizes.sources
    whole = sizes.width - sizes.width % LANES
    for channel in range(0, whole, LANES):
        total = load(onto, at + channel) if sizes.second else splat(x, 0.0)
        for edge in edges:
            total = fma(spread(weights, edge), load(x, (first + indices[edge]) * sizes.width + channel), total)
        store(out, at + channel, total)
    for channel in range(whole, sizes.width):
        out[at + channel] = onto[at + channel] if sizes.second else 0.0
        for edge in edges:
            number = x[(first + indices[edge]) * sizes.width + channel]
            out[at + channel] = fma_number(weights[edge], number, out[at + channel])


@compiled
def gather(images, sizes, indices, weights, x, onto, out):  # type: ignore[no-untyped-def]
    """out_i = onto_i + Σ_m w_im x_n(i,m) of these images."""
    for image in range(*images):
        for target in range(sizes.targets):
            gather_row(sizes, indices, weights, x, onto, out, image, target)


@inner
def scatter_row(sizes, graph, weights, scale, gradient, x, out, image, source):  # type: ignore[no-untyped-def]
    """out_j = scale s_j, s_j = Σ of w_im g_i over the edges into source j; ⟨x_j, s_j⟩ in eight lanes."""
    at, edges = (image * sizes.sources + source) * sizes.width, range(graph.offsets[source], graph.offsets[source + 1])
    first = image * sizes.targets
    whole = sizes.width - sizes.width % LANES
    product = splat(gradient, 0.0)
    for channel in range(0, whole, LANES):
        total = splat(gradient, 0.0)
        for number in edges:
            row = (first + graph.listeners[number]) * sizes.width
            total = fma(spread(weights, graph.edges[number]), load(gradient, row + channel), total)
        store(out, at + channel, splat(gradient, scale) * total)
        if sizes.second:
            product = fma(total, load(x, at + channel), product)
    for channel in range(whole, sizes.width):
        rest = 0.0 * weights[0]
        for number in edges:
            row = (first + graph.listeners[number]) * sizes.width
            rest += weights[graph.edges[number]] * gradient[row + channel]
        out[at + channel] = scale * rest
        if sizes.second:
            product = product + splat(gradient, rest * x[at + channel] / LANES)
    return product


@compiled
def scatter(images, sizes, graph, weights, scale, gradient, x, out, products):  # type: ignore[no-untyped-def]
    """The adjoint of `gather`, times scale[0], and per image Σ_j ⟨x_j, s_j⟩: sums in the order of the edges."""
    for image in range(*images):
        product = splat(gradient, 0.0)
        for source in range(sizes.sources):
            product = product + scatter_row(sizes, graph, weights, scale[0], gradient, x, out, image, source)
        store(products, image * LANES, product)


def gather_all(sizes: Sizes, images: int, indices: Any, weights: Any, x: Any, onto: Any, out: Any) -> None:
    """All images."""
    share_out(gather, images, out.size, sizes, indices, weights, x, onto, out)


def scatter_all(
    sizes: Sizes, images: int, indices: Any, weights: Any, scale: Any, gradient: Any, x: Any, out: Any, products: Any
) -> None:
    """All images; products (images, 8)."""
    graph = reverse_graph(indices, sizes.terms, sizes.sources)
    share_out(scatter, images, out.size, sizes, graph, weights, scale, gradient, x, out, products)
