"""Train, validation and test by rule instead of by order: a sample's own hash decides where it goes.

Functions take a part and the indices of the samples in question, in canonical order, and return indices likewise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quatsphere.data.contents import Part, content_keys
from quatsphere.errors import ConfigError

Indices = NDArray[np.intp]


def ranks(labels: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Each sample's rank in its class and the class's size, for labels in ascending order."""
    sizes = np.bincount(labels)
    starts = np.cumsum(sizes) - sizes
    return np.arange(len(labels)) - starts[labels], sizes[labels]


def hold_out(part: Part, chosen: Indices, fraction: float) -> tuple[Indices, Indices]:
    """Split into (rest, held): in each class the smallest hashes are held, one at least where there are two.

    Copies of one image never straddle: an image of which any copy stays in the rest stays there with all of them.
    """
    rank, size = ranks(part.labels[chosen])
    held = ((rank + 0.5) / size < fraction) | ((rank == 0) & (size > 1) & (fraction > 0))
    keys = content_keys(part)[chosen]
    held &= ~np.isin(keys, keys[~held])
    return chosen[~held], chosen[held]


def limit_to(part: Part, chosen: Indices, count: int | None) -> Indices:
    """At most `count`, the same share of every class, by hash; the choice of a smaller limit lies in a larger one's."""
    if count is None or count >= len(chosen):
        return chosen
    labels = part.labels[chosen]
    classes = len(np.unique(labels))
    if count < classes:
        raise ConfigError(f"train_limit must leave every class an image: got {count}; nearest legal value {classes}")
    rank, size = ranks(labels)
    by_share = np.lexsort((labels, (rank + 0.5) / size, rank > 0))
    return chosen[np.sort(by_share[:count])]


def count_shared(part: Part, other: Part) -> int:
    """Samples of `part` whose exact image also occurs in `other`."""
    return int(np.isin(content_keys(part), content_keys(other)).sum())


def count_repeated(part: Part) -> int:
    """Samples that repeat an image already counted."""
    return len(part) - len(np.unique(content_keys(part)))
