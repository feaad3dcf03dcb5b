"""Claims that trained cells decide. The margin is one point wherever the paper mentions seed noise."""

from __future__ import annotations

from functools import partial
from typing import Literal

from quatsphere.study.claims import rules
from quatsphere.study.claims.rules import Claim, Contrast, RowMean, above, below, costs, difference, equivalent, near
from quatsphere.study.plan import SWEEP_ROWS
from quatsphere.study.variants import VARIANTS, dataset_title

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


def _claim(
    name: str, section: str, statement: str, paper: rules.Number, runs: int | Literal["range", "stated"],
    rule: rules.ClaimRule, *requires: rules.Requirement,
) -> Claim:  # fmt: skip
    """Claim about a number of runs, about a range, or stated without a number of runs."""
    if isinstance(runs, str):
        return Claim(name, section, statement, paper, runs, None, rule, requires=requires)
    return Claim(name, section, statement, paper, "mean" if runs > 1 else "single", runs, rule, requires=requires)


def _accuracy(row: str, paper: float, n: int, section: str = "tab:ablation", dataset: str = "cifar10") -> Claim:
    """Mean accuracy of a row."""
    return _claim(
        f"accuracy.{row}" + ("" if dataset == "cifar10" else ".cifar100"), section,
        f'"{VARIANTS[row].title}" reaches {paper} % on {dataset_title(dataset)}', paper, n,
        near(RowMean("test", row, dataset), paper, POINT), partial(rules.paper_size, row=row, dataset=dataset),
    )  # fmt: skip


def _seeds(row: str, *values: float, section: str = "sec:appendix-config") -> Claim:
    """Accuracies by seed (`sec:appendix-config`), or the range of three seeds that the text prints."""
    listed = section == "sec:appendix-config"
    text = f"has the accuracies {' / '.join(map(str, values))} by seed" if listed else "has seeds between {} and {}"
    return Claim(
        f"seeds.{row}", section, f'"{VARIANTS[row].title}" {text.format(*values)}', values, "range",
        len(values) if listed else 3, partial(rules.seeds_between, min(values) - POINT, max(values) + POINT, row=row),
        requires=(partial(rules.paper_size, row=row),),
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


COLLAPSE_MARGIN = 5.0
"""Margin in points of "both collapses are similar" (64.1 and 66.5)."""
OTHER_CODE = partial(rules.never_met, "not comparable: the paper timed its own code on one RTX A6000")
SHARPNESS = partial(rules.never_met, "open: depends on the start of the field and on how head diversity is averaged")
"""Both determine how sharp routing is; see "Deviations" in docs/paper_map.md."""
ROBUSTNESS_ROWS = (*SWEEP_ROWS, "repulsion_off")
TEN_TIMES = (
    {"transport_identity": 1.0, "routing_uniform": -10.0, "full": 9.0},
    {"transport_identity": 1.0, "routing_uniform": 10.0, "full": -11.0},
)
"""transport - 10 routing and transport + 10 routing: both negative if transport costs ten times |routing|."""
VALUE_ON_BOTH = {"flat_value_identity": 1.0, "flat": -1.0, "attention_value_identity": -1.0, "attention": 1.0}


def _change(row: str, reference: str = "full", metric: str = "test", dataset: str = "cifar10") -> Contrast:
    """row - reference."""
    return Contrast(difference(row, reference), metric, dataset)


def _same(row: str, reference: str = "full", dataset: str = "cifar10", margin: float = POINT) -> rules.LiesBetween:
    """row = reference within the margin."""
    return equivalent(_change(row, reference, dataset=dataset), margin)


def _slower(times: float) -> rules.ClaimRule:
    """QSV trains at least this many times slower than matched attention."""
    return partial(rules.ratio_above, weights=difference("attention", "full"), metric="log_speed", limit=times)


def _entries(metric: str, low: float, high: float, row: str = "full") -> rules.ClaimRule:
    """Every entry of a list metric is in a range."""
    return partial(rules.entries_between, metric, low, high, row=row)


def _best(metric: str, value: float) -> rules.ClaimRule:
    """The best cell of all configurations reaches a value within a point."""
    return partial(rules.best_cell, ("full", *ROBUSTNESS_ROWS), metric, value, POINT)


TRAINED: tuple[Claim, ...] = (
    *ACCURACY_CLAIMS,
    # parts of the kernel
    _claim("transport.cifar10", "sec:exp-ablation", "removing transport costs accuracy (4.3 points)", -4.3, 2,
        below(_change("transport_identity"))),
    _claim("transport.cifar100", "sec:exp-ablation", "removing transport costs accuracy on CIFAR-100 (4.1 points)",
        -4.1, 1, below(_change("transport_identity", dataset="cifar100"))),
    _claim("transport.fit", "sec:exp-ablation", "removing transport lowers augmented training accuracy (81 to 74 %)",
        -7.0, "stated", below(_change("transport_identity", metric="train"))),
    _claim("uniform.cifar10", "sec:exp-ablation", "uniform routing does not change accuracy (-0.2 points)", -0.2, 2,
        _same("routing_uniform")),
    _claim("uniform.cifar100", "sec:exp-ablation",
        "uniform routing does not change accuracy on CIFAR-100 (-0.4 points)", -0.4, 1,
        _same("routing_uniform", dataset="cifar100")),
    _claim("roles.unequal", "sec:exp-ablation", "removing transport costs more than removing routing (4.3 against 0.2)",
        -4.0, 2, below(_change("transport_identity", "routing_uniform"))),
    _claim("roles.unequal.cifar100", "sec:exp-ablation",
        "removing transport costs more than removing routing on CIFAR-100 (4.1 against 0.4)", -3.7, 1,
        below(_change("transport_identity", "routing_uniform", dataset="cifar100"))),
    _claim("roles.order_of_magnitude", "sec:exp-ablation",
        "removing transport costs more than ten times as much as uniform routing", -1.75, 2,
        partial(rules.all_hold, tuple(below(Contrast(weights, own_variance=True)) for weights in TEN_TIMES))),
    _claim("absolute", "tab:ablation", "routing on |Re(r)| does not change accuracy (+0.3 points)", 0.3, 2,
        _same("routing_absolute")),
    _claim("geometric", "tab:ablation", "geometric routing does not change accuracy (+0.0 points)", 0.0, 2,
        _same("routing_geometric")),
    _claim("both_off", "sec:exp-ablation", "accuracy collapses without both transport and routing (-21.8 points)",
        -21.8, 1, below(_change("both_off"))),
    _claim("interaction", "sec:exp-ablation",
        "removing both transport and routing costs more than the sum of removing each (by 17 points)", -17.0, 1,
        below(Contrast({"both_off": 1.0, "transport_identity": -1.0, "routing_uniform": -1.0, "full": 1.0}))),
    _claim("routing_without_transport", "sec:exp-ablation",
        "without transport, removing routing costs accuracy (17 points)", -17.6, 1,
        below(_change("both_off", "transport_identity"))),
    _claim("frozen_random", "sec:exp-ablation", "accuracy collapses with a frozen random field (-19.4 points)", -19.4,
        1, below(_change("frozen_random"))),
    _claim("frozen_like_both_off", "sec:exp-ablation",
        "a frozen random field and the loss of both roles collapse alike, to about 65 %", 2.4, 1,
        _same("frozen_random", "both_off", margin=COLLAPSE_MARGIN)),
    _claim("frozen_identity", "sec:exp-ablation", "a frozen identity field costs accuracy too", None, "stated",
        below(_change("frozen_identity"))),
    # routing
    _claim("entropy", "sec:exp-routing",
        "the normalised routing entropy of every shell stays at about 0.99 (here: at least 0.985)", 0.99, "range",
        _entries("entropy", 0.985, 1.0), SHARPNESS),
    _claim("peak", "sec:exp-routing", "the largest weight of every shell is 1.2 to 1.4 times the uniform weight",
        (1.2, 1.4), "range", _entries("peak", 1.15, 1.45), SHARPNESS),
    _claim("orientation", "sec:exp-routing", "the orientation spread of the shells is 0.9 to 1.8 rad", (0.9, 1.8),
        "range", _entries("orientation", 0.85, 1.85), rules.paper_size),
    _claim("orientation.grows", "sec:exp-routing", "the orientation spread grows from the first shell to the last",
        (0.9, 1.8), "range", above(RowMean("orientation_change")), rules.paper_size),
    _claim("score_spread", "sec:exp-routing", "the spread of the scores is 0.24 to 0.46", (0.24, 0.46), "range",
        _entries("score", 0.235, 0.465), rules.paper_size),
    _claim("beta", "sec:exp-routing", "beta, averaged over heads, is 0.50 to 0.76", (0.50, 0.76), "range",
        _entries("beta", 0.495, 0.765), partial(rules.min_decay, minimum=4.0)),
    _claim("beta.below_prior", "sec:exp-routing", "beta stays at or below the penalty's fixed point of 0.79", 0.79,
        "range", _entries("beta", 0.1, 0.795)),
    _claim("beta.falls", "sec:exp-routing", "beta falls in training", None, "range", below(RowMean("beta_change"))),
    _claim("beta_warm.returns", "sec:exp-routing", "beta returns to 0.52 to 1.16 when it starts at 5", (0.52, 1.16),
        "range", _entries("cross_beta", 0.515, 1.165, row="beta_warm"),
        partial(rules.min_decay, minimum=4.0, row="beta_warm")),
    _claim("beta_warm.accuracy", "sec:exp-routing", "starting beta at 5 does not change accuracy (+0.2 points)", 0.2, 1,
        _same("beta_warm")),
    _claim("beta_frozen.accuracy", "sec:exp-routing", "freezing beta at 5 does not change accuracy (-0.4 points)", -0.4,
        1, _same("beta_frozen")),
    _claim("routing.three_same", "sec:exp-routing", "uniform, learned and sharp routing reach the same accuracy", None,
        "stated", partial(rules.all_equivalent, ("routing_uniform", "beta_frozen"), POINT)),
    # baselines and controls
    _claim("attention_over_qsv", "sec:exp-baseline", "matched attention is more accurate than QSV (+1.4 points)", 1.4,
        2, above(_change("attention", "full"))),
    _claim("flat_over_sphere", "sec:exp-grid", "attention is more accurate on the flat lattice (+3.8 points)", 3.8, 3,
        above(_change("flat", "attention"))),
    _claim("flat_over_sphere.ranges", "sec:exp-grid",
        "the seed ranges of attention on the flat lattice and on the sphere do not overlap", None, "range",
        partial(rules.ranges_apart, row="flat", reference="attention")),
    _claim("resnet_over_flat", "sec:exp-grid",
        "ResNet-20 is more accurate than attention on the flat lattice (+2.1 points)", 2.1, 1,
        above(_change("resnet20", "flat"))),
    _claim("resnet_over_attention", "tab:context",
        "ResNet-20 is more accurate than attention on the sphere (+5.9 points)", 5.9, 1,
        above(_change("resnet20", "attention"))),
    _claim("resnet_over_qsv", "tab:context", "ResNet-20 is more accurate than QSV (+7.3 points)", 7.3, 1,
        above(_change("resnet20", "full"))),
    _claim("flat_closes_most", "sec:exp-error",
        "the flat lattice closes more than half of the gap between attention and ResNet-20", 0.85, 1,
        above(Contrast({"flat": 1.0, "attention": -0.5, "resnet20": -0.5}))),
    _claim("value.sphere", "sec:exp-grid",
        "replacing W_V by the identity costs attention accuracy on the sphere (1.0 point)", -1.0, 3,
        costs(_change("attention_value_identity", "attention"), 1.0)),
    _claim("value.plane", "sec:exp-grid",
        "replacing W_V by the identity costs attention accuracy on the plane (1.0 point)", -1.0, 3,
        costs(_change("flat_value_identity", "flat"), 1.0)),
    _claim("value.cifar100", "tab:ablation",
        "replacing W_V by the identity costs attention accuracy on CIFAR-100 (0.8 points)", -0.8, 1,
        costs(_change("attention_value_identity", "attention", dataset="cifar100"), 0.8)),
    _claim("value.same_on_both", "sec:exp-grid", "replacing W_V by the identity costs the same on sphere and plane",
        0.0, 3, equivalent(Contrast(VALUE_ON_BOTH), POINT / 2)),
    _claim("kernel_factor", "sec:exp-grid",
        "losing the value transform costs QSV more than attention (4.3 against 1.0 points)", -3.3, 2,
        below(Contrast({"transport_identity": 1.0, "full": -1.0, "attention_value_identity": -1.0, "attention": 1.0}))),
    _claim("wide", "sec:exp-baseline",
        "attention at QSV's width is less accurate than matched attention (-18.7 points)", -18.7, 1,
        below(_change("attention_wide", "attention"))),
    _claim("speed.slower", "sec:exp-baseline", "QSV trains at least 3.3 times slower than matched attention", 3.3, 1,
        _slower(3.3), OTHER_CODE),
    _claim("speed.compiled", "sec:exp-baseline", "QSV trains about 11 times slower than attention, both compiled", 11.0,
        1, _slower(10.0), OTHER_CODE),
    _claim("speed.qsv", "sec:appendix-config", "compiled QSV trains at 470 images/s", 470.0, 1,
        near(RowMean("speed", "full"), 470.0, 47.0), OTHER_CODE),
    _claim("speed.attention", "sec:appendix-config", "compiled attention trains at 5350 images/s", 5350.0, 1,
        near(RowMean("speed", "attention"), 5350.0, 535.0), OTHER_CODE),
    _claim("speed.attention_eager", "sec:appendix-config", "attention without compilation trains at 1550 images/s",
        1550.0, 1, near(RowMean("speed", "attention"), 1550.0, 155.0), OTHER_CODE),
    # trainability, optimisation and geometry
    _claim("loss.falls", "sec:exp-main", "the training loss falls in nearly every epoch (here: in nine of ten)", None,
        "range", above(RowMean("falling"), 0.9)),
    _claim("val_tracks_train", "sec:exp-main",
        "validation accuracy follows augmented training accuracy (here: correlation above 0.9)", None, "range",
        above(RowMean("tracking"), 0.9)),
    _claim("best", "sec:exp-main", "the best run of all configurations reaches 86.9 %", 86.9, 1,
        _best("test", 86.9), rules.paper_size),
    _claim("best.val", "sec:exp-main", "the best validation accuracy of that run is 87.0 %", 87.0, 1,
        _best("val", 87.0), rules.paper_size),
    _claim("seed_spread", "sec:exp-main", "seeds of a row differ by up to about one point (here: at most 1.5)", 1.0,
        "range", partial(rules.seed_spread, tuple(SEEDS), 1.5), rules.paper_size),
    _claim("robust", "sec:exp-main",
        "accuracy stays between 85.7 and 86.9 % over learning rates, quaternion steps and repulsion", (85.7, 86.9),
        "range", partial(rules.all_equivalent, ROBUSTNESS_ROWS, 1.2)),
    _claim("constant_rate", "sec:exp-main", "a constant learning rate costs about one point", -1.0, "stated",
        below(_change("schedule_constant"))),
    _claim("annealed_freezes", "sec:training",
        "annealing the quaternion learning rate freezes the field early (here: it ends nearer to its start)", None,
        "stated", below(_change("quaternion_annealed", metric="drift"))),
    _claim("bound.stability", "sec:exp-opt", "training is less stable without the bound on the perturbation", None,
        "stated", partial(rules.less_stable, row="bound_none")),
    _claim("zero_init.stability", "sec:exp-opt", "training is less stable when the perturbation does not start at zero",
        None, "stated", partial(rules.less_stable, row="zero_init_off")),
    _claim("adam_smoother", "sec:exp-opt", "Adam in su(2) has smoother loss curves than AdamW with renormalisation",
        None, "stated", above(_change("quaternion_adamw", "full", "roughness")),
        partial(rules.min_epochs, minimum=12, row="quaternion_adamw")),
    _claim("repulsion.coverage", "sec:exp-opt", "without repulsion vertices concentrate within a dozen epochs", None,
        "stated",
        partial(rules.all_hold, (above(RowMean("concentration", "repulsion_off")),
                                 above(_change("repulsion_off", "full", "concentration")))),
        partial(rules.min_epochs, minimum=12, row="repulsion_off")),
    _claim("repulsion.accuracy", "sec:exp-opt", "removing repulsion does not lower validation accuracy", 0.0, "stated",
        above(_change("repulsion_off", "full", "val"), -POINT)),
    _claim("positions.interior", "sec:exp-opt",
        "interior vertices move very little (here: less than a quarter of their spacing)", None, "range",
        below(RowMean("interior"), 0.25)),
    _claim("graph.metrics_trained", "sec:connectivity",
        "Euclidean and angular distance select the same neighbours after training", 1.0, "range",
        _entries("agreement", 1.0, 1.0)),
    # errors
    _claim("classes.structure", "sec:exp-error",
        "automobile, truck, ship and frog are easier on average than cat, bird, dog and deer", None, "stated",
        above(RowMean("class_gap"))),
    _claim("classes.cat", "sec:exp-error", "cat is the hardest class", None, "stated", below(RowMean("cat_gap"))),
    _claim("classes.easiest", "sec:exp-error", "automobile, truck, ship and frog are the four easiest classes", None,
        "stated", above(RowMean("easiest_gap"))),
    _claim("classes.weakest", "sec:exp-error", "cat, bird, dog and deer are the four hardest classes", None, "stated",
        below(RowMean("weakest_gap"))),
    _claim("classes.stable", "sec:exp-error",
        "the order of the classes is stable across runs (here: rank correlation above 0.7)", None, "stated",
        partial(rules.stable_class_order, 0.7)),
    _claim("clean_train", "sec:exp-error",
        "accuracy on training images without augmentation is 95.7 % where test accuracy is 86.5 %", 95.7, 1,
        near(RowMean("clean_train"), 95.7, POINT), rules.paper_size),
    _claim("clean_gap", "sec:exp-error",
        "test accuracy is about nine points below that on training images without augmentation", 9.2, 1,
        near(RowMean("clean_gap"), 9.2, 1.5), rules.paper_size),
    _claim("clean_gap.generalisation", "sec:exp-error",
        "more is lost from training to test images than by underfitting (9.2 against 4.3 points)", 4.9, 1,
        above(RowMean("generalisation")), rules.paper_size),
    _claim("clean_train.resnet20", "sec:exp-error", "comparable ResNets reach nearly 100 % training accuracy", 100.0,
        "stated", above(RowMean("clean_train", "resnet20"), 99.0), partial(rules.paper_size, row="resnet20")),
)  # fmt: skip
