"""The paper's tables with our numbers beside the paper's and a verdict for each row, and tables beyond the paper.

Every column of accuracies is headed by its data set; the paper's numbers stand only beside the paper's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from quatsphere.study.claims import CLAIMS, decide
from quatsphere.study.claims.evidence import Evidence, collect
from quatsphere.study.claims.rules import Contrast, LiesBetween, RowMean, difference
from quatsphere.study.claims.trained import POINT
from quatsphere.study.length_contrasts import CONTRASTS
from quatsphere.study.plan import CONTROL_ROWS, LAYOUT_ROWS, PRECISION_ROWS, READING_ROWS, TRANSPORT_ROWS
from quatsphere.study.results import CellRecord
from quatsphere.study.statistics import LEVEL, MIN_SEEDS, by_seed, estimate_contrast, mean
from quatsphere.study.table_formats import NONE, Table, format_estimate, format_verdict
from quatsphere.study.variants import STANDS_FOR, VARIANTS, dataset_title

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
BEYOND = (
    *LAYOUT_ROWS,
    *TRANSPORT_ROWS,
    *("positions_frozen", "rounds_none", "pooling_mean", "dropout_none", "auxiliaries_none", "plain"),
    *(*PRECISION_ROWS, *CONTROL_ROWS, *READING_ROWS),
)
INTERACTION = CONTRASTS["interaction"].weights
CROSSED: dict[str, Mapping[str, float]] = {
    "QSV: sphere to plane": difference("qsv_plane", "full"),
    "attention: sphere to plane": difference("flat", "attention"),
    "model x layout (is the plane's gain the same?)": {"flat": 1.0, "attention": -1.0, "qsv_plane": -1.0, "full": 1.0},
    "attention over QSV on the plane": difference("flat", "qsv_plane"),
    "attention over QSV, both with the residual by position":
        difference("attention_resample_geometric", "resample_geometric"),
    "plane over sphere with the residual by position (attention)": difference("flat", "attention_resample_geometric"),
    "plane over sphere with the residual by position (QSV)": difference("qsv_plane", "resample_geometric"),
    "attention over QSV without its asymmetries": difference("attention", "plain"),
    "routing x transport (both off against the additive prediction)": INTERACTION,
}  # fmt: skip
"""Contrasts beyond the paper's tables: question -> weights."""
CITED = {"ResNet-20": 91.3, "ResNet-56": 93.0, "ViT-Lite-7/4": 93.6, "CCT-7/3x1": 96.5}
"""Accuracies on CIFAR-10 that the paper cites from He et al. (2016) and Hassani et al. (2021)."""
EPOCH_CONTRASTS: dict[str, Mapping[str, float]] = {
    "transport -> identity": difference("transport_identity", "full"),
    "routing -> uniform": difference("routing_uniform", "full"),
    "both roles off": difference("both_off", "full"),
    "both off against the additive prediction": INTERACTION,
    "frozen random field": difference("frozen_random", "full"),
    "attention over QSV": difference("attention", "full"),
    "flat lattice over sphere (attention)": difference("flat", "attention"),
    "W_V -> identity (sphere)": difference("attention_value_identity", "attention"),
    "attention at QSV's width over the matched one": difference("attention_wide", "attention"),
}
"""Contrasts of the paper's main statements: question -> weights."""
MAX_EPOCHS = 8
"""Maximum number of epochs shown, evenly spread from the first to the last that all cells have."""


PaperNumbers = dict[tuple[str, str], float]
"""(data set, row) -> a number that the paper prints."""


def paper_numbers() -> tuple[PaperNumbers, PaperNumbers]:
    """The paper's accuracies, and its changes against the reference of a row, from the ledger."""
    values, changes = {}, {}
    for claim in CLAIMS:
        quantity = claim.rule.quantity if isinstance(claim.rule, LiesBetween) else None
        if not isinstance(claim.paper, float):
            continue
        if claim.id.startswith("accuracy.") and isinstance(quantity, RowMean):
            values[quantity.dataset, quantity.row] = claim.paper
        elif isinstance(quantity, Contrast) and quantity.metric == "test":
            row = next(iter(quantity.weights))
            if quantity.weights == difference(row, VARIANTS[row].reference):
                changes[quantity.dataset, row] = claim.paper
    return values, changes


class PaperTables:
    """All tables of a set of finished cells."""

    def __init__(self, records: Sequence[CellRecord]) -> None:
        self.evidence = Evidence(records)
        self.claims = {claim["id"]: claim for claim in decide(CLAIMS, records)}
        self.paper, self.paper_change = paper_numbers()
        self.datasets = sorted({record["dataset"] for record in records}) or ["cifar10"]
        self.main = self.datasets[0]
        """Data set of all tables but the first: CIFAR-10 if it has cells."""

    def all(self) -> list[Table]:
        """All tables: the paper's in its order, then those beyond it."""
        return [
            self._with_verdicts(ABLATION, *self.datasets, name="ablation", title="Kernel ablations"),
            self._context(),
            self._with_verdicts(PROBES, self.main, name="probes", title="Probes, optimisation, robustness"),
            self._beyond(),
            self._crossed(),
            seeds_table(self.evidence.records + self.evidence.diverged),
        ]

    def _with_verdicts(self, rows: Mapping[str, Sequence[str]], *datasets: str, name: str, title: str) -> Table:
        """Rows with their accuracies on every data set and the verdicts on their claims."""
        lines = [(VARIANTS[row].title, *self.accuracies(row, claims, *datasets)) for row, claims in rows.items()]
        return Table(("Variant", *self.accuracy_head(*datasets)), lines, title, name)

    def _context(self) -> Table:
        """Table "context" of the paper; accuracies cited from the literature only beside CIFAR-10."""
        head = ("Model", "parameters", *self.accuracy_head(self.main))
        rows = [
            (VARIANTS[row].title, self.parameters(row), *self.accuracies(row, claims, self.main))
            for row, claims in CONTEXT.items()
        ]
        if self.main == "cifar10":
            rows += [(model, NONE, NONE, NONE, f"{accuracy} (cited)", NONE) for model, accuracy in CITED.items()]
        return Table(head, rows, "Context", "context")

    def _beyond(self) -> Table:
        """Rows that the paper does not have, and whether they are equivalent to their reference."""
        head = ("Variant", dataset_title(self.main), "change", "against", f"within {POINT:g} point")
        titles = {row: (VARIANTS[row].title, VARIANTS[VARIANTS[row].reference].title) for row in BEYOND}
        rows = [
            (title, self.mean(row, self.main), self.change(row, self.main), reference, self.equal(row))
            for row, (title, reference) in titles.items()
        ]
        return Table(head, rows, "Beyond the paper: single rows", "beyond")

    def _crossed(self) -> Table:
        """Contrasts of several rows."""
        head = ("Question", f"{dataset_title(self.main)}, points", "with its own variance", "n")
        samples = self.evidence.samples(self.main, "test")
        rows = []
        for question, weights in CROSSED.items():
            found, own = estimate_contrast(samples, weights), mean(by_seed(samples, weights))
            rows.append(
                (question, format_estimate(found), format_estimate(own), NONE if found is None else str(found.n))
            )
        return Table(head, rows, "Beyond the paper: contrasts", "crossed")

    def accuracy_head(self, *datasets: str) -> tuple[str, ...]:
        """Column headings of `accuracies`."""
        head = []
        for dataset in datasets:
            paper = STANDS_FOR.get(dataset)
            quoted = "paper" if paper == dataset else f"paper, {dataset_title(paper or '')}"
            head += [dataset_title(dataset), "change", *([quoted] if paper else [])]
        return (*head, *(["verdict"] if set(datasets) & set(STANDS_FOR) else []))

    def accuracies(self, row: str, claims: Sequence[str], *datasets: str) -> tuple[str, ...]:
        """Mean and change of a row on every data set, the paper's values, and the verdicts on its claims.

        The paper's values and verdicts stand only beside data sets that represent the paper's.
        """
        cells = []
        for dataset in datasets:
            paper = STANDS_FOR.get(dataset)
            cells += [self.mean(row, dataset), self.change(row, dataset), *([self.quoted(row, paper)] if paper else [])]
        return (*cells, *([self.verdicts(claims)] if set(datasets) & set(STANDS_FOR) else []))

    def mean(self, row: str, dataset: str) -> str:
        """`51.02 (50.1 to 52.0, n = 5)`."""
        found = mean(self.evidence.samples(dataset, "test").get(row, {}))
        if found is None:
            return NONE
        return f"{found.value:.2f} ({found.minimum:.2f} to {found.maximum:.2f}, n = {found.n})"

    def change(self, row: str, dataset: str) -> str:
        """Difference from the row's reference with its interval."""
        reference = VARIANTS[row].reference
        if row == reference:
            return NONE
        return format_estimate(estimate_contrast(self.evidence.samples(dataset, "test"), difference(row, reference)))

    def equal(self, row: str) -> str:
        """`yes` or `no` if one-sided tests decide whether the change is within one point, else `open`.

        `yes` must hold with the pooled variance and with the variance of this difference.
        """
        weights = difference(row, VARIANTS[row].reference)
        found = Contrast(weights, dataset=self.main).estimate(self.evidence)
        own = Contrast(weights, dataset=self.main, own_variance=True).estimate(self.evidence)
        if found is None or own is None:
            return NONE
        if found.n >= MIN_SEEDS and max(found.equivalence(POINT), own.equivalence(POINT)) < LEVEL:
            return "yes"
        return "no" if found.n >= MIN_SEEDS and min(found.below(-POINT), found.above(POINT)) < LEVEL else "open"

    def quoted(self, row: str, dataset: str) -> str:
        """The paper's accuracy and change."""
        value, change = self.paper.get((dataset, row)), self.paper_change.get((dataset, row))
        words = ([] if value is None else [f"{value:.1f}"]) + ([] if change is None else [f"({change:+.1f})"])
        return " ".join(words) or NONE

    def parameters(self, row: str) -> str:
        """Number of parameters, from the records."""
        counts = {record["parameters"] for record in self.evidence.row_records(self.main, row).values()}
        return f"{max(counts):,}" if counts else NONE

    def verdicts(self, claims: Sequence[str]) -> str:
        """Verdicts on the claims of a row."""
        return "; ".join(format_verdict(self.claims[name]) for name in claims) or NONE


def seeds_table(records: Sequence[CellRecord]) -> Table:
    """Accuracy and commit of every cell."""
    head = ("data", "row", "seed", "test accuracy", "commit")
    rows = [
        (r["dataset"], r["variant"], str(r["seed"]), _accuracy(r), (r.get("commit") or NONE)[:12])
        for r in sorted(records, key=lambda r: (r["dataset"], r["variant"], r["seed"]))
    ]
    return Table(head, rows, "Test accuracy by seed", "seeds")


def _accuracy(record: CellRecord) -> str:
    return "diverged" if record["status"] == "diverged" else f"{100 * record['test_accuracy']:.2f}"


def epoch_table(records: Sequence[CellRecord]) -> Table:
    """Contrasts of validation accuracy after several epochs, in points, over the seeds that all rows have."""
    cells = [record for record in records if record["dataset"] == "cifar10" and record["status"] == "finished"]
    count = min((len(record["trajectory"]["val_accuracy"]) for record in cells), default=0)
    epochs = sorted({round(i * (count - 1) / (MAX_EPOCHS - 1)) for i in range(MAX_EPOCHS)}) if count else []

    def accuracy_after(epoch: int, record: CellRecord) -> float | None:
        value = record["trajectory"]["val_accuracy"][epoch]
        return None if value is None else 100 * value

    after = [collect(cells, partial(accuracy_after, epoch)) for epoch in epochs]
    rows = []
    for question, weights in EPOCH_CONTRASTS.items():
        means = (mean(by_seed(samples, weights)) for samples in after)
        rows.append((question, *(NONE if found is None else f"{found.value:+.1f}" for found in means)))
    head = ("Contrast, validation accuracy in points", *(f"epoch {epoch + 1}" for epoch in epochs))
    return Table(head, rows, "Differences by epoch")
