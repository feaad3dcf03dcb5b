"""The loops of the fused quaternion kernel: eight heads of one image at a time, edge by edge, nothing kept per edge
but weights.

An *item* is (image b, block of eight heads). Its tables have one lane per head: lifted features (S, Q, 4, 8), routing
keys (S, 4, 8). The score of every routing is an inner product of 4-vectors, target key with source key:

    alignment, absolute   q_i                              q_j
    geometric             (-|q_i|⁴, 2 q_i* p_i q_i)        (|p_j|², p_j)      = -‖p_i - q_i p_j q_i*‖² + |p_i|²

(the last term is the same for all neighbours of i and leaves the softmax alone). Gradients are in
`numba_attention_backward`.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_math import exp_of_negative
from quatsphere.kernels.numba_neighbours import edge_dots, hear
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_transport import TILE, conjugate, dot, lift, load_tile, rotation, store_tile, turn
from quatsphere.kernels.numba_vector import LANES, fetch, inner, keep_lanes, load, prefetch, splat, store, where_less

ALIGNMENT, ABSOLUTE, UNIFORM, GEOMETRIC = 0, 1, 2, 3
AHEAD = 6
"""Vertices that are fetched before their turn: an item reads parts of rows, and the processor guesses no jumps."""


class Sizes(NamedTuple):
    """Everything about a problem but its numbers."""

    images: int
    targets: int
    sources: int
    neighbours: int
    heads: int
    channels: int
    routing: int
    transport: int
    dropped: bool
    keep_scale: float

    @property
    def blocks(self) -> int:
        """Blocks of eight heads, the last one perhaps not full."""
        return -(-self.heads // LANES)


class Inputs(NamedTuple):
    """The tensors of a problem as flat arrays; absent ones are empty. `beta` is padded to whole blocks."""

    target_field: Any
    source_field: Any
    features: Any
    neighbours: Any
    beta: Any
    keep: Any
    target_directions: Any
    source_directions: Any


class Tables(NamedTuple):
    """One item's lane tables: the sources' features (S, Q, 4, 8) and keys (S, 4, 8), the targets' keys (T, 4, 8) and,
    for gradients, the lifted output gradient (T, Q, 4, 8) and per edge (T, k, 8) kept weights and score gradients."""

    lifted: Any
    keys: Any
    target_keys: Any
    gradient: Any
    kept: Any
    score_gradient: Any


@inner
def item_heads(sizes, item):  # type: ignore[no-untyped-def]
    """(image, first head, number of heads) of an item."""
    blocks = (sizes.heads + LANES - 1) // LANES
    first = (item % blocks) * LANES
    return item // blocks, first, min(LANES, sizes.heads - first)


@inner
def load_field(field, sizes, vertices, item, vertex):  # type: ignore[no-untyped-def]
    """The item's quaternions of one vertex from a field (B, V, H, 4)."""
    image, first, count = item_heads(sizes, item)
    return load_quaternions(field, ((image * vertices + vertex) * sizes.heads + first) * 4, 4, count)


@inner
def feature_place(sizes, vertices, item, vertex):  # type: ignore[no-untyped-def]
    """(offset, stride between heads, number of heads) of the item's features of one vertex in (B, V, H, Q, 4)."""
    image, first, count = item_heads(sizes, item)
    stride = 4 * sizes.channels
    return ((image * vertices + vertex) * sizes.heads + first) * stride, stride, count


@inner
def fetch_field(field, sizes, vertices, item, vertex):  # type: ignore[no-untyped-def]
    """Ask for the quaternions of a vertex whose turn comes soon."""
    image, first, count = item_heads(sizes, item)
    fetch(field, ((image * vertices + vertex + AHEAD) * sizes.heads + first) * 4, 4 * count)


@inner
def fetch_features(tensor, sizes, vertices, item, vertex):  # type: ignore[no-untyped-def]
    """Ask for the features of a vertex whose turn comes soon, to read or to write."""
    offset, stride, count = feature_place(sizes, vertices, item, vertex + AHEAD)
    fetch(tensor, offset, stride * count)


@inner
def fetch_keep(keep, sizes, item, vertex):  # type: ignore[no-untyped-def]
    """Ask for the mask of a target whose turn comes soon: bytes, all heads side by side."""
    if sizes.dropped:
        image, _, _ = item_heads(sizes, item)
        row = sizes.neighbours * sizes.heads
        for place in range(0, row, 64):
            prefetch(keep, (image * sizes.targets + vertex + AHEAD) * row + place)


@inner
def direction(directions, like, vertex):  # type: ignore[no-untyped-def]
    """(0, p) with the vertex's direction in every lane."""
    x, y, z = directions[3 * vertex], directions[3 * vertex + 1], directions[3 * vertex + 2]
    return splat(like, 0.0), splat(like, x), splat(like, y), splat(like, z)


@inner
def target_key(inputs, sizes, q, vertex):  # type: ignore[no-untyped-def]
    """The 4-vector a target scores its neighbours with."""
    if sizes.routing != GEOMETRIC:
        return q
    _, x, y, z = turn(rotation(conjugate(q)), direction(inputs.target_directions, q[0], vertex))
    square = dot(q, q)
    return splat(square, 0.0) - square * square, x + x, y + y, z + z


@inner
def source_key(inputs, sizes, q, vertex):  # type: ignore[no-untyped-def]
    """The 4-vector a source is scored by."""
    if sizes.routing != GEOMETRIC:
        return q
    p = direction(inputs.source_directions, q[0], vertex)
    return dot(p, p), p[1], p[2], p[3]


@inner
def lift_vertex(sizes, q, tensor, place, table, at):  # type: ignore[no-untyped-def]
    """One vertex's features from (B, V, H, Q, 4) into a lane table, in the shared frame."""
    offset, stride, count = place
    matrix = rotation(q)
    for channel in range(sizes.channels):
        x = load_quaternions(tensor, offset + 4 * channel, stride, count)
        store_tile(table, at + channel * TILE, lift(sizes.transport, q, matrix, x))


@inner
def lift_sources(inputs, sizes, item, start, stop, tables):  # type: ignore[no-untyped-def]
    """Lift the features of sources start..stop once, and write their keys."""
    row = sizes.channels * TILE
    for vertex in range(start, stop):
        fetch_field(inputs.source_field, sizes, sizes.sources, item, vertex)
        fetch_features(inputs.features, sizes, sizes.sources, item, vertex)
        q = load_field(inputs.source_field, sizes, sizes.sources, item, vertex)
        store_tile(tables.keys, vertex * TILE, source_key(inputs, sizes, q, vertex))
        place = feature_place(sizes, sizes.sources, item, vertex)
        lift_vertex(sizes, q, inputs.features, place, tables.lifted, vertex * row)


@inner
def softmax(sizes, beta, scores, weights):  # type: ignore[no-untyped-def]
    """softmax over the k slots of β score (|score| under absolute routing; 1/k under uniform): weights (k, 8) before
    they are divided by their sum, and, returned, what to multiply them with."""
    k, zero = sizes.neighbours, splat(beta, 0.0)
    if sizes.routing == UNIFORM:
        for slot in range(k):
            store(weights, slot * LANES, splat(beta, 1.0))
        return splat(beta, 1.0 / k)
    top = splat(beta, -float("inf"))
    for slot in range(k):
        score = load(scores, slot * LANES)
        if sizes.routing == ABSOLUTE:
            score = where_less(score, zero, zero - score, score)
        logit = beta * score
        top = where_less(top, logit, logit, top)
        store(weights, slot * LANES, logit)
    total = zero
    for slot in range(k):
        weight = exp_of_negative(load(weights, slot * LANES) - top)
        total = total + weight
        store(weights, slot * LANES, weight)
    return splat(beta, 1.0) / total


@inner
def apply_keep(inputs, sizes, item, vertex, share, weights, at, kept):  # type: ignore[no-untyped-def]
    """The share of the weights, and kept[at:] = them times the keep mask, or as they are; all (k, 8)."""
    image, first, count = item_heads(sizes, item)
    k = sizes.neighbours
    for slot in range(k):
        weight = load(weights, slot * LANES) * share
        store(weights, slot * LANES, weight)
        if sizes.dropped:
            edge = (image * sizes.targets + vertex) * k + slot
            weight = keep_lanes(inputs.keep, edge * sizes.heads + first, count, weight) * sizes.keep_scale
        store(kept, at + slot * LANES, weight)


@inner
def route(inputs, sizes, item, vertex, tables, key, scratch, at, kept):  # type: ignore[no-untyped-def]
    """Scores and weights (k, 8) of one target into the scratch, its kept weights into kept[at:]."""
    scores, weights, _, _ = scratch
    _, first, _ = item_heads(sizes, item)
    store_tile(tables.target_keys, vertex * TILE, key)
    if sizes.routing != UNIFORM:
        edge_dots(inputs.neighbours, sizes.neighbours, 1, vertex, tables.target_keys, tables.keys, scores)
    share = softmax(sizes, load(inputs.beta, first), scores, weights)
    apply_keep(inputs, sizes, item, vertex, share, weights, at, kept)


@inner
def attend_targets(inputs, sizes, item, start, stop, tables, scratch, out):  # type: ignore[no-untyped-def]
    """Targets start..stop: weights, weighted sum in the shared frame, lowered once -> out (B, T, H, Q, 4)."""
    weights, zero = scratch[1], start - start
    for vertex in range(start, stop):
        fetch_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        fetch_features(out, sizes, sizes.targets, item, vertex)
        fetch_keep(inputs.keep, sizes, item, vertex)
        q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        route(inputs, sizes, item, vertex, tables, target_key(inputs, sizes, q, vertex), scratch, zero, weights)
        offset, stride, count = feature_place(sizes, sizes.targets, item, vertex)
        back = conjugate(q)
        matrix = rotation(back)
        hear(inputs.neighbours, sizes.neighbours, sizes.channels, vertex, tables.lifted, weights, zero, scratch[3])
        for channel in range(sizes.channels):
            heard = load_tile(scratch[3], channel * TILE)
            store_quaternions(out, offset + 4 * channel, stride, count, lift(sizes.transport, back, matrix, heard))
