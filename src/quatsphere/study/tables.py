"""The paper's tables with our numbers beside the paper's, and a verdict for every row; rows are plain strings.

Every column of accuracies is headed by its data set; the paper's numbers stand only beside the paper's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.claims.evidence import Evidence
from quatsphere.study.claims.ledger_tables import POINT
from quatsphere.study.claims.rules import Contrast, Value, difference
from quatsphere.study.datasets import STANDS_FOR, title_of
from quatsphere.study.statistics import LEAST, LEVEL, by_seed, contrast, mean
from quatsphere.study.variants import VARIANTS

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A title, a head and rows."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


ABLATION = {
    "full": (),
    "transport_identity": ("transport.cifar10", "transport.cifar100"),
    "routing_uniform": ("uniform.cifar10", "uniform.cifar100"),
    "routing_absolute": ("absolute",),
    "routing_geometric": ("geometric",),
    "both_off": ("both_off",),
    "frozen_random": ("frozen_random",),
    "attention_value_identity": ("value.sphere", "value.cifar100"),
}
CONTEXT = {
    "attention": ("attention_over_qsv",),
    "flat": ("flat_over_sphere",),
    "flat_value_identity": ("value.plane",),
    "resnet20": ("resnet_over_flat",),
    "attention_wide": ("wide",),
    "full": (),
}
PROBES = {
    "beta_warm": ("beta_warm.accuracy",),
    "beta_frozen": ("beta_frozen.accuracy",),
    "schedule_constant": ("constant_rate",),
    "quaternion_adamw": ("adam_smoother",),
    "quaternion_annealed": ("annealed_freezes",),
    "repulsion_off": ("repulsion.accuracy",),
    "bound_none": ("bound.stability",),
    "zero_init_off": ("zero_init.stability",),
    "lr_half": (),
    "lr_double": (),
    "quaternion_lr_low": (),
    "quaternion_lr_high": (),
    "repulsion_strong": (),
}
BEYOND = {
    "qsv_plane": "full",
    "resample_geometric": "full",
    "attention_resample_geometric": "attention",
    "field_static": "full",
    "transport_one_sided": "full",
    "transport_projected": "full",
    "uniform_projected": "full",
    "frozen_identity": "full",
    "positions_frozen": "full",
    "rounds_none": "full",
    "pooling_mean": "full",
    "dropout_none": "full",
    "auxiliaries_none": "full",
    "plain": "full",
    "bf16": "full",
    "attention_bf16": "attention",
    "transport_lift": "full",
    "transport_lower": "full",
    "both_off_mixed": "both_off",
    "attention_uniform": "attention",
    "stencil_pitch": "full",
    "network_per_shell": "full",
    "inner_skip": "full",
    "pooling_per_head": "full",
    "self_excluded": "full",
}
CROSSED = {
    "QSV: sphere to plane": {"qsv_plane": 1.0, "full": -1.0},
    "attention: sphere to plane": {"flat": 1.0, "attention": -1.0},
    "model x layout (is the plane's gain the same?)": {"flat": 1.0, "attention": -1.0, "qsv_plane": -1.0, "full": 1.0},
    "attention over QSV on the plane": {"flat": 1.0, "qsv_plane": -1.0},
    "attention over QSV, both with the residual by position": {
        "attention_resample_geometric": 1.0,
        "resample_geometric": -1.0,
    },
    "plane over sphere with the residual by position (attention)": {"flat": 1.0, "attention_resample_geometric": -1.0},
    "plane over sphere with the residual by position (QSV)": {"qsv_plane": 1.0, "resample_geometric": -1.0},
    "attention over QSV without its asymmetries": {"attention": 1.0, "plain": -1.0},
    "routing x transport (both off against the additive prediction)": {
        "both_off": 1.0,
        "transport_identity": -1.0,
        "routing_uniform": -1.0,
        "full": 1.0,
    },
}
"""Contrasts beyond the paper's tables: question -> weights."""
NONE = "-"


def paper_values() -> dict[tuple[str, str], float]:
    """(data set, row) -> the paper's accuracy, from the ledger."""
    rules = [claim.rule for claim in CLAIMS if claim.id.startswith("accuracy.")]
    return {(rule.dataset, rule.row): rule.value for rule in rules if isinstance(rule, Value)}


def paper_changes() -> dict[tuple[str, str], float]:
    """(data set, row) -> the change against its reference that the paper prints, from the ledger."""
    found = {}
    for claim in CLAIMS:
        quantity = getattr(claim.rule, "quantity", None)
        if isinstance(quantity, Contrast) and quantity.metric == "test" and isinstance(claim.paper, float):
            row = next(iter(quantity.weights))
            if quantity.weights == difference(row, VARIANTS[row].reference):
                found[quantity.dataset, row] = claim.paper
    return found


class Tables:
    """All tables of a set of finished cells."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.evidence = Evidence(records)
        self.claims = {claim["id"]: claim for claim in decide(CLAIMS, records)}
        self.paper, self.paper_change = paper_values(), paper_changes()
        self.datasets = sorted({record["dataset"] for record in records}) or ["cifar10"]
        self.main = self.datasets[0]
        """The data set of all tables but the first: CIFAR-10 where it has cells."""

    def all(self) -> list[Table]:
        """In the order of the paper, then beyond it."""
        return [self.ablation(), self.context(), self.probes(), self.beyond(), self.crossed(), self.seeds()]

    def ablation(self) -> Table:
        """Table "ablation": every data set that has cells."""
        head = ("Variant", *self.accuracy_head(*self.datasets))
        rows = [
            (VARIANTS[row].title, *self.accuracies(row, claims, *self.datasets)) for row, claims in ABLATION.items()
        ]
        return Table("ablation", "Kernel ablations", head, tuple(rows))

    def context(self) -> Table:
        """Table "context", with the literature's rows beside the paper's data set."""
        head = ("Model", "parameters", *self.accuracy_head(self.main))
        rows = [
            (VARIANTS[row].title, self.parameters(row), *self.accuracies(row, claims, self.main))
            for row, claims in CONTEXT.items()
        ]
        cited = [claim for name, claim in self.claims.items() if name.startswith("cited.")]
        if self.main == "cifar10":
            rows += [
                (claim["statement"].rsplit(" ", 2)[0], NONE, NONE, NONE, f"{claim['paper']} (cited)", NONE)
                for claim in cited
            ]
        return Table("context", "Context", head, tuple(rows))

    def probes(self) -> Table:
        """Probes of beta, optimiser arms and the sweep, all against the full model."""
        head = ("Variant", *self.accuracy_head(self.main))
        rows = [(VARIANTS[row].title, *self.accuracies(row, claims, self.main)) for row, claims in PROBES.items()]
        return Table("probes", "Probes, optimisation, robustness", head, tuple(rows))

    def beyond(self) -> Table:
        """Rows the paper never ran, and whether two one-sided tests call them equal to their reference."""
        head = ("Variant", title_of(self.main), "change", "against", f"within {POINT:g} point")
        rows = [
            (
                VARIANTS[row].title,
                self.mean(row, self.main),
                self.change(row, self.main),
                VARIANTS[reference].title,
                self.equal(row, reference),
            )
            for row, reference in BEYOND.items()
        ]
        return Table("beyond", "Beyond the paper: single rows", head, tuple(rows))

    def crossed(self) -> Table:
        """Contrasts of several rows."""
        head = ("Question", f"{title_of(self.main)}, points", "with its own variance", "n")
        samples = self.evidence.samples(self.main, "test")
        rows = []
        for question, weights in CROSSED.items():
            found = contrast(samples, weights)
            own = mean(by_seed(samples, weights))
            rows.append((question, spell(found), spell(own), NONE if found is None else str(found.n)))
        return Table("crossed", "Beyond the paper: contrasts", head, tuple(rows))

    def accuracy_head(self, *datasets: str) -> tuple[str, ...]:
        """Columns of `accuracies`; the paper's numbers and verdicts only beside data that stand for the paper's."""
        head = []
        for dataset in datasets:
            paper = STANDS_FOR.get(dataset)
            quoted = "paper" if paper == dataset else f"paper, {title_of(paper or '')}"
            head += [title_of(dataset), "change", *([quoted] if paper else [])]
        return (*head, *(["verdict"] if set(datasets) & set(STANDS_FOR) else []))

    def accuracies(self, row: str, claims: Sequence[str], *datasets: str) -> tuple[str, ...]:
        """Mean and change of a row on every data set, the paper's beside, and the verdicts on its claims."""
        cells = []
        for dataset in datasets:
            paper = STANDS_FOR.get(dataset)
            cells += [self.mean(row, dataset), self.change(row, dataset), *([self.quoted(row, paper)] if paper else [])]
        return (*cells, *([self.verdicts(claims)] if set(datasets) & set(STANDS_FOR) else []))

    def seeds(self) -> Table:
        """Every finished cell."""
        return seeds_table(self.evidence.records + self.evidence.diverged)

    def mean(self, row: str, dataset: str) -> str:
        """`51.02 (50.1 to 52.0, n = 5)`."""
        found = mean(self.evidence.samples(dataset, "test").get(row, {}))
        if found is None:
            return NONE
        return f"{found.value:.2f} ({found.least:.2f} to {found.most:.2f}, n = {found.n})"

    def change(self, row: str, dataset: str) -> str:
        """The difference to the row's reference with its interval."""
        reference = VARIANTS[row].reference
        if row == reference:
            return NONE
        return spell(contrast(self.evidence.samples(dataset, "test"), difference(row, reference)))

    def equal(self, row: str, reference: str) -> str:
        """Within the ledger's margin: yes or no by one-sided tests, else open; yes with the row's own variance too."""
        weights = difference(row, reference)
        found = Contrast(weights, dataset=self.main).estimate(self.evidence)
        own = Contrast(weights, dataset=self.main, common=True).estimate(self.evidence)
        if found is None or own is None:
            return NONE
        if found.n >= LEAST and max(found.equivalence(POINT), own.equivalence(POINT)) < LEVEL:
            return "yes"
        return "no" if found.n >= LEAST and min(found.below(-POINT), found.above(POINT)) < LEVEL else "open"

    def quoted(self, row: str, dataset: str) -> str:
        """The paper's accuracy and change."""
        value, change = self.paper.get((dataset, row)), self.paper_change.get((dataset, row))
        words = ([] if value is None else [f"{value:.1f}"]) + ([] if change is None else [f"({change:+.1f})"])
        return " ".join(words) or NONE

    def parameters(self, row: str) -> str:
        """As the cells counted them."""
        counts = {record["parameters"] for record in self.evidence.of(self.main, row).values()}
        return f"{max(counts):,}" if counts else NONE

    def verdicts(self, claims: Sequence[str]) -> str:
        """One verdict per claim of the row."""
        return "; ".join(spell_verdict(self.claims[name]) for name in claims) or NONE


def seeds_table(records: Sequence[Record]) -> Table:
    """Every finished cell, a line each."""
    head = ("data", "row", "seed", "test accuracy", "commit")
    rows = [
        (r["dataset"], r["variant"], str(r["seed"]), _accuracy(r), (r.get("commit") or NONE)[:12])
        for r in sorted(records, key=lambda r: (r["dataset"], r["variant"], r["seed"]))
    ]
    return Table("seeds", "Test accuracy by seed", head, tuple(rows))


def spell_verdict(claim: Mapping[str, Any]) -> str:
    """holds, fails or undecided, with the reason or note in brackets."""
    return f"{claim['verdict']} ({claim['why']})" if claim["why"] else str(claim["verdict"])


def spell(found: Any) -> str:
    """`-3.1 [-3.6, -2.5]`."""
    if found is None:
        return NONE
    interval = found.interval()
    return f"{found.value:+.2f}" + (f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else "")


def _accuracy(record: Record) -> str:
    return "diverged" if record["status"] == "diverged" else f"{100 * record['test_accuracy']:.2f}"
