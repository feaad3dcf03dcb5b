"""What a claim is, what it needs, and what comes out when it is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.datasets import title_of

Verdict = Literal["holds", "fails", "undecided"]
Number = float | tuple[float, ...] | str | None


@dataclass(frozen=True)
class Finding:
    """A verdict with the numbers it rests on."""

    verdict: Verdict
    why: str = ""
    """Why it is undecided, or what was found and on which data."""
    n: int = 0
    ours: Number = None
    interval: tuple[float, float] | None = None


class Rule(Protocol):
    """What decides a claim."""

    def decide(self, evidence: Evidence) -> Finding:
        """The verdict on this evidence."""


class Need(Protocol):
    """A condition on the runs without which a claim cannot be decided."""

    def missing(self, evidence: Evidence) -> str:
        """What is missing, in words; empty if nothing is."""


@dataclass(frozen=True)
class Claim:
    """A quantitative statement of the paper."""

    id: str
    section: str
    """The label of the section, table or figure in the paper."""
    statement: str
    paper: Number
    """The paper's value, in the paper's unit."""
    form: Literal["mean", "single", "range", "stated", "exact", "cited"]
    """What the value is: a mean of seeds, one run, a range, words without a count, arithmetic, or another paper's."""
    n: int | None
    """Runs behind the paper's value, where it says so."""
    rule: Rule
    kind: Literal["static", "trained"] = "trained"
    needs: Sequence[Need] = ()

    def decide(self, evidence: Evidence) -> Finding:
        """The verdict, or what is missing; a data set that stands for the paper's is named."""
        if self.kind == "trained" and not evidence.has(self.dataset):
            return Finding("undecided", f"no {title_of(self.dataset)} cells")
        found = self.rule.decide(evidence)
        if not found.n:
            return found
        missing = "; ".join(text for need in self.needs if (text := need.missing(evidence)))
        if missing:
            return replace(found, verdict="undecided", why=missing)
        used = evidence.dataset(self.dataset)
        note = "" if used == self.dataset else f"judged on {title_of(used)}"
        return replace(found, why="; ".join(filter(None, (found.why, note))))

    @property
    def dataset(self) -> str:
        """The paper's data set that the claim is about."""
        return str(getattr(getattr(self.rule, "quantity", self.rule), "dataset", "cifar10"))

    def to_json(self, found: Finding) -> dict[str, Any]:
        """The claim and its verdict as plain values."""
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
