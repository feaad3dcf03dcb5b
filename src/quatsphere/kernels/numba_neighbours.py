"""The three neighbour sums of `neighbour_ops` on lane tables (V, Q, 4, 8), one vertex at a time, sums in registers.

edge_dots   ⟨a_i, b_n(i,s)⟩                    per edge of target i
hear        Σ_s w_is b_n(i,s)                  what target i hears
listen      Σ_(i,s): n(i,s)=j w_is a_i         what source j is told back, in the order of the edges
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.numba_threads import compiled
from quatsphere.kernels.numba_transport import TILE, dot, load_tile
from quatsphere.kernels.numba_vector import LANES, fma, inner, load, splat, store


class Reversed(NamedTuple):
    """The edges into source j are edges[offsets[j] : offsets[j + 1]], heard by the targets `listeners`."""

    offsets: Any
    edges: Any
    listeners: Any


@compiled
def reverse_graph(neighbours, k, sources):  # type: ignore[no-untyped-def]
    """(offsets (S + 1,), edges (T k,), listeners (T k,)): the edges into each source in rising order, by counting."""
    offsets = np.zeros(sources + 1, np.int64)
    for source in neighbours:
        offsets[source + 1] += 1
    for source in range(sources):
        offsets[source + 1] += offsets[source]
    place = offsets[:-1].copy()
    edges, listeners = np.empty(len(neighbours), np.int64), np.empty(len(neighbours), np.int64)
    for edge in range(len(neighbours)):
        source = neighbours[edge]
        edges[place[source]] = edge
        listeners[place[source]] = edge // k
        place[source] += 1
    return offsets, edges, listeners


@inner
def edge_dots(neighbours, k, channels, vertex, targets, sources, dots):  # type: ignore[no-untyped-def]
    """⟨a_i, b_n(i,s)⟩ over all channels of one target -> dots (k, 8)."""
    row = channels * TILE
    for channel in range(channels):
        a = load_tile(targets, vertex * row + channel * TILE)
        for slot in range(k):
            part = dot(a, load_tile(sources, neighbours[vertex * k + slot] * row + channel * TILE))
            if channel > 0:
                part = part + load(dots, slot * LANES)
            store(dots, slot * LANES, part)


@inner
def hear(neighbours, k, channels, vertex, channel, sources, weights, at):  # type: ignore[no-untyped-def]
    """Σ_s w_s b_n(i,s) of one channel; the target's weights (k, 8) start at `at`."""
    row, zero = channels * TILE, splat(weights, 0.0)
    w, x, y, z = zero, zero, zero, zero
    for slot in range(k):
        weight = load(weights, at + slot * LANES)
        b = load_tile(sources, neighbours[vertex * k + slot] * row + channel * TILE)
        w, x = fma(weight, b[0], w), fma(weight, b[1], x)
        y, z = fma(weight, b[2], y), fma(weight, b[3], z)
    return w, x, y, z


@inner
def listen(graph, channels, vertex, channel, targets, weights):  # type: ignore[no-untyped-def]
    """Σ w_is a_i of one channel over the edges into one source; weights (T, k, 8)."""
    row, zero = channels * TILE, splat(weights, 0.0)
    w, x, y, z = zero, zero, zero, zero
    for number in range(graph.offsets[vertex], graph.offsets[vertex + 1]):
        weight = load(weights, graph.edges[number] * LANES)
        a = load_tile(targets, graph.listeners[number] * row + channel * TILE)
        w, x = fma(weight, a[0], w), fma(weight, a[1], x)
        y, z = fma(weight, a[2], y), fma(weight, a[3], z)
    return w, x, y, z
