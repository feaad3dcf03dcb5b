"""The accuracies of both tables and their seeds: decided at the paper's size only."""

from __future__ import annotations

from quatsphere.study.claims.claim import Claim
from quatsphere.study.claims.needs import PaperSize
from quatsphere.study.claims.rules import Value
from quatsphere.study.claims.rules_by_seed import EverySeed

POINT = 1.0
"""Margin in points of every "no effect": "seed variation of up to about one point" (sec:exp-main)."""


def accuracy(row: str, paper: float, n: int, section: str = "tab:ablation", dataset: str = "cifar10") -> Claim:
    """A table entry: decided at the paper's size only."""
    title = "CIFAR-10" if dataset == "cifar10" else "CIFAR-100"
    return Claim(
        f"accuracy.{row}" + ("" if dataset == "cifar10" else ".cifar100"),
        section,
        f"{row} reaches {paper} % on {title}",
        paper,
        "mean" if n > 1 else "single",
        n,
        Value(row, paper, POINT, dataset=dataset),
        needs=(PaperSize(row, dataset),),
    )


def seeds(row: str, *values: float) -> Claim:
    """The per-seed list of the appendix: the same row, its range."""
    return Claim(
        f"seeds.{row}", "sec:appendix-config", f"{row} by seed: {' / '.join(map(str, values))}", values, "range",
        len(values), EverySeed(row, min(values) - POINT, max(values) + POINT), needs=(PaperSize(row),),
    )  # fmt: skip


def seed_range(row: str, low: float, high: float, section: str) -> Claim:
    """The range of three seeds that the text prints."""
    return Claim(
        f"seeds.{row}", section, f"{row}: seeds between {low} and {high}", (low, high), "range", 3,
        EverySeed(row, low - POINT, high + POINT), needs=(PaperSize(row),),
    )  # fmt: skip


TABLES: tuple[Claim, ...] = (
    # table "ablation", table "context", both data sets
    accuracy("full", 85.9, 2),
    accuracy("transport_identity", 81.7, 3),
    accuracy("routing_uniform", 85.7, 2),
    accuracy("routing_absolute", 86.3, 2),
    accuracy("routing_geometric", 86.0, 2),
    accuracy("both_off", 64.1, 1),
    accuracy("frozen_random", 66.5, 1),
    accuracy("attention_value_identity", 86.3, 3),
    accuracy("attention", 87.3, 3, "tab:context"),
    accuracy("flat", 91.1, 3, "tab:context"),
    accuracy("resnet20", 93.2, 1, "tab:context"),
    accuracy("flat_value_identity", 90.1, 3, "sec:exp-grid"),
    accuracy("attention_wide", 68.6, 1, "sec:exp-baseline"),
    accuracy("beta_warm", 86.1, 1, "sec:exp-routing"),
    accuracy("full", 60.1, 1, dataset="cifar100"),
    accuracy("transport_identity", 56.0, 1, dataset="cifar100"),
    accuracy("routing_uniform", 59.7, 1, dataset="cifar100"),
    accuracy("attention", 63.4, 1, dataset="cifar100"),
    accuracy("attention_value_identity", 62.6, 1, dataset="cifar100"),
    seeds("full", 85.9, 86.0),
    seeds("transport_identity", 81.3, 81.7, 82.1),
    seeds("routing_uniform", 85.3, 86.1),
    seeds("routing_absolute", 86.0, 86.5),
    seeds("routing_geometric", 85.4, 86.5),
    seeds("attention_value_identity", 86.2, 86.3, 86.5),
    seed_range("attention", 87.1, 87.5, "sec:exp-baseline"),
    seed_range("flat", 90.9, 91.3, "sec:exp-grid"),
    seed_range("flat_value_identity", 90.0, 90.2, "sec:exp-grid"),
)
