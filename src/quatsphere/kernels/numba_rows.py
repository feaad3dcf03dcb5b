"""Whole rows of numbers: copied, added up with shares, and the residual of a step, which is such a sum."""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_vector import WIDE, fma, inner, load_wide, splat, store


class Onto(NamedTuple):
    """What a step's update is added to: rows x (B, sources, width), and which of them with which shares (targets,
    terms) each target takes; without terms its own row, without sources nothing."""

    x: Any
    indices: Any
    shares: Any
    targets: int
    sources: int
    terms: int


@inner
def add_row(width, share, row, at, onto, base, out, to):  # type: ignore[no-untyped-def]
    """out[to:] = onto[base:] + share row[at:], `width` numbers."""
    whole = width - width % WIDE
    for channel in range(0, whole, WIDE):
        numbers = load_wide(row, at + channel)
        store(out, to + channel, fma(splat(numbers, share), numbers, load_wide(onto, base + channel)))
    for channel in range(whole, width):
        out[to + channel] = onto[base + channel] + share * row[at + channel]


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
