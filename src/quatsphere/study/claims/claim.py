"""Claims, the requirements that a results folder must meet before they are decided, and their verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from quatsphere.study.claims.evidence import Evidence, decay_sum
from quatsphere.study.plan import base_settings
from quatsphere.study.results import CellRecord
from quatsphere.study.statistics import Verdict
from quatsphere.study.variants import SCALES, dataset_title, find_variant
from quatsphere.train.provenance import MAY_CHANGE

Number = float | tuple[float, ...] | str | None
NOT_SIZE = MAY_CHANGE | {"train.seed", "model.budget"}
"""Settings that do not count when a cell is compared with the paper's size."""


@dataclass(frozen=True)
class Finding:
    """A verdict with the numbers that support it."""

    verdict: Verdict
    why: str = ""
    """Reason for an undecided verdict, or a remark."""
    n: int = 0
    ours: Number = None
    interval: tuple[float, float] | None = None


class ClaimRule(Protocol):
    """Decides a claim."""

    def decide(self, evidence: Evidence) -> Finding:
        """Return the verdict on this evidence."""


class Requirement(Protocol):
    """A condition on the cells without which a claim stays undecided."""

    def missing(self, evidence: Evidence) -> str:
        """Describe what is missing; empty if the condition is met."""


@dataclass(frozen=True)
class Claim:
    """A quantitative statement of the paper."""

    id: str
    section: str
    """Label of the section, table or figure in the paper."""
    statement: str
    paper: Number
    """The paper's value, in the paper's unit."""
    form: Literal["mean", "single", "range", "stated", "exact"]
    """Kind of the paper's value: mean of seeds, single run, range, statement without a count, or arithmetic."""
    n: int | None
    """Number of runs behind the paper's value, if stated."""
    rule: ClaimRule
    kind: Literal["static", "trained"] = "trained"
    requires: Sequence[Requirement] = ()

    def decide(self, evidence: Evidence) -> Finding:
        """Apply the rule; undecided if there are no cells or a requirement is not met."""
        if self.kind == "trained" and not evidence.has_cells(self.dataset):
            return Finding("undecided", f"no {dataset_title(self.dataset)} cells")
        found = self.rule.decide(evidence)
        if not found.n:
            return found
        missing = "; ".join(text for requirement in self.requires if (text := requirement.missing(evidence)))
        if missing:
            return replace(found, verdict="undecided", why=missing)
        used = evidence.available_dataset(self.dataset)
        remark = "" if used == self.dataset else f"judged on {dataset_title(used)}"
        return replace(found, why="; ".join(filter(None, (found.why, remark))))

    @property
    def dataset(self) -> str:
        """The paper's data set that the claim is about."""
        return str(getattr(getattr(self.rule, "quantity", self.rule), "dataset", "cifar10"))

    def to_json(self, found: Finding) -> dict[str, Any]:
        """Return the claim and its verdict as plain values."""
        return {
            "id": self.id,
            "kind": self.kind,
            "section": self.section,
            "statement": self.statement,
            "form": self.form,
            "verdict": found.verdict,
            "why": found.why,
            "n": found.n,
            "ours": found.ours,
            "paper": self.paper,
            "paper_n": self.n,
            "interval": found.interval,
        }


def decide(claims: Iterable[Claim], records: Iterable[CellRecord]) -> list[dict[str, Any]]:
    """Decide all claims on the finished cells; see `Claim.to_json` for the fields."""
    evidence = Evidence(records)
    return [claim.to_json(claim.decide(evidence)) for claim in claims]


@dataclass(frozen=True)
class PaperSize:
    """The cells of a row have the paper's model, data and length."""

    row: str = "full"
    dataset: str = "cifar10"

    def missing(self, evidence: Evidence) -> str:
        """Compare every setting that the row does not change with the paper's."""
        variant = find_variant(self.row)
        paper = base_settings(SCALES["paper"], self.dataset, variant.model)
        settings = [record["config"] for record in evidence.row_records(self.dataset, self.row).values()]
        compared = [key for key in paper if key not in NOT_SIZE and key not in variant.changes]
        same = all(each.get(key) == paper[key] for each in settings for key in compared)
        is_papers = evidence.available_dataset(self.dataset) == self.dataset
        return "" if settings and same and is_papers else "needs the paper's size"


@dataclass(frozen=True)
class MinDecay:
    """Weight decay had time to act: the sum of learning rate x weight decay over the steps reaches a minimum."""

    minimum: float
    row: str = "full"

    def missing(self, evidence: Evidence) -> str:
        """Compare with the cell that has the smallest sum."""
        smallest = min(map(decay_sum, evidence.row_records("cifar10", self.row).values()), default=0.0)
        return "" if smallest >= self.minimum else f"needs sum of lr * wd >= {self.minimum:g}, has {smallest:.2g}"


@dataclass(frozen=True)
class MinEpochs:
    """Every cell of a row trained for a minimum number of epochs."""

    minimum: int
    row: str = "full"

    def missing(self, evidence: Evidence) -> str:
        """Compare with the shortest cell."""
        records = evidence.row_records("cifar10", self.row).values()
        shortest = min((record["epochs"] for record in records), default=0)
        return "" if shortest >= self.minimum else f"needs {self.minimum} epochs, has {shortest}"


@dataclass(frozen=True)
class NeverMet:
    """A condition that no results folder can meet, with the reason."""

    reason: str

    def missing(self, evidence: Evidence) -> str:
        """Return the reason."""
        return self.reason
