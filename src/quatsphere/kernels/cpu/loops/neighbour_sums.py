"""Sums over graph edges: on lane tables (attention) and on whole rows (residual, `interp`), accumulated in registers.

On lane tables (V, Q, 4, 8), one vertex at a time, as in `neighbour_ops`:

    edge_dots           ⟨a_i, b_n(i,s)⟩                    per edge of target i
    gather_sum_tiles    Σ_s w_is b_n(i,s)                  at target i
    scatter_sum_tiles   Σ_(i,s): n(i,s)=j w_is a_i         at source j, in the order of the edges
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.jit import compiled, inlined
from quatsphere.kernels.cpu.loops.long_vectors import GROUP, folded_product, load_like, repeat, zero_group, zero_tile
from quatsphere.kernels.cpu.loops.quaternions import TILE_SIZE
from quatsphere.kernels.cpu.loops.simd import (
    WIDE_LANES,
    broadcast,
    fma,
    fma_scalar,
    load,
    load_scalar,
    load_wide,
    prefetch,
    prefetch_range,
    splat,
    store,
    store_scalar,
)
from quatsphere.kernels.cpu.loops.threads import parallel_for


class ReversedGraph(NamedTuple):
    """The edges into source j are edges[offsets[j] : offsets[j + 1]]; `targets` holds their target vertices."""

    offsets: Any
    edges: Any
    targets: Any


@compiled
def fill_reversed_graph(neighbours, k, position, graph):
    """Counting sort of the edges by source, stable; `position` and the offsets are zero on entry."""
    for source in neighbours:
        graph.offsets[source + 1] += 1
    for source in range(len(position)):
        graph.offsets[source + 1] += graph.offsets[source]
        position[source] = graph.offsets[source]
    for edge in range(len(neighbours)):
        source = neighbours[edge]
        graph.edges[position[source]] = edge
        graph.targets[position[source]] = edge // k
        position[source] += 1


def reverse_graph(neighbours: Any, k: int, sources: int) -> ReversedGraph:
    """Reversed graph of flat neighbours (T k,)."""
    count = len(neighbours)
    graph = ReversedGraph(np.zeros(sources + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64))
    if count:
        fill_reversed_graph(neighbours, k, np.zeros(sources, np.int64), graph)
    return graph


@inlined
def add_dots(neighbours, k, vertex, a, sources, row, first, dots):
    """Add the product of `a`, channels of one target, with those at `first` of its neighbours to dots (k, 8)."""
    for slot in range(k):
        b = load_like(a, sources, load_scalar(neighbours, vertex * k + slot) * row + first)
        part = folded_product(a, b)
        if first > 0:
            part = part + load(dots, slot * LANES)
        store(dots, slot * LANES, part)


@inlined
def edge_dots(neighbours, k, channels, vertex, targets, sources, dots):
    """⟨a_i, b_n(i,s)⟩ over all channels of one target -> dots (k, 8)."""
    row, grouped = channels * TILE_SIZE, (channels - channels % GROUP) * TILE_SIZE
    for first in range(0, grouped, GROUP * TILE_SIZE):
        a = load_like(zero_group(targets), targets, vertex * row + first)
        add_dots(neighbours, k, vertex, a, sources, row, first, dots)
    for first in range(grouped, row, TILE_SIZE):
        a = load_like(zero_tile(targets), targets, vertex * row + first)
        add_dots(neighbours, k, vertex, a, sources, row, first, dots)


@inlined
def gather_sum(neighbours, k, vertex, total, sources, row, weights, at):
    """total + Σ_s w_s b_n(i,s) of some channels, the first of which is at `row` of sources."""
    first, width = row
    for slot in range(k):
        source = load_scalar(neighbours, vertex * k + slot) * width + first
        total = fma(repeat(total, load(weights, at + slot * LANES)), load_like(total, sources, source), total)
    return total


@inlined
def gather_sum_tiles(neighbours, k, channels, vertex, sources, weights, at, out):
    """out (Q, 4, 8) = Σ_s w_s b_n(i,s) of one target, whose weights (k, 8) start at `at`."""
    row, grouped = channels * TILE_SIZE, (channels - channels % GROUP) * TILE_SIZE
    for first in range(0, grouped, GROUP * TILE_SIZE):
        zero = zero_group(sources)
        store(out, first, gather_sum(neighbours, k, vertex, zero, sources, (first, row), weights, at))
    for first in range(grouped, row, TILE_SIZE):
        zero = zero_tile(sources)
        store(out, first, gather_sum(neighbours, k, vertex, zero, sources, (first, row), weights, at))


@inlined
def scatter_sum(graph, vertex, total, targets, row, weights):
    """total + Σ w_is a_i over the edges into one source, of some channels as in `gather_sum`."""
    first, width = row
    for index in range(graph.offsets[vertex], graph.offsets[vertex + 1]):
        weight = repeat(total, load(weights, load_scalar(graph.edges, index) * LANES))
        total = fma(weight, load_like(total, targets, load_scalar(graph.targets, index) * width + first), total)
    return total


@inlined
def scatter_sum_tiles(graph, channels, vertex, targets, weights, out):
    """out (Q, 4, 8) = Σ w_is a_i over the edges into one source; weights (T, k, 8)."""
    row, grouped = channels * TILE_SIZE, (channels - channels % GROUP) * TILE_SIZE
    for first in range(0, grouped, GROUP * TILE_SIZE):
        total = scatter_sum(graph, vertex, zero_group(targets), targets, (first, row), weights)
        store(out, first, total)
    for first in range(grouped, row, TILE_SIZE):
        store(out, first, scatter_sum(graph, vertex, zero_tile(targets), targets, (first, row), weights))


class ResidualInput(NamedTuple):
    """Rows x (B, sources, width) that a step's update is added to: target i adds Σ_m weights_im x_indices(i,m), its
    own row if terms = 0, nothing if sources = 0."""

    x: Any
    indices: Any
    weights: Any
    targets: int
    sources: int
    terms: int


class ResidualGrad(NamedTuple):
    """Inputs for the gradient of a step's residual: output gradient (B, targets, width), tokens x (B, S, width), and
    the reversed graph, weights and gate of the interpolation. If not `mixed`, each source takes its own row of the
    gradient; targets = 0 means no residual."""

    gradient: Any
    x: Any
    graph: Any
    weights: Any
    gate: float
    mixed: bool
    targets: int
    width: int


@inlined
def axpy_row(count, weight, x, x_at, y, y_at, out, at):
    """out[at:] = weight x[x_at:] + y[y_at:], `count` elements."""
    full = count - count % WIDE_LANES
    for channel in range(0, full, WIDE_LANES):
        row = load_wide(x, x_at + channel)
        store(out, at + channel, fma(splat(row, weight), row, load_wide(y, y_at + channel)))
    for channel in range(full, count):
        number = fma_scalar(weight, load_scalar(x, x_at + channel), load_scalar(y, y_at + channel))
        store_scalar(out, at + channel, number)


@inlined
def add_residual(residual, first, count, width, shift, channels, table, row):
    """Add the residual of tokens first.. to table (count, row): elements shift..shift + channels of their rows."""
    image, vertex = first // residual.targets, first % residual.targets
    for token in range(count):
        rows, at = image * residual.sources, token * row
        if residual.terms == 0:
            axpy_row(channels, 1.0, residual.x, (rows + vertex) * width + shift, table, at, table, at)
        for term in range(vertex * residual.terms, (vertex + 1) * residual.terms):
            source = (rows + residual.indices[term]) * width + shift
            axpy_row(channels, residual.weights[term], residual.x, source, table, at, table, at)
        vertex += 1
        if vertex == residual.targets:
            image, vertex = image + 1, 0


@inlined
def prefetch_residual(residual, first, count, width, shift):
    """Prefetch what `add_residual` reads first of every row."""
    image, vertex = first // residual.targets, first % residual.targets
    for _ in range(count):
        rows = image * residual.sources
        if residual.terms == 0:
            prefetch(residual.x, (rows + vertex) * width + shift)
        for term in range(vertex * residual.terms, (vertex + 1) * residual.terms):
            prefetch(residual.x, (rows + residual.indices[term]) * width + shift)
        vertex += 1
        if vertex == residual.targets:
            image, vertex = image + 1, 0


@inlined
def add_mixed_residual_grad(residual, first, vertex, shift, count, out, at):
    """out[at:] += gate s with s = Σ weight * gradient over the edges into a source; return ⟨s, x⟩ per lane."""
    edges, full = range(residual.graph.offsets[vertex], residual.graph.offsets[vertex + 1]), count - count % WIDE_LANES
    zero = splat(load_wide(out, at - at), 0.0)
    product = zero
    for channel in range(0, full, WIDE_LANES):
        total = zero
        for index in edges:
            row = (first + residual.graph.targets[index]) * residual.width + shift
            weight = splat(zero, residual.weights[residual.graph.edges[index]])
            total = fma(weight, load_wide(residual.gradient, row + channel), total)
        store(out, at + channel, fma(splat(zero, residual.gate), total, load_wide(out, at + channel)))
        product = fma(total, load_wide(residual.x, at + channel), product)
    for channel in range(full, count):
        rest = 0.0 * out[at + channel]
        for index in edges:
            row = (first + residual.graph.targets[index]) * residual.width + shift
            rest += residual.weights[residual.graph.edges[index]] * residual.gradient[row + channel]
        out[at + channel] += residual.gate * rest
        product = product + splat(zero, rest * residual.x[at + channel] / WIDE_LANES)
    return product


@inlined
def prefetch_residual_grad(residual, image, vertex, sources, shift, count):
    """Prefetch the residual's gradient rows of a later source."""
    if vertex < sources:
        row = image * residual.targets
        if not residual.mixed:
            prefetch_range(residual.gradient, (row + vertex) * residual.width + shift, count)
        else:
            prefetch_range(residual.x, (image * sources + vertex) * residual.width + shift, count)
            for index in range(residual.graph.offsets[vertex], residual.graph.offsets[vertex + 1]):
                target = row + residual.graph.targets[index]
                prefetch_range(residual.gradient, target * residual.width + shift, count)


@inlined
def add_residual_grad(residual, image, vertex, shift, count, out, at):
    """Add the residual's gradient, elements shift..shift + count of a source's row, to out[at:]; return the
    contribution to the gate's gradient per lane."""
    first = image * residual.targets
    if residual.mixed:
        return add_mixed_residual_grad(residual, first, vertex, shift, count, out, at)
    axpy_row(count, 1.0, residual.gradient, (first + vertex) * residual.width + shift, out, at, out, at)
    return splat(load_wide(out, at - at), 0.0)


class ResampleSizes(NamedTuple):
    """Targets, sources, terms per target, elements per row, and whether there is a second operand: the base that
    `gather_sum_images` adds to, or the x that `scatter_sum_images` multiplies with."""

    targets: int
    sources: int
    terms: int
    width: int
    second: bool


@inlined
def gather_sum_row(sizes, indices, weights, x, base, out, image, target):
    """out_i = base_i + Σ_m w_im x_n(i,m) for one target i."""
    at, edges = (image * sizes.targets + target) * sizes.width, range(target * sizes.terms, (target + 1) * sizes.terms)
    first = image * sizes.sources
    full = sizes.width - sizes.width % LANES
    for channel in range(0, full, LANES):
        total = load(base, at + channel) if sizes.second else splat(x, 0.0)
        for edge in edges:
            total = fma(broadcast(weights, edge), load(x, (first + indices[edge]) * sizes.width + channel), total)
        store(out, at + channel, total)
    for channel in range(full, sizes.width):
        out[at + channel] = base[at + channel] if sizes.second else 0.0
        for edge in edges:
            number = x[(first + indices[edge]) * sizes.width + channel]
            out[at + channel] = fma_scalar(weights[edge], number, out[at + channel])


@compiled
def gather_sum_images(images, sizes, indices, weights, x, base, out):
    """out_i = base_i + Σ_m w_im x_n(i,m) for a range of images."""
    for image in range(*images):
        for target in range(sizes.targets):
            gather_sum_row(sizes, indices, weights, x, base, out, image, target)


@inlined
def scatter_sum_row(sizes, graph, weights, scale, gradient, x, out, image, source):
    """out_j = scale s_j, s_j = Σ of w_im g_i over the edges into source j; return ⟨x_j, s_j⟩ per lane."""
    at, edges = (image * sizes.sources + source) * sizes.width, range(graph.offsets[source], graph.offsets[source + 1])
    first = image * sizes.targets
    full = sizes.width - sizes.width % LANES
    product = splat(gradient, 0.0)
    for channel in range(0, full, LANES):
        total = splat(gradient, 0.0)
        for index in edges:
            row = (first + graph.targets[index]) * sizes.width
            total = fma(broadcast(weights, graph.edges[index]), load(gradient, row + channel), total)
        store(out, at + channel, splat(gradient, scale) * total)
        if sizes.second:
            product = fma(total, load(x, at + channel), product)
    for channel in range(full, sizes.width):
        rest = 0.0 * weights[0]
        for index in edges:
            row = (first + graph.targets[index]) * sizes.width
            rest += weights[graph.edges[index]] * gradient[row + channel]
        out[at + channel] = scale * rest
        if sizes.second:
            product = product + splat(gradient, rest * x[at + channel] / LANES)
    return product


@compiled
def scatter_sum_images(images, sizes, graph, weights, scale, gradient, x, out, products):
    """Adjoint of `gather_sum_images` times scale[0], and Σ_j ⟨x_j, s_j⟩ per image, summed in the order of the edges."""
    for image in range(*images):
        product = splat(gradient, 0.0)
        for source in range(sizes.sources):
            product = product + scatter_sum_row(sizes, graph, weights, scale[0], gradient, x, out, image, source)
        store(products, image * LANES, product)


def run_resample(sizes: ResampleSizes, images: int, *arrays: Any) -> None:
    """`gather_sum_images` for all images; arrays = (indices, weights, x, base, out)."""
    parallel_for(gather_sum_images, images, arrays[-1].size, sizes, *arrays)


def run_resample_adjoint(sizes: ResampleSizes, images: int, indices: Any, *arrays: Any) -> None:
    """`scatter_sum_images` for all images; arrays = (weights, scale, gradient, x, out, products (images, 8))."""
    graph = reverse_graph(indices, sizes.terms, sizes.sources)
    parallel_for(scatter_sum_images, images, arrays[-2].size, sizes, graph, *arrays)
