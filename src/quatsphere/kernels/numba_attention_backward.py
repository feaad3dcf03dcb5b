"""The gradients of the fused quaternion kernel: weights are recomputed, sources gather over the reversed graph.

Per item (image, eight heads), with g the output gradient lifted by the target and y the lifted sources:

    targets   dw_ij = ⟨g_i, y_j⟩,  ds_ij = w_ij (keep_ij dw_ij - Σ_j w_ij keep_ij dw_ij),  dβ += ds_ij s_ij
              dkey_i = Σ_j β ds_ij key_j,  dq_i = torque_i ⊗ q_i / |q_i|² + (dkey_i through the key)
    sources   dy_j = Σ_i keep_ij w_ij g_i,  dx_j = lower(q_j, dy_j),  dkey_j = Σ_i β ds_ij key_i,  dq_j likewise

A source sums over its listeners in the order of the edges, in registers: no scatter, no atomics, the same bits however
the vertices are shared out.
"""

from typing import Any, NamedTuple

from quatsphere.kernels.numba_attention import (
    ABSOLUTE,
    AHEAD,
    GEOMETRIC,
    UNIFORM,
    direction,
    feature_place,
    fetch_features,
    fetch_field,
    fetch_keep,
    item_heads,
    load_field,
    route,
    target_key,
)
from quatsphere.kernels.numba_neighbours import edge_dots, hear, listen
from quatsphere.kernels.numba_quaternions import load_quaternions, store_quaternions
from quatsphere.kernels.numba_rows import add_back, fetch_back
from quatsphere.kernels.numba_transport import (
    IDENTITY,
    SANDWICH,
    TILE,
    add_torque,
    conjugate,
    dot,
    lift,
    load_tile,
    multiply,
    rotation,
    store_tile,
    turn,
)
from quatsphere.kernels.numba_vector import LANES, WIDE, fma, inner, lane, load, load_wide, splat, store, where_less


class Gradients(NamedTuple):
    """Where gradients go, flat. Those of beta are per (item, chunk, lane), of directions per (item, vertex, 3), of the
    residual's gate per (item, chunk of sources, 16)."""

    target_field: Any
    source_field: Any
    features: Any
    beta: Any
    target_directions: Any
    source_directions: Any
    gate: Any


@inner
def score_gradients(sizes, vertex, tables, beta, scratch):  # type: ignore[no-untyped-def]
    """From one target's scores, weights and weight gradients (k, 8) to its score gradients; returns its part of dβ."""
    k, zero, one = sizes.neighbours, splat(beta, 0.0), splat(beta, 1.0)
    scores, weights, dots, _ = scratch
    mean = zero
    for slot in range(k):
        mean = fma(load(tables.kept, (vertex * k + slot) * LANES), load(dots, slot * LANES), mean)
    beta_gradient = zero
    for slot in range(k):
        edge = (vertex * k + slot) * LANES
        score = load(scores, slot * LANES)
        logit = fma(load(tables.kept, edge), load(dots, slot * LANES), zero - load(weights, slot * LANES) * mean)
        sign = one
        if sizes.routing == ABSOLUTE:
            sign = where_less(score, zero, zero - one, where_less(zero, score, one, zero))
        signed = logit * sign
        beta_gradient = fma(signed, score, beta_gradient)
        store(tables.score_gradient, edge, signed * beta)
    return beta_gradient


@inner
def lift_gradient(sizes, q, place, outputs, tables, vertex):  # type: ignore[no-untyped-def]
    """The output gradient of one target into its lane table, lifted -> the torque of lowering, summed over channels.

    A turn keeps angles: the torque t = Σ z g* + z* g (one_sided: Σ z g*) is made in the target's own frame, from the
    output and its gradient as they are, and turned once into the shared one: q t q* / |q|².
    """
    (offset, stride, count), (out, gradient) = place, outputs
    matrix, zero = rotation(q), splat(q[0], 0.0)
    torque = (zero, zero, zero, zero)
    for channel in range(sizes.channels):
        g = load_quaternions(gradient, offset + 4 * channel, stride, count)
        store_tile(tables.gradient, (vertex * sizes.channels + channel) * TILE, lift(sizes.transport, q, matrix, g))
        if sizes.transport != IDENTITY:
            z = load_quaternions(out, offset + 4 * channel, stride, count)
            torque = add_torque(sizes.transport, torque, z, g)
    turned, share = turn(matrix, torque), splat(zero, 1.0) / dot(q, q)
    return turned[0] * share, turned[1] * share, turned[2] * share, turned[3] * share


@inner
def field_gradient(torque, q, through_key):  # type: ignore[no-untyped-def]
    """torque ⊗ q / |q|² + what came through the key."""
    turned = multiply(torque, q)
    share = splat(q[0], 1.0) / dot(q, q)
    return (
        fma(turned[0], share, through_key[0]),
        fma(turned[1], share, through_key[1]),
        fma(turned[2], share, through_key[2]),
        fma(turned[3], share, through_key[3]),
    )


@inner
def sum_heads(vector, count):  # type: ignore[no-untyped-def]
    """Sum of the first `count` lanes, in order."""
    total = lane(vector, 0)
    for number in range(1, count):
        total += lane(vector, number)
    return total


@inner
def store_direction(vectors, count, out, at):  # type: ignore[no-untyped-def]
    """(x, y, z) summed over heads -> out[at:at+3]; directions are shared by all heads."""
    out[at] = sum_heads(vectors[0], count)
    out[at + 1] = sum_heads(vectors[1], count)
    out[at + 2] = sum_heads(vectors[2], count)


@inner
def through_geometric_key(inputs, q, key_gradient, vertex, count, out, at):  # type: ignore[no-untyped-def]
    """(-|q|⁴, 2 q* p q): the key's gradient on to p (summed over heads, out[at:at+3]) and, returned, to q."""
    p = direction(inputs.target_directions, q[0], vertex)
    double = (splat(q[0], 0.0), 2.0 * key_gradient[1], 2.0 * key_gradient[2], 2.0 * key_gradient[3])
    g = turn(rotation(q), double)
    store_direction((g[1], g[2], g[3]), count, out, at)
    zero = splat(q[0], 0.0)
    torque = add_torque(SANDWICH, (zero, zero, zero, zero), p, g)
    radial = -4.0 * (key_gradient[0] * dot(q, q))
    return field_gradient(torque, q, (radial * q[0], radial * q[1], radial * q[2], radial * q[3]))


@inner
def target_gradients(inputs, sizes, item, start, stop, chunk, outputs, tables, scratch, gradients):  # type: ignore[no-untyped-def]
    """Targets start..stop: fills the targets' tables, writes dq_i and dp_i, and the chunk's part of dβ."""
    out, output_gradient = outputs
    image, first, count = item_heads(sizes, item)
    k, Q = sizes.neighbours, sizes.channels
    beta = load(inputs.beta, first)
    zero = splat(beta, 0.0)
    beta_gradient = zero
    for vertex in range(start, stop):
        fetch_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        fetch_field(gradients.target_field, sizes, sizes.targets, item, vertex)
        fetch_features(output_gradient, sizes, sizes.targets, item, vertex)
        fetch_features(out, sizes, sizes.targets, item, vertex)
        fetch_keep(inputs.keep, sizes, item, vertex)
        q = load_field(inputs.target_field, sizes, sizes.targets, item, vertex)
        place = feature_place(sizes, sizes.targets, item, vertex)
        torque = lift_gradient(sizes, q, place, outputs, tables, vertex)
        key = target_key(inputs, sizes, q, vertex)
        route(inputs, sizes, item, vertex, tables, key, scratch, vertex * k * LANES, tables.kept)
        through_key = (zero, zero, zero, zero)
        if sizes.routing != UNIFORM:
            edge_dots(inputs.neighbours, k, Q, vertex, tables.gradient, tables.lifted, scratch[2])
            beta_gradient = beta_gradient + score_gradients(sizes, vertex, tables, beta, scratch)
            slots = vertex * k * LANES
            hear(inputs.neighbours, k, 1, vertex, tables.keys, tables.score_gradient, slots, scratch[3])
            through_key = load_tile(scratch[3], 0)
        if sizes.routing == GEOMETRIC:
            at = (item * sizes.targets + vertex) * 3
            through_key = through_geometric_key(inputs, q, through_key, vertex, count, gradients.target_directions, at)
        at = ((image * sizes.targets + vertex) * sizes.heads + first) * 4
        store_quaternions(gradients.target_field, at, 4, count, field_gradient(torque, q, through_key))
    store(gradients.beta, chunk * LANES, beta_gradient)


@inner
def source_directions_gradient(inputs, vertex, key_gradient, count, out, at):  # type: ignore[no-untyped-def]
    """(|p|², p): the key's gradient on to p, summed over heads, into out[at:at+3]."""
    _, x, y, z = direction(inputs.source_directions, key_gradient[0], vertex)
    store_direction(
        (
            fma(x + x, key_gradient[0], key_gradient[1]),
            fma(y + y, key_gradient[0], key_gradient[2]),
            fma(z + z, key_gradient[0], key_gradient[3]),
        ),
        count,
        out,
        at,
    )


@inner
def source_gradients(inputs, sizes, item, start, stop, chunk, graph, told, tables, scratch, gradients):  # type: ignore[no-untyped-def]
    """Sources start..stop: dx_j, dq_j and dp_j from what their listeners wrote, with what the residual tells back."""
    image, first, count = item_heads(sizes, item)
    zero = splat(tables.kept, 0.0)
    gate = splat(load_wide(gradients.features, start - start), 0.0)
    for vertex in range(start, stop):
        fetch_field(inputs.source_field, sizes, sizes.sources, item, vertex)
        fetch_field(gradients.source_field, sizes, sizes.sources, item, vertex)
        fetch_features(gradients.features, sizes, sizes.sources, item, vertex)
        if told.targets > 0:
            channels = 4 * sizes.channels
            fetch_back(told, image, vertex + AHEAD, sizes.sources, first * channels, count * channels)
        q = load_field(inputs.source_field, sizes, sizes.sources, item, vertex)
        back = conjugate(q)
        matrix = rotation(back)
        torque, through_key = (zero, zero, zero, zero), (zero, zero, zero, zero)
        offset, stride, _ = feature_place(sizes, sizes.sources, item, vertex)
        listen(graph, sizes.channels, vertex, tables.gradient, tables.kept, scratch[3])
        for channel in range(sizes.channels):
            g = load_tile(scratch[3], channel * TILE)
            y = load_tile(tables.lifted, (vertex * sizes.channels + channel) * TILE)
            torque = add_torque(sizes.transport, torque, g, y)
            lowered = lift(sizes.transport, back, matrix, g)
            store_quaternions(gradients.features, offset + 4 * channel, stride, count, lowered)
        if sizes.routing != UNIFORM:
            listen(graph, 1, vertex, tables.target_keys, tables.score_gradient, scratch[3])
            through_key = load_tile(scratch[3], 0)
        if sizes.routing == GEOMETRIC:
            at = (item * sizes.sources + vertex) * 3
            source_directions_gradient(inputs, vertex, through_key, count, gradients.source_directions, at)
            through_key = (zero, zero, zero, zero)
        at = ((image * sizes.sources + vertex) * sizes.heads + first) * 4
        store_quaternions(gradients.source_field, at, 4, count, field_gradient(torque, q, through_key))
        if told.targets > 0:
            left, numbers = first * stride, count * stride
            gate = gate + add_back(told, image, vertex, left, numbers, gradients.features, offset)
    if told.targets > 0:
        store(gradients.gate, chunk * WIDE, gate)
