"""Claims that trained cells decide: margins are a point where the paper speaks of seed noise.

Margins and rules stood here before the first run and were amended four times since, each time with results known:
docs/study.md lists what changed, when, and how many cells there were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quatsphere.study.claims.claim import Claim, Need, Number, Rule
from quatsphere.study.claims.ledger_tables import POINT, TABLES
from quatsphere.study.claims.needs import Decay, Epochs, Gpu, Open, PaperSize
from quatsphere.study.claims.rules import (
    Above,
    All,
    AllNoEffect,
    Below,
    Contrast,
    Costs,
    Faster,
    NoEffect,
    NotWorse,
    RowMean,
    Unstable,
    Value,
    difference,
)
from quatsphere.study.claims.rules_by_seed import Best, Disjoint, SameOrder, SeedSpread, Within

COLLAPSED = 5.0
"""Margin in points of "collapses similarly" (64.1 and 66.5)."""
SCALES_LEFT_OPEN = Open("the start of the field and on how head diversity is averaged")
"""Both set how sharp routing is: see "Deviations" in docs/paper_map.md."""
SWEEP = ("lr_half", "lr_double", "quaternion_lr_low", "quaternion_lr_high", "repulsion_strong", "repulsion_off")
INTERACTION = {"both_off": 1.0, "transport_identity": -1.0, "routing_uniform": -1.0, "full": 1.0}


ABLATION = (
    "full",
    "transport_identity",
    "routing_uniform",
    "routing_absolute",
    "routing_geometric",
    "attention_value_identity",
)
"""Rows of table "ablation" with several seeds."""
VALUE_ON_BOTH = {"flat_value_identity": 1.0, "flat": -1.0, "attention_value_identity": -1.0, "attention": 1.0}


def stated(name: str, section: str, statement: str, paper: Number, rule: Rule, needs: Sequence[Need] = ()) -> Claim:
    """A statement of which the paper does not say how many runs it rests on."""
    return Claim(name, section, statement, paper, "stated", None, rule, needs=needs)


def trained(
    name: str, section: str, statement: str, paper: Number, n: int, rule: Rule, needs: Sequence[Need] = ()
) -> Claim:
    """A claim about means (n > 1) or a single run."""
    return Claim(name, section, statement, paper, "mean" if n > 1 else "single", n, rule, needs=needs)


def ranged(name: str, section: str, statement: str, paper: Number, rule: Rule, needs: Sequence[Need] = ()) -> Claim:
    """A claim about a range."""
    return Claim(name, section, statement, paper, "range", None, rule, needs=needs)


def loses(row: str, reference: str = "full", dataset: str = "cifar10", metric: str = "test") -> Below:
    """row < reference."""
    return Below(Contrast(difference(row, reference), metric, dataset))


def costs(points: float, row: str, reference: str, dataset: str = "cifar10") -> Costs:
    """row < reference; not so where the loss is shown to be less than half of the points."""
    return Costs(Contrast(difference(row, reference), dataset=dataset), points)


def gains(row: str, reference: str, metric: str = "test", limit: float = 0.0) -> Above:
    """row > reference."""
    return Above(Contrast(difference(row, reference), metric), limit)


def same(row: str, reference: str = "full", dataset: str = "cifar10", margin: float = POINT) -> NoEffect:
    """row = reference within the margin."""
    return NoEffect(Contrast(difference(row, reference), dataset=dataset), margin)


def weigh(weights: Mapping[str, float], *, common: bool = False) -> Contrast:
    """A contrast of test accuracies on CIFAR-10."""
    return Contrast(weights, common=common)


TRAINED: tuple[Claim, ...] = (
    *TABLES,
    # which part of the kernel matters
    trained(
        "transport.cifar10", "sec:exp-ablation", "removing transport costs accuracy (4.3 points)", -4.3, 2,
        loses("transport_identity"),
    ),
    trained(
        "transport.cifar100", "sec:exp-ablation", "removing transport costs accuracy on CIFAR-100 (4.1)", -4.1, 1,
        loses("transport_identity", dataset="cifar100"),
    ),
    stated(
        "transport.fit", "sec:exp-ablation", "removing transport lowers augmented training accuracy (81 to 74)", -7.0,
        loses("transport_identity", metric="train"),
    ),
    trained(
        "uniform.cifar10", "sec:exp-ablation", "uniform routing changes nothing (-0.2)", -0.2, 2,
        same("routing_uniform"),
    ),
    trained(
        "uniform.cifar100", "sec:exp-ablation", "uniform routing changes nothing on CIFAR-100 (-0.4)", -0.4, 1,
        same("routing_uniform", dataset="cifar100"),
    ),
    trained(
        "roles.unequal", "sec:exp-ablation", "transport matters more than routing (4.3 against 0.2)", -4.0, 2,
        loses("transport_identity", "routing_uniform"),
    ),
    trained(
        "roles.unequal.cifar100", "sec:exp-ablation", "the asymmetry replicates on CIFAR-100 (4.1 to 0.4)", -3.7, 1,
        loses("transport_identity", "routing_uniform", "cifar100"),
    ),
    trained(
        "roles.order_of_magnitude", "sec:exp-ablation",
        "removing transport costs more than ten times what uniform routing costs", -1.75, 2,
        All((
            Below(weigh({"transport_identity": 1.0, "routing_uniform": -10.0, "full": 9.0}, common=True)),
            Below(weigh({"transport_identity": 1.0, "routing_uniform": 10.0, "full": -11.0}, common=True)),
        )),
    ),
    trained("absolute", "tab:ablation", "routing on |Re(r)| changes nothing (+0.3)", 0.3, 2, same("routing_absolute")),
    trained("geometric", "tab:ablation", "geometric routing changes nothing (+0.0)", 0.0, 2, same("routing_geometric")),
    trained(
        "both_off", "sec:exp-ablation", "without both roles accuracy collapses (-21.8)", -21.8, 1, loses("both_off"),
    ),
    trained(
        "interaction", "sec:exp-ablation", "both off lies below the additive prediction (17 points)", -17.0, 1,
        Below(weigh(INTERACTION)),
    ),
    trained(
        "routing_without_transport", "sec:exp-ablation", "without transport the routing weights carry accuracy (17)",
        -17.6, 1,
        loses("both_off", "transport_identity"),
    ),
    trained(
        "frozen_random", "sec:exp-ablation", "a frozen random field collapses (-19.4)", -19.4, 1,
        loses("frozen_random"),
    ),
    trained(
        "frozen_like_both_off", "sec:exp-ablation", "both collapses are similar, to about 65 %", 2.4, 1,
        same("frozen_random", "both_off", margin=COLLAPSED),
    ),
    stated(
        "frozen_identity", "sec:exp-ablation", "a frozen identity field is no substitute either", None,
        loses("frozen_identity"),
    ),
    # routing diagnostics
    ranged(
        "entropy", "sec:exp-routing",
        "normalised routing entropy of every shell stays at about 0.99 (here: at least 0.985)", 0.99,
        Within("entropy", 0.985, 1.0), (SCALES_LEFT_OPEN,),
    ),
    ranged(
        "peak", "sec:exp-routing", "the peak weight of every shell is 1.2 to 1.4 times uniform", (1.2, 1.4),
        Within("peak", 1.15, 1.45), (SCALES_LEFT_OPEN,),
    ),
    ranged(
        "orientation", "sec:exp-routing", "orientation spread between 0.9 and 1.8 rad", (0.9, 1.8),
        Within("orientation", 0.85, 1.85), (PaperSize(),),
    ),
    ranged(
        "orientation.grows", "sec:exp-routing", "orientation spread grows across shells", (0.9, 1.8),
        Above(RowMean("orientation_change")), (PaperSize(),),
    ),
    ranged(
        "score_spread", "sec:exp-routing", "score spread 0.24 to 0.46", (0.24, 0.46), Within("score", 0.235, 0.465),
        (PaperSize(),),
    ),
    ranged(
        "beta", "sec:exp-routing", "head means of beta are 0.50 to 0.76", (0.50, 0.76), Within("beta", 0.495, 0.765),
        (Decay(4.0),),
    ),
    ranged(
        "beta.below_prior", "sec:exp-routing", "beta sits at or below the prior's 0.79", 0.79,
        Within("beta", 0.1, 0.795),
    ),
    ranged(
        "beta.falls", "sec:exp-routing", "beta decreases over training", None,
        Below(RowMean("beta_change")),
    ),
    ranged(
        "beta_warm.returns", "sec:exp-routing", "started at 5, beta returns to 0.52-1.16", (0.52, 1.16),
        Within("cross_beta", 0.515, 1.165, "beta_warm"), (Decay(4.0, "beta_warm"),),
    ),
    trained(
        "beta_warm.accuracy", "sec:exp-routing", "a warm start at 5 ends at baseline accuracy (+0.2)", 0.2, 1,
        same("beta_warm"),
    ),
    trained(
        "beta_frozen.accuracy", "sec:exp-routing", "beta frozen at 5 is within seed noise (-0.4)", -0.4, 1,
        same("beta_frozen"),
    ),
    stated(
        "routing.three_same", "sec:exp-routing", "uniform, learned and sharp routing reach the same accuracy", None,
        AllNoEffect(("routing_uniform", "beta_frozen"), "full", POINT),
    ),
    # controls
    trained(
        "attention_over_qsv", "sec:exp-baseline", "matched attention exceeds QSV (+1.4)", 1.4, 2,
        gains("attention", "full"),
    ),
    trained(
        "flat_over_sphere", "sec:exp-grid", "the flat lattice gains accuracy (3.8)", 3.8, 3, gains("flat", "attention"),
    ),
    ranged(
        "flat_over_sphere.ranges", "sec:exp-grid", "seed ranges of flat and spherical attention do not overlap",
        None, Disjoint("flat", "attention"),
    ),
    trained(
        "resnet_over_flat", "sec:exp-grid", "ResNet-20 stays above the flat control (2.1)", 2.1, 1,
        gains("resnet20", "flat"),
    ),
    trained(
        "resnet_over_attention", "tab:context", "spherical attention lies below ResNet-20 (5.9)", 5.9, 1,
        gains("resnet20", "attention"),
    ),
    trained(
        "resnet_over_qsv", "tab:context", "QSV lies below ResNet-20 (7.3)", 7.3, 1, gains("resnet20", "full"),
    ),
    trained(
        "flat_closes_most", "sec:exp-error", "flat lies above the middle between attention and ResNet-20", 0.85, 1,
        Above(weigh({"flat": 1.0, "attention": -0.5, "resnet20": -0.5})),
    ),
    trained(
        "value.sphere", "sec:exp-grid", "W_V -> identity costs accuracy on the sphere (1.0)", -1.0, 3,
        costs(1.0, "attention_value_identity", "attention"),
    ),
    trained(
        "value.plane", "sec:exp-grid", "W_V -> identity costs accuracy on the plane (1.0)", -1.0, 3,
        costs(1.0, "flat_value_identity", "flat"),
    ),
    trained(
        "value.cifar100", "tab:ablation", "W_V -> identity costs accuracy on CIFAR-100 (0.8)", -0.8, 1,
        costs(0.8, "attention_value_identity", "attention", "cifar100"),
    ),
    trained(
        "value.same_on_both", "sec:exp-grid", "the value path costs the same on either layout", 0.0, 3,
        NoEffect(weigh(VALUE_ON_BOTH), POINT / 2),
    ),
    trained(
        "kernel_factor", "sec:exp-grid",
        "losing the value transform costs QSV more than attention (4.3 against 1.0)", -3.3, 2,
        Below(weigh({"transport_identity": 1.0, "full": -1.0, "attention_value_identity": -1.0, "attention": 1.0})),
    ),
    trained(
        "wide", "sec:exp-baseline", "attention at QSV's width falls behind the matched one (-18.7)", -18.7, 1,
        loses("attention_wide", "attention"),
    ),
    trained(
        "speed.slower", "sec:exp-baseline", "QSV is at least 3.3x more expensive to train than matched attention", 3.3,
        1, Faster("attention", "full", "log_speed", 3.3), (Gpu(),),
    ),
    trained(
        "speed.compiled", "sec:exp-baseline", "QSV is about 11x more expensive, both compiled", 11.0, 1,
        Faster("attention", "full", "log_speed", 10.0), (Gpu(),),
    ),
    trained(
        "speed.qsv", "sec:appendix-config", "compiled QSV trains at 470 images/s", 470.0, 1,
        Value("full", 470.0, 47.0, "speed"), (Gpu(),),
    ),
    trained(
        "speed.attention", "sec:appendix-config", "compiled attention trains at 5350 images/s", 5350.0, 1,
        Value("attention", 5350.0, 535.0, "speed"), (Gpu(),),
    ),
    trained(
        "speed.attention_eager", "sec:appendix-config", "eager attention trains at 1550 images/s", 1550.0, 1,
        Value("attention", 1550.0, 155.0, "speed"), (Gpu(),),
    ),
    # trainability, optimisation and geometry
    ranged(
        "loss.falls", "sec:exp-main", "the epoch loss decreases near-monotonically (here: in nine epochs of ten)", None,
        Above(RowMean("falling"), 0.9),
    ),
    ranged(
        "val_tracks_train", "sec:exp-main", "validation accuracy tracks augmented training accuracy (here: r > 0.9)",
        None, Above(RowMean("tracking"), 0.9),
    ),
    trained(
        "best", "sec:exp-main", "the best run across configurations reaches 86.9 %", 86.9, 1,
        Best(("full", *SWEEP), 86.9, POINT), (PaperSize(),),
    ),
    trained(
        "best.val", "sec:exp-main", "its best validation accuracy is 87.0 %", 87.0, 1,
        Best(("full", *SWEEP), 87.0, POINT, "val"), (PaperSize(),),
    ),
    ranged(
        "seed_spread", "sec:exp-main", "seeds differ by up to about one point (here: 1.5) in every row", 1.0,
        SeedSpread(ABLATION, 1.5), (PaperSize(),),
    ),
    ranged(
        "robust", "sec:exp-main", "accuracy stays within 85.7-86.9 over rates, quaternion steps and repulsion",
        (85.7, 86.9),
        AllNoEffect(SWEEP, "full", 1.2),
    ),
    stated(
        "constant_rate", "sec:exp-main", "a constant learning rate is about a point lower", -1.0,
        loses("schedule_constant"),
    ),
    stated(
        "annealed_freezes", "sec:training",
        "annealing the quaternion rate freezes the field early (here: it ends nearer to its start)", None,
        loses("quaternion_annealed", metric="drift"),
    ),
    stated("bound.stability", "sec:exp-opt", "the bound matters for stability", None, Unstable("bound_none")),
    stated(
        "zero_init.stability", "sec:exp-opt", "the zero start matters for stability", None,
        Unstable("zero_init_off"),
    ),
    stated(
        "adam_smoother", "sec:exp-opt", "Adam in su(2) has smoother loss curves than AdamW + renormalisation", None,
        gains("quaternion_adamw", "full", "roughness"), (Epochs(12, "quaternion_adamw"),),
    ),
    stated(
        "repulsion.coverage", "sec:exp-opt", "without repulsion vertices concentrate within a dozen epochs", None,
        All((Above(RowMean("concentration", "repulsion_off")), gains("repulsion_off", "full", "concentration"))),
        (Epochs(12, "repulsion_off"),),
    ),
    stated(
        "repulsion.accuracy", "sec:exp-opt", "without repulsion validation accuracy is not lower", 0.0,
        NotWorse(Contrast(difference("repulsion_off", "full"), "val"), POINT),
    ),
    ranged(
        "positions.interior", "sec:exp-opt",
        "interior vertices move very little (here: < 1/4 of their spacing; repulsion alone moves them)", None,
        Below(RowMean("interior"), 0.25),
    ),
    ranged(
        "graph.metrics_trained", "sec:connectivity", "both metrics agree on trained checkpoints", 1.0,
        Within("agreement", 1.0, 1.0),
    ),
    # where the error is
    stated(
        "classes.structure", "sec:exp-error", "vehicles and frog are easier on average than cat, bird, dog, deer", None,
        Above(RowMean("class_gap")),
    ),
    stated(
        "classes.cat", "sec:exp-error", "cat is the hardest class", None, Below(RowMean("cat_gap")),
    ),
    stated(
        "classes.easiest", "sec:exp-error", "automobile, truck, ship and frog are the four easiest classes", None,
        Above(RowMean("easiest_gap")),
    ),
    stated(
        "classes.weakest", "sec:exp-error", "cat, bird, dog and deer are the four hardest classes", None,
        Below(RowMean("weakest_gap")),
    ),
    stated(
        "classes.stable", "sec:exp-error", "the order of the classes is stable across runs (here: rank r > 0.7)", None,
        SameOrder(0.7),
    ),
    trained(
        "clean_train", "sec:exp-error", "clean training accuracy is 95.7 % at 86.5 % test", 95.7, 1,
        Value("full", 95.7, POINT, "clean_train"), (PaperSize(),),
    ),
    trained(
        "clean_gap", "sec:exp-error", "the clean gap is roughly nine points", 9.2, 1,
        Value("full", 9.2, 1.5, "clean_gap"), (PaperSize(),),
    ),
    trained(
        "clean_gap.generalisation", "sec:exp-error", "the test gap exceeds the fitting shortfall (9.2 to 4.3)", 4.9, 1,
        Above(RowMean("generalisation")), (PaperSize(),),
    ),
    stated(
        "clean_train.resnet20", "sec:exp-error", "comparable ResNets reach nearly 100 % training accuracy", 100.0,
        Above(RowMean("clean_train", "resnet20"), 99.0), (PaperSize("resnet20"),),
    ),
)  # fmt: skip
