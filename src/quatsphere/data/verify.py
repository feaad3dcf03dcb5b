"""What a copy of a data set is: the numbers `quatsphere data verify` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.data.cifar import channel_means
from quatsphere.data.cifar_files import CIFARS
from quatsphere.data.contents import Progress, fingerprint
from quatsphere.data.load import read_contents
from quatsphere.data.split import count_repeated, count_shared


def verify(
    name: str,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    fit: str = "crop",
    skip_bad: int = 0,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read everything, check everything, and report plain values that json can write.

    `canonical` is True or False for CIFAR-10, and None where no canonical fingerprint is known.
    """
    contents = read_contents(name, root, image_size, fit=fit, skip_bad=skip_bad, cache=cache, progress=progress)
    known = CIFARS[name].fingerprint if name in CIFARS else None
    identity, test = fingerprint(contents), contents.test
    return {
        "name": name,
        "classes": list(contents.classes),
        "shape": list(contents.train.images.shape[1:]),
        "train": len(contents.train),
        "test": 0 if test is None else len(test),
        "fingerprint": identity,
        "canonical": None if known is None else identity == known,
        "channel_means": channel_means(contents),
        "repeated_in_train": count_repeated(contents.train),
        "repeated_in_test": 0 if test is None else count_repeated(test),
        "test_also_in_train": 0 if test is None else count_shared(test, contents.train),
        "notes": list(contents.notes),
    }
