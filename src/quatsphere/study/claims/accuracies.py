"""Claims about the accuracies of the paper's tables and their seeds, decided only at the paper's size."""

from __future__ import annotations

from typing import Literal

from quatsphere.study.claims.claim import Claim, ClaimRule, Number, PaperSize, Requirement
from quatsphere.study.claims.rules import EverySeedBetween, RowMean, near
from quatsphere.study.scales import dataset_title
from quatsphere.study.variants import VARIANTS

POINT = 1.0
"""Margin of every "no effect" in points: "seed variation of up to about one point" (sec:exp-main)."""
SEEDS = {
    "full": (85.9, 86.0),
    "transport_identity": (81.3, 81.7, 82.1),
    "routing_uniform": (85.3, 86.1),
    "routing_absolute": (86.0, 86.5),
    "routing_geometric": (85.4, 86.5),
    "attention_value_identity": (86.2, 86.3, 86.5),
}
"""Rows of table "ablation" with several seeds, and their accuracies (sec:appendix-config)."""


def trained_claim(
    name: str, section: str, statement: str, paper: Number, runs: int | Literal["range", "stated"], rule: ClaimRule,
    *requires: Requirement,
) -> Claim:  # fmt: skip
    """Claim about a number of runs, about a range, or stated without a number of runs."""
    if isinstance(runs, str):
        return Claim(name, section, statement, paper, runs, None, rule, requires=requires)
    return Claim(name, section, statement, paper, "mean" if runs > 1 else "single", runs, rule, requires=requires)


def _accuracy(row: str, paper: float, n: int, section: str = "tab:ablation", dataset: str = "cifar10") -> Claim:
    """Mean accuracy of a row."""
    return trained_claim(
        f"accuracy.{row}" + ("" if dataset == "cifar10" else ".cifar100"), section,
        f'"{VARIANTS[row].title}" reaches {paper} % on {dataset_title(dataset)}', paper, n,
        near(RowMean("test", row, dataset), paper, POINT), PaperSize(row, dataset),
    )  # fmt: skip


def _seeds(row: str, *values: float, section: str = "sec:appendix-config") -> Claim:
    """Accuracies by seed (`sec:appendix-config`), or the range of three seeds that the text prints."""
    listed = section == "sec:appendix-config"
    text = f"has the accuracies {' / '.join(map(str, values))} by seed" if listed else "has seeds between {} and {}"
    return Claim(
        f"seeds.{row}", section, f'"{VARIANTS[row].title}" {text.format(*values)}', values, "range",
        len(values) if listed else 3, EverySeedBetween(row, min(values) - POINT, max(values) + POINT),
        requires=(PaperSize(row),),
    )  # fmt: skip


ACCURACY_CLAIMS: tuple[Claim, ...] = (
    *(_accuracy(*entry) for entry in (
        ("full", 85.9, 2), ("transport_identity", 81.7, 3), ("routing_uniform", 85.7, 2),
        ("routing_absolute", 86.3, 2), ("routing_geometric", 86.0, 2), ("both_off", 64.1, 1),
        ("frozen_random", 66.5, 1), ("attention_value_identity", 86.3, 3),
    )),
    _accuracy("attention", 87.3, 3, "tab:context"),
    _accuracy("flat", 91.1, 3, "tab:context"),
    _accuracy("resnet20", 93.2, 1, "tab:context"),
    _accuracy("flat_value_identity", 90.1, 3, "sec:exp-grid"),
    _accuracy("attention_wide", 68.6, 1, "sec:exp-baseline"),
    _accuracy("beta_warm", 86.1, 1, "sec:exp-routing"),
    *(_accuracy(row, paper, 1, dataset="cifar100") for row, paper in (
        ("full", 60.1), ("transport_identity", 56.0), ("routing_uniform", 59.7), ("attention", 63.4),
        ("attention_value_identity", 62.6),
    )),
    *(_seeds(row, *values) for row, values in SEEDS.items()),
    _seeds("attention", 87.1, 87.5, section="sec:exp-baseline"),
    _seeds("flat", 90.9, 91.3, section="sec:exp-grid"),
    _seeds("flat_value_identity", 90.0, 90.2, section="sec:exp-grid"),
)  # fmt: skip
