"""Sentences of the results page: how long was trained, what is seen of a statement, what the ledger counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quatsphere.study.claims import Claim
from quatsphere.study.claims.evidence import ACCURACIES, Evidence
from quatsphere.study.claims.needs import PaperSize
from quatsphere.study.claims.rules import Above, Below, Contrast, Costs, NoEffect
from quatsphere.study.results import Results
from quatsphere.study.scales import TRAIN_IMAGES
from quatsphere.study.statistics import mean

Found = Mapping[str, Any]
"""A claim with its verdict, as `Claim.to_json` writes it."""
FLOOR = "linear.json"
"""What benchmarks/linear_tokens.py prints for the training images of the cells, beside them."""
AT_PAPER_SIZE = {"holds": "holds", "fails": "fails", "undecided": "undecided"}
AT_THIS_LENGTH = {"holds": "same direction", "fails": "not seen at this length", "undecided": "undecided"}
"""verdict -> word for a shorter study, whose differences were still growing when its runs ended."""


def is_short(evidence: Evidence) -> bool:
    """Whether the cells are not of the paper's size."""
    return bool(PaperSize().missing(evidence))


def images_seen(record: Mapping[str, Any]) -> int:
    """Training images times epochs."""
    limit, count = record["config"].get("data.max_train_images"), TRAIN_IMAGES[record["dataset"]]
    return int(record["epochs"]) * (count if limit is None else min(limit, count))


def headline(results: Results, evidence: Evidence, claims: Sequence[Found]) -> str:
    """The length of the runs, the accuracy they reach, that of a linear classifier, and what is reproduced."""
    full = mean(evidence.samples("cifar10", "test").get("full", {}))
    if full is None:
        return "No cell of the full model is finished."
    seen = sorted({images_seen(record) for record in evidence.of("cifar10", "full").values()})
    images = " or ".join(f"{count:,}" for count in seen)
    path = results.path / FLOOR
    floor = json.loads(path.read_text(encoding="utf-8"))["test"] if path.is_file() else None
    linear = "" if floor is None else f" and softmax regression on the same samples on {100 * floor:.1f} %"
    accuracies = {claim["id"]: claim for claim in claims if claim["id"].startswith("accuracy.")}
    paper = accuracies["accuracy.full"]["paper"]
    return (
        f"Measured after {images} images, when QSV is right on {full.value:.1f} % of the test images (the paper: "
        f"{paper} %){linear}. {_reproduced([claim['verdict'] for claim in accuracies.values()])}"
    )


def _reproduced(verdicts: Sequence[str]) -> str:
    count = verdicts.count("holds")
    if not count:
        return "No accuracy of the paper has been reproduced yet."
    return f"{count} of the paper's {len(verdicts)} accuracies are reproduced."


def spell_seen(claim: Claim, found: Found, short: bool) -> str:
    """A verdict in words: of a study that is not of the paper's size only the direction, the size and the margin."""
    verdict = str(found["verdict"])
    if not short:
        return AT_PAPER_SIZE[verdict]
    if isinstance(claim.rule, NoEffect) and verdict == "holds":
        return str(found["why"]) or f"within {claim.rule.spell_margin()} of 0"
    return ", ".join(filter(None, (AT_THIS_LENGTH[verdict], spell_size(claim, found).removeprefix("same sign, "))))


def spell_size(claim: Claim, found: Found) -> str:
    """`same sign, 0.36 times the paper's size`, for differences of accuracies that the paper gives in points."""
    quantity = getattr(claim.rule, "quantity", None)
    if not (isinstance(claim.rule, Below | Above | Costs) and isinstance(quantity, Contrast)):
        return ""
    interval, paper = found["interval"], found["paper"]
    if quantity.metric not in ACCURACIES or not paper or interval is None or found["verdict"] == "undecided":
        return ""
    if interval[0] <= 0 <= interval[1]:
        return "no sign shown"
    ratio = found["ours"] / paper
    return "opposite sign" if ratio < 0 else f"same sign, {ratio:.2f} times the paper's size"


def spell_counts(claims: Sequence[Claim], found: Sequence[Found]) -> str:
    """How many statements of which kind there are, and the verdicts of those about trained models."""
    verdicts = [each["verdict"] for each in found if each["kind"] == "trained"]
    holds, fails, undecided = (verdicts.count(verdict) for verdict in AT_PAPER_SIZE)
    sums = sum(claim.id.startswith("sum.") for claim in claims)
    cited = sum(claim.form == "cited" for claim in claims)
    rest = len(claims) - len(verdicts) - sums - cited
    return (
        f"{len(verdicts)} statements of the ledger are about trained models: with these cells {holds} hold, {fails} do "
        f"not and {undecided} are undecided. The other {rest + sums + cited} need no training: {rest} sizes and "
        f"properties of the model at its start, {sums} sums of the numbers that the paper prints, {cited} quotations "
        "of other papers."
    )
