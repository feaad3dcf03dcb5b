"""The data sets of a study: their titles, and which of the paper's data sets each may stand for."""

from __future__ import annotations

TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cifar100-part": "CIFAR-100 part"}
"""Names in headings; every other data set is called by its name."""
STANDS_FOR = {"cifar10": "cifar10", "cifar100": "cifar100", "cifar100-part": "cifar100"}
"""data set -> the paper's data set whose claims its cells may decide, best first; no other data set decides any."""


def title_of(dataset: str) -> str:
    """Name of a data set in headings."""
    return TITLES.get(dataset, dataset)
