"""Vectors of eight lanes of which only some are in memory."""

from quatsphere.kernels.cpu.loops import LANES
from quatsphere.kernels.cpu.loops.jit import inlined
from quatsphere.kernels.cpu.loops.simd import extract, insert, load, mask_vector, splat, store, store_scalar


@inlined
def load_partial(array, index, count):
    """array[index : index + count], zero in the other lanes."""
    if count == LANES:
        return load(array, index)
    vector = splat(array, 0.0)
    for lane in range(count):
        vector = insert(vector, lane, array[index + lane])
    return vector


@inlined
def store_partial(array, index, count, vector):
    """array[index : index + count] = the first `count` lanes."""
    if count == LANES:
        store(array, index, vector)
    else:
        for lane in range(count):
            store_scalar(array, index + lane, extract(vector, lane))


@inlined
def mask_lanes(mask, index, count, vector):
    """The vector with zeros where mask[index : index + count] is zero; the other lanes unchanged."""
    if count == LANES:
        return mask_vector(mask, index, vector)
    for lane in range(count):
        if mask[index + lane] == 0:
            vector = insert(vector, lane, 0.0)
    return vector
