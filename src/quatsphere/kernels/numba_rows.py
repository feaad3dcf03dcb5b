"""Whole rows of numbers: copied, added up with shares, and the residual of a step, which is such a sum."""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_vector import WIDE, fetch, fma, fma_number, inner, load_wide, prefetch, splat, store


class Onto(NamedTuple):
    """What a step's update is added to: rows x (B, sources, width), and which of them with which shares (targets,
    terms) each target takes; without terms its own row, without sources nothing."""

    x: Any
    indices: Any
    shares: Any
    targets: int
    sources: int
    terms: int


class Told(NamedTuple):
    """What a step's residual tells its sources back: the gradient of its result (B, targets, width), the tokens x (B,
    S, width), of a mixture the reversed graph, its shares and the gate; without edges each source has its own row,
    without targets nothing."""

    gradient: Any
    x: Any
    graph: Any
    shares: Any
    gate: float
    targets: int
    width: int


@inner
def add_row(width, share, row, at, onto, base, out, to):  # type: ignore[no-untyped-def]
    """out[to:] = onto[base:] + share row[at:], `width` numbers."""
    whole = width - width % WIDE
    for channel in range(0, whole, WIDE):
        numbers = load_wide(row, at + channel)
        store(out, to + channel, fma(splat(numbers, share), numbers, load_wide(onto, base + channel)))
    for channel in range(whole, width):
        out[to + channel] = fma_number(share, row[at + channel], onto[base + channel])


@inner
def copy_row(width, row, at, out, to):  # type: ignore[no-untyped-def]
    """out[to:] = row[at:], `width` numbers."""
    whole = width - width % WIDE
    for channel in range(0, whole, WIDE):
        store(out, to + channel, load_wide(row, at + channel))
    for channel in range(whole, width):
        out[to + channel] = row[at + channel]


@inner
def add_residual(onto, first, count, width, shift, channels, table, row):  # type: ignore[no-untyped-def]
    """table (count, row) plus numbers shift..shift + channels of the rows that tokens first.. are added to."""
    image, vertex = first // onto.targets, first % onto.targets
    for number in range(count):
        rows, at = image * onto.sources, number * row
        if onto.terms == 0:
            add_row(channels, 1.0, onto.x, (rows + vertex) * width + shift, table, at, table, at)
        for place in range(vertex * onto.terms, (vertex + 1) * onto.terms):
            source = (rows + onto.indices[place]) * width + shift
            add_row(channels, onto.shares[place], onto.x, source, table, at, table, at)
        vertex += 1
        if vertex == onto.targets:
            image, vertex = image + 1, 0


@inner
def fetch_residual(onto, first, count, width, shift):  # type: ignore[no-untyped-def]
    """Ask for the line at `shift` of the rows that tokens first.. are added to."""
    image, vertex = first // onto.targets, first % onto.targets
    for _ in range(count):
        rows = image * onto.sources
        if onto.terms == 0:
            prefetch(onto.x, (rows + vertex) * width + shift)
        for place in range(vertex * onto.terms, (vertex + 1) * onto.terms):
            prefetch(onto.x, (rows + onto.indices[place]) * width + shift)
        vertex += 1
        if vertex == onto.targets:
            image, vertex = image + 1, 0


@inner
def add_mixture_back(told, first, vertex, left, count, out, at):  # type: ignore[no-untyped-def]
    """out[at:] += gate s with s = Σ share * gradient over the edges into a source; returns ⟨s, x⟩ by lanes."""
    edges, whole = range(told.graph.offsets[vertex], told.graph.offsets[vertex + 1]), count - count % WIDE
    zero = splat(load_wide(out, at - at), 0.0)
    product = zero
    for channel in range(0, whole, WIDE):
        total = zero
        for number in edges:
            row = (first + told.graph.listeners[number]) * told.width + left
            share = splat(zero, told.shares[told.graph.edges[number]])
            total = fma(share, load_wide(told.gradient, row + channel), total)
        store(out, at + channel, fma(splat(zero, told.gate), total, load_wide(out, at + channel)))
        product = fma(total, load_wide(told.x, at + channel), product)
    for channel in range(whole, count):
        rest = 0.0 * out[at + channel]
        for number in edges:
            row = (first + told.graph.listeners[number]) * told.width + left
            rest += told.shares[told.graph.edges[number]] * told.gradient[row + channel]
        out[at + channel] += told.gate * rest
        product = product + splat(zero, rest * told.x[at + channel] / WIDE)
    return product


@inner
def fetch_back(told, image, vertex, sources, left, count):  # type: ignore[no-untyped-def]
    """Ask for what `add_back` reads of a source whose turn comes soon."""
    if vertex < sources:
        row = image * told.targets
        if len(told.graph.edges) == 0:
            fetch(told.gradient, (row + vertex) * told.width + left, count)
        else:
            fetch(told.x, (image * sources + vertex) * told.width + left, count)
            for number in range(told.graph.offsets[vertex], told.graph.offsets[vertex + 1]):
                fetch(told.gradient, (row + told.graph.listeners[number]) * told.width + left, count)


@inner
def add_back(told, image, vertex, left, count, out, at):  # type: ignore[no-untyped-def]
    """out[at:] plus what the residual tells `count` numbers, from `left` on, of a source's row -> the gate's part."""
    first = image * told.targets
    if len(told.graph.edges) > 0:
        return add_mixture_back(told, first, vertex, left, count, out, at)
    add_row(count, 1.0, told.gradient, (first + vertex) * told.width + left, out, at, out, at)
    return splat(load_wide(out, at - at), 0.0)
