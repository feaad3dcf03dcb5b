"""The loop of dropout masks: SplitMix64 per key, four decisions of sixteen bits out of each number."""

from typing import Any

import numpy as np

from quatsphere.kernels.numba_threads import Part, compiled, share_out
from quatsphere.kernels.numba_vector import inner

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)
WORDS = 512
"""Numbers of the stream that are turned into decisions together, while they are in the first cache."""
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@inner
def finalise(x):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser; see `randomness`."""
    x = (x ^ (x >> SHIFTS[0])) * FIRST
    x = (x ^ (x >> SHIFTS[1])) * SECOND
    return x ^ (x >> SHIFTS[2])


@compiled
def fill(images, keys, site, count, threshold, words, out):  # type: ignore[no-untyped-def]
    """Masks (count,) of these images: whether a number of the stream reaches the threshold.

    `words` is room for some of the stream, as numbers of 64 bits and as four times as many of 16.
    """
    whole, quarters = words
    for image in range(*images):
        counter = finalise(finalise(GOLDEN + np.uint64(keys[image])) + GOLDEN + np.uint64(site))
        for start in range(0, count, len(quarters)):
            for place in range(len(whole)):
                counter += GOLDEN
                whole[place] = finalise(counter)
            here = out[image * count + start : image * count + min(start + len(quarters), count)]
            for place in range(len(here)):
                here[place] = quarters[place] >= threshold


def fill_all(keys: Any, site: int, count: int, threshold: int, out: Any) -> None:
    """Masks (B, count) of all keys, each folded with the site as `randomness.fold` does."""

    def run(images: Part) -> None:
        whole = np.empty(WORDS, np.uint64)
        fill(images, keys, site, count, np.int16(threshold), (whole, whole.view(np.int16)), out)

    share_out(run, len(keys), out.size)
