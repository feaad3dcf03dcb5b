"""Dropout masks from SplitMix64, four 16-bit decisions per random word."""

from typing import Any

import numpy as np

from quatsphere.kernels.cpu.loops.jit import auto_vectorized, inlined
from quatsphere.kernels.cpu.loops.threads import Span, parallel_for

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
WORDS = 512
"""Random words generated together, small enough for the first-level cache."""


@inlined
def splitmix_finalizer(x):
    """Output function of SplitMix64; see `randomness`."""
    x = (x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]
    x = (x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]
    return x ^ (x >> SHIFTS[2])


@auto_vectorized
def fill_images(images, keys, site, count, threshold, scratch, out):
    """Masks (count,) of a range of images: True where the 16-bit random number is at least the threshold.

    `scratch` is one buffer viewed as 64-bit words and as 16-bit integers.
    """
    words, decisions = scratch
    for image in range(*images):
        key = splitmix_finalizer(GOLDEN_GAMMA + np.uint64(keys[image]))
        counter = splitmix_finalizer(key + GOLDEN_GAMMA + np.uint64(site))
        for start in range(0, count, len(decisions)):
            for index in range(len(words)):
                counter += GOLDEN_GAMMA
                words[index] = splitmix_finalizer(counter)
            mask = out[image * count + start : image * count + min(start + len(decisions), count)]
            for index in range(len(mask)):
                mask[index] = decisions[index] >= threshold


def fill_masks(keys: Any, site: int, count: int, threshold: int, out: Any) -> None:
    """Masks (B, count), one per key; each key is combined with the site as in `randomness.fold`."""

    def run(images: Span) -> None:
        words = np.empty(WORDS, np.uint64)
        fill_images(images, keys, site, count, np.int16(threshold), (words, words.view(np.int16)), out)

    parallel_for(run, len(keys), out.size)
