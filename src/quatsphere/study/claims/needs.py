"""What a claim needs of the runs: the paper's size, enough decay, enough epochs, a GPU, a point that is settled."""

from __future__ import annotations

from dataclasses import dataclass

from quatsphere.study.claims.evidence import METRICS, Evidence
from quatsphere.study.plan import base_settings
from quatsphere.study.scales import SCALES
from quatsphere.study.variants import find_variant
from quatsphere.train.provenance import MAY_CHANGE

FREE = MAY_CHANGE | {"train.seed", "model.budget"}
"""Settings that do not belong to the size."""


@dataclass(frozen=True)
class PaperSize:
    """Cells with the paper's model, data and length."""

    row: str = "full"
    dataset: str = "cifar10"

    def missing(self, evidence: Evidence) -> str:
        """Whether a setting differs from the paper's that the row does not change."""
        variant = find_variant(self.row)
        paper = base_settings(SCALES["paper"], self.dataset, variant.model)
        settings = [record["config"] for record in evidence.of(self.dataset, self.row).values()]
        asked = [key for key in paper if key not in FREE and key not in variant.changes]
        same = all(each.get(key) == paper[key] for each in settings for key in asked)
        return "" if settings and same and evidence.dataset(self.dataset) == self.dataset else "needs the paper's size"


@dataclass(frozen=True)
class Decay:
    """Enough weight decay in all for it to act: Σ lr * wd."""

    least: float
    row: str = "full"

    def missing(self, evidence: Evidence) -> str:
        """How much there is."""
        values = [METRICS["decay"](record) or 0.0 for record in evidence.of("cifar10", self.row).values()]
        have = min(values, default=0.0)
        return "" if have >= self.least else f"needs sum of lr * wd >= {self.least:g}, has {have:.2g}"


@dataclass(frozen=True)
class Epochs:
    """Enough epochs."""

    least: int
    row: str = "full"

    def missing(self, evidence: Evidence) -> str:
        """How many there are."""
        have = min((record["epochs"] for record in evidence.of("cifar10", self.row).values()), default=0)
        return "" if have >= self.least else f"needs {self.least} epochs, has {have}"


@dataclass(frozen=True)
class Gpu:
    """The paper's hardware: speeds on it are not speeds here."""

    name: str = "RTX A6000"

    def missing(self, evidence: Evidence) -> str:
        """Always: other code on another machine has other speeds."""
        return f"not comparable: the paper timed its own code on one {self.name}"


@dataclass(frozen=True)
class Open:
    """A point that the paper leaves open and that decides the answer by itself."""

    point: str

    def missing(self, evidence: Evidence) -> str:
        """Always: no run settles what the paper meant."""
        return f"open: depends on {self.point}"
