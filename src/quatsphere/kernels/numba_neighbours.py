"""The three neighbour sums of `neighbour_ops` on lane tables (V, Q, 4, 8), one vertex at a time, sums in registers.

edge_dots   ⟨a_i, b_n(i,s)⟩                    per edge of target i
hear        Σ_s w_is b_n(i,s)                  what target i hears
listen      Σ_(i,s): n(i,s)=j w_is a_i         what source j is told back, in the order of the edges
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.numba_threads import compiled
from quatsphere.kernels.numba_transport import TILE, dot, load_tile, store_tile
from quatsphere.kernels.numba_vector import LANES, fma, inner, load, number_at, splat, store


class Reversed(NamedTuple):
    """The edges into source j are edges[offsets[j] : offsets[j + 1]], heard by the targets `listeners`."""

    offsets: Any
    edges: Any
    listeners: Any


@compiled
def fill_reversed(neighbours, k, place, graph):  # type: ignore[no-untyped-def]
    """The edges into each source in rising order, by counting; `place` and the offsets hold zeros before."""
    for source in neighbours:
        graph.offsets[source + 1] += 1
    for source in range(len(place)):
        graph.offsets[source + 1] += graph.offsets[source]
        place[source] = graph.offsets[source]
    for edge in range(len(neighbours)):
        source = neighbours[edge]
        graph.edges[place[source]] = edge
        graph.listeners[place[source]] = edge // k
        place[source] += 1


def reverse_graph(neighbours: Any, k: int, sources: int) -> Reversed:
    """The reversed graph of flat neighbours (T k,)."""
    count = len(neighbours)
    graph = Reversed(np.zeros(sources + 1, np.int64), np.empty(count, np.int64), np.empty(count, np.int64))
    fill_reversed(neighbours, k, np.zeros(sources, np.int64), graph)
    return graph


@inner
def edge_dots(neighbours, k, channels, vertex, targets, sources, dots):  # type: ignore[no-untyped-def]
    """⟨a_i, b_n(i,s)⟩ over all channels of one target -> dots (k, 8)."""
    row = channels * TILE
    for channel in range(channels):
        a = load_tile(targets, vertex * row + channel * TILE)
        for slot in range(k):
            part = dot(a, load_tile(sources, number_at(neighbours, vertex * k + slot) * row + channel * TILE))
            if channel > 0:
                part = part + load(dots, slot * LANES)
            store(dots, slot * LANES, part)


@inner
def add_scaled(sums, weight, table, at):  # type: ignore[no-untyped-def]
    """Four sums plus weight times the tile at `at`."""
    b = load_tile(table, at)
    return (
        fma(weight, b[0], sums[0]),
        fma(weight, b[1], sums[1]),
        fma(weight, b[2], sums[2]),
        fma(weight, b[3], sums[3]),
    )


@inner
def hear(neighbours, k, channels, vertex, sources, weights, at, heard):  # type: ignore[no-untyped-def]
    """heard (Q, 4, 8) = Σ_s w_s b_n(i,s); the target's weights (k, 8) start at `at`. Two channels at a time: eight
    sums keep the multipliers busy."""
    row, zero = channels * TILE, splat(weights, 0.0)
    for channel in range(0, channels - 1, 2):
        a, b = (zero, zero, zero, zero), (zero, zero, zero, zero)
        for slot in range(k):
            weight = load(weights, at + slot * LANES)
            source = number_at(neighbours, vertex * k + slot) * row + channel * TILE
            a = add_scaled(a, weight, sources, source)
            b = add_scaled(b, weight, sources, source + TILE)
        store_tile(heard, channel * TILE, a)
        store_tile(heard, (channel + 1) * TILE, b)
    if channels % 2 == 1:
        last, a = (channels - 1) * TILE, (zero, zero, zero, zero)
        for slot in range(k):
            weight = load(weights, at + slot * LANES)
            a = add_scaled(a, weight, sources, number_at(neighbours, vertex * k + slot) * row + last)
        store_tile(heard, last, a)


@inner
def listen(graph, channels, vertex, targets, weights, told):  # type: ignore[no-untyped-def]
    """told (Q, 4, 8) = Σ w_is a_i over the edges into one source; weights (T, k, 8)."""
    row, zero = channels * TILE, splat(weights, 0.0)
    edges = range(graph.offsets[vertex], graph.offsets[vertex + 1])
    for channel in range(0, channels - 1, 2):
        a, b = (zero, zero, zero, zero), (zero, zero, zero, zero)
        for number in edges:
            weight = load(weights, number_at(graph.edges, number) * LANES)
            target = number_at(graph.listeners, number) * row + channel * TILE
            a = add_scaled(a, weight, targets, target)
            b = add_scaled(b, weight, targets, target + TILE)
        store_tile(told, channel * TILE, a)
        store_tile(told, (channel + 1) * TILE, b)
    if channels % 2 == 1:
        last, a = (channels - 1) * TILE, (zero, zero, zero, zero)
        for number in edges:
            weight = load(weights, number_at(graph.edges, number) * LANES)
            a = add_scaled(a, weight, targets, number_at(graph.listeners, number) * row + last)
        store_tile(told, last, a)
