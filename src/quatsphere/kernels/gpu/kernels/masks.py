"""Dropout masks in Triton kernels: read from memory, or hashed in registers with the bits of `randomness.draw_mask`."""

import triton.language as tl

from quatsphere.kernels.gpu.kernels.quaternions import jit
from quatsphere.randomness import GOLDEN

NO_MASK, STORED, HASHED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_GOLDEN = tl.constexpr(GOLDEN + 2**64)


@jit
def _finalise(x):
    """SplitMix64's finaliser of uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@jit
def stream_key(keys, image, site):
    """Key of an image's stream at a site: `randomness.fold(key, site)`."""
    key = _finalise(tl.load(keys + image).to(tl.uint64) + _GOLDEN)
    return _finalise(key + _GOLDEN + site.to(tl.uint64))


@jit
def _kept(word, quarter, threshold):
    """True where the 16-bit number in this quarter of a word, as a signed one, is at least the threshold."""
    return (word >> (16 * quarter)).to(tl.int16).to(tl.int32) >= threshold


@jit
def hashed_mask(key, place, threshold):
    """Elements `place` of a mask; one word of the stream decides four consecutive elements."""
    word = _finalise(key + ((place >> 2) + 1).to(tl.uint64) * _GOLDEN)
    return _kept(word, (place & 3).to(tl.uint64), threshold)


@jit
def hashed_quarters(key, word_index, threshold):
    """The same for whole words: indices (...) -> masks (..., 4) of their elements."""
    word = _finalise(key + (word_index + 1).to(tl.uint64) * _GOLDEN)
    pairs = tl.join(
        tl.join(_kept(word, 0, threshold), _kept(word, 2, threshold)),
        tl.join(_kept(word, 1, threshold), _kept(word, 3, threshold)),
    )
    return tl.reshape(pairs, word_index.shape + (4,))  # noqa: RUF005 (Triton has no starred tuples)


@jit
def edge_mask(keep, site, threshold, edge, K: tl.constexpr, H: tl.constexpr, KEEP: tl.constexpr):
    """Mask of a vertex's edges, `keep` being (B, T, k, H) or keys (B,).

    edge = (image, vertex, targets, slot (slots, 1), head (1, heads), validity mask) -> (slots, heads).
    """
    image, vertex, targets, slot, head, valid = edge
    if KEEP == HASHED:
        key = stream_key(keep, image, site)
        if H % 4 == 0 and head.shape[1] == H:
            word = (vertex * K + slot) * (H // 4) + tl.arange(0, H // 4)[None, :]
            return tl.reshape(hashed_quarters(key, word, threshold), (slot.shape[0], H))
        else:  # noqa: RET505 (Triton prunes branches, not code after a return)
            return hashed_mask(key, (vertex * K + slot) * H + head, threshold)
    else:
        row = (image * targets + vertex).to(tl.int64) * (K * H)
        return tl.load(keep + row + slot.to(tl.int64) * H + head, valid, 0) != 0
