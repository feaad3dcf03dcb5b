"""Verdicts on invented numbers that can be derived by hand; the paper's own numbers must confirm the paper."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.study_records import PAPER, make_record, make_records
from scipy import stats

from quatsphere.study.claims import CLAIMS, STATIC, TRAINED, Claim, decide
from quatsphere.study.claims.evidence import CELL_METRICS, Evidence, decay_sum, roughness
from quatsphere.study.claims.rules import (
    Contrast,
    LiesBetween,
    average_ranks,
    difference,
    equivalent,
    min_decay,
    min_epochs,
    paper_size,
)
from quatsphere.study.variants import VARIANTS

BY_ID = {claim.id: claim for claim in CLAIMS}
DIVERGED = {"status": "diverged", "reason": "loss is not finite"}
STEADY = (0.05, -0.05, 0.1, -0.1, 0.0)


def around(*centres: tuple[str, float], noise: float = 1.0) -> list[dict[str, Any]]:
    """Five seeds of each row, noise that sums to zero and differs between rows."""
    shifted = [[STEADY[(i + 2 * k) % 5] for i in range(5)] for k in range(len(centres))]
    return make_records({row: [c + noise * x for x in shift] for (row, c), shift in zip(centres, shifted, strict=True)})


def verdict(name: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    return decide([BY_ID[name]], records)[0]


def test_ids_are_unique_and_rows_exist() -> None:
    assert len(BY_ID) == len(CLAIMS)
    text = repr([claim.rule for claim in TRAINED])
    named = set(re.findall(r"'([a-z_0-9]+)': -?[0-9.]+", text)) | set(re.findall(r"row='([a-z_0-9]+)'", text))
    arguments = [value for claim in TRAINED for value in getattr(claim.rule, "args", ()) if isinstance(value, tuple)]
    named |= {row for rows in arguments for row in rows if isinstance(row, str)}
    assert named <= set(VARIANTS)
    assert all(claim.kind == "static" for claim in STATIC)
    assert all(claim.kind == "trained" for claim in TRAINED)


def test_every_section_named_is_a_label_of_the_paper() -> None:
    """The paper is not part of the repository; its labels are, in the map."""
    labels = {claim.section for claim in CLAIMS}
    assert all(re.fullmatch(r"(sec|tab|eq|fig):[a-z-]+", label) for label in labels)


@pytest.mark.parametrize("claim", STATIC, ids=lambda c: c.id)
def test_static_claims_hold(claim: Claim) -> None:
    assert claim.decide(Evidence([])).verdict == "holds"


def test_trained_claims_without_cells_are_undecided_with_a_reason() -> None:
    for found in decide(TRAINED, []):
        assert found["verdict"] == "undecided"
        assert found["why"]
        assert found["n"] == 0


def test_decided_claim_has_every_field() -> None:
    (found,) = decide([BY_ID["transport.cifar10"]], around(("full", 50.0), ("transport_identity", 46.0)))
    assert set(found) >= {"id", "kind", "verdict", "n", "ours", "paper", "interval", "why", "section", "statement"}
    assert found["ours"] == pytest.approx(-4.0)
    assert found["interval"][0] < -4.0 < found["interval"][1] < 0


def test_the_papers_numbers_confirm_its_comparisons() -> None:
    records = make_records(PAPER, seeds=(42, 1, 2), scale="paper")
    names = [
        "accuracy.full", "accuracy.both_off", "accuracy.flat", "transport.cifar10", "roles.unequal", "both_off",
        "interaction", "routing_without_transport", "frozen_random", "frozen_like_both_off", "attention_over_qsv",
        "flat_over_sphere", "resnet_over_flat", "value.sphere", "value.plane", "kernel_factor", "wide",
        "uniform.cifar10", "absolute", "geometric", "flat_closes_most", "value.same_on_both",
    ]  # fmt: skip
    assert {name: verdict(name, records)["verdict"] for name in names} == dict.fromkeys(names, "holds")
    assert verdict("interaction", records)["ours"] == pytest.approx(-17.35, abs=0.01)


def test_comparison_holds_fails_or_is_undecided() -> None:
    assert verdict("transport.cifar10", around(("full", 50), ("transport_identity", 47)))["verdict"] == "holds"
    assert verdict("transport.cifar10", around(("full", 50), ("transport_identity", 51)))["verdict"] == "fails"
    close = verdict("transport.cifar10", around(("full", 50), ("transport_identity", 49.9), noise=10))
    assert close["verdict"] == "undecided"
    assert "more seeds" in close["why"]


def test_cost_fails_when_below_half_of_the_papers() -> None:
    rows = ("attention", 50.0), ("attention_value_identity", 49.0)
    assert verdict("value.sphere", around(*rows))["verdict"] == "holds"
    assert verdict("value.sphere", around(rows[0], (rows[1][0], 50.0)))["verdict"] == "fails"
    waiting = verdict("value.sphere", around(rows[0], (rows[1][0], 49.8), noise=10))
    assert waiting["verdict"] == "undecided"
    assert re.search(r"contains 0 and -0.5: more seeds needed \(about [0-9,]+\)", waiting["why"])


def test_number_of_seeds_needed() -> None:
    """With this number of seeds of the same mean and noise the interval would just clear the limit."""
    records = around(("full", 50), ("transport_identity", 49.9), noise=10)
    estimate = Contrast(difference("transport_identity", "full")).estimate(Evidence(records))
    assert estimate is not None
    seeds = estimate.seeds_to_clear(0.1)
    low, high = estimate.interval() or (0.0, 0.0)
    assert seeds is not None
    assert (high - low) / 2 * math.sqrt(estimate.n / seeds) == pytest.approx(0.1, rel=0.01)


def test_the_least_decided_of_several_rules_is_reported() -> None:
    rows = (("full", 50), ("transport_identity", 47), ("routing_uniform", 50.2))
    found = verdict("roles.order_of_magnitude", around(*rows, noise=20))
    assert found["verdict"] == "undecided"
    assert found["ours"] == pytest.approx(-3 + 2)  # ten times the uniform row's gain on the other side


def test_no_effect_needs_the_equivalence_test() -> None:
    assert verdict("uniform.cifar10", around(("full", 50), ("routing_uniform", 50.1)))["verdict"] == "holds"
    beyond = verdict("uniform.cifar10", around(("full", 50), ("routing_uniform", 52)))
    assert beyond["verdict"] == "fails"
    assert beyond["why"] == "not shown to be within 1 point of 0; differs from 0 by +2.00"
    noisy = verdict("uniform.cifar10", around(("full", 50), ("routing_uniform", 50.1), noise=20))
    assert noisy["verdict"] == "undecided"
    small = equivalent(Contrast(difference("routing_uniform", "full")), 1.0)
    significant = small(Evidence(around(("full", 50), ("routing_uniform", 50.4))))
    assert (significant.verdict, significant.why) == ("holds", "within 1 point of 0; differs from 0 by +0.40")
    assert significant.interval is not None
    assert significant.interval[0] > 0


def test_nothing_is_decided_with_two_seeds() -> None:
    records = make_records({"full": (50.0, 50.1), "transport_identity": (40.0, 40.1)})
    found = verdict("transport.cifar10", records)
    assert found["verdict"] == "undecided"
    assert found["why"] == "n = 2, needs 3"
    assert found["ours"] == pytest.approx(-10)


def test_an_accuracy_needs_the_papers_size() -> None:
    small = verdict("accuracy.full", make_records({"full": (85.9, 86.0, 85.9)}))
    assert (small["verdict"], small["why"]) == ("undecided", "needs the paper's size")
    whole = make_records({"full": (85.9, 86.0, 85.9)}, scale="paper")
    assert verdict("accuracy.full", whole)["verdict"] == "holds"
    assert verdict("accuracy.full", make_records({"full": (80.0, 80.1, 80.0)}, scale="paper"))["verdict"] == "fails"
    assert paper_size(Evidence(whole)) == ""


def test_cifar100_part_decides_comparisons_but_no_accuracy() -> None:
    records = make_records({"full": (20, 20.1, 20.2), "transport_identity": (18, 18.2, 18.1)}, dataset="cifar100-part")
    assert verdict("transport.cifar100", records)["verdict"] == "holds"
    assert verdict("transport.cifar100", records)["why"] == "judged on CIFAR-100 part"
    assert verdict("transport.cifar10", records)["why"] == "no CIFAR-10 cells"
    assert verdict("accuracy.full.cifar100", records)["why"] == "needs the paper's size"


def test_digits_decide_no_claim() -> None:
    rows = {"full": (50, 50.1, 50.2), "transport_identity": (40, 40.1, 40.2), "both_off": (30, 30.1, 30.2)}
    records = make_records(rows, dataset="digits", scale="smoke")
    records += [make_record("bound_none", seed, 0, dataset="digits", scale="smoke") | DIVERGED for seed in (42, 1, 2)]
    found = [claim for claim in decide(CLAIMS, records) if claim["kind"] == "trained"]
    assert {claim["verdict"] for claim in found} == {"undecided"}
    assert {claim["why"] for claim in found} == {"no CIFAR-10 cells", "no CIFAR-100 cells"}


def test_decay_and_epoch_requirements() -> None:
    record = make_record("full", 42, 50.0)
    settings = record["config"]
    share = decay_sum({**record, "config": {**settings, "optim.schedule": "constant"}})
    assert share == pytest.approx(settings["optim.peak_lr"] * settings["optim.weight_decay"] * record["steps"])
    one_cycle = decay_sum(record) / share
    exact = 0.1 * (1 + 0.1) / 2 + 0.9 * (1 + 1e-3) / 2
    assert one_cycle == pytest.approx(exact, rel=0.01)
    assert "needs sum of lr * wd >= 4" in min_decay(Evidence([record]), 4.0)
    half = {**record, "epochs": record["epochs"], "config": {**settings, "train.epochs": 2 * record["epochs"]}}
    assert decay_sum(half) > decay_sum(record)  # stopped halfway, before the rate has fallen
    long = {**record, "steps": 176_000, "config": {**settings, "optim.peak_lr": 1e-3, "optim.weight_decay": 0.05}}
    assert decay_sum(long) > 4
    assert min_decay(Evidence([long]), 4.0) == ""
    assert min_epochs(Evidence([{**record, "epochs": 12}]), 12) == ""
    assert min_epochs(Evidence([{**record, "epochs": 11}]), 12) == "needs 12 epochs, has 11"


def test_roughness_ignores_a_steady_fall_and_the_warm_up() -> None:
    falling = make_record("full", 42, 50.0)
    assert roughness(falling) == pytest.approx(0, abs=1e-12)
    losses = [9.0, *(2.0 + 0.1 * (-1) ** epoch for epoch in range(9))]
    steps = [-0.2 * (-1) ** epoch for epoch in range(8)]
    expected = math.sqrt(sum(step**2 for step in steps) / 7)
    rough = make_record("full", 42, 50.0, trajectory={"train_loss": losses})
    rough["config"] = {**rough["config"], "train.epochs": 10}
    assert roughness(rough) == pytest.approx(expected)


def test_a_diverged_row_is_unstable() -> None:
    records = around(("full", 50.0))
    gone = [make_record("bound_none", seed, 0.0) | {"status": "diverged"} for seed in (42, 1, 2)]
    found = verdict("bound.stability", records + gone)
    assert (found["verdict"], found["n"]) == ("holds", 3)
    assert verdict("bound.stability", records + gone[:1])["verdict"] == "undecided"
    both = [make_record("full", seed, 0.0) | {"status": "diverged"} for seed in (3, 4, 5)]
    assert verdict("bound.stability", records + gone + both)["verdict"] == "undecided"


def test_ranges_of_list_metrics() -> None:
    records = around(("full", 50.0))
    assert BY_ID["peak"].rule(Evidence(records)).verdict == "holds"
    assert verdict("entropy", records)["ours"] == pytest.approx((0.99, 0.99))
    sharp = [make_record("full", seed, 50, trajectory={"routing_peak": [[2.0] * 5] * 10}) for seed in (42, 1, 2)]
    assert BY_ID["peak"].rule(Evidence(sharp)).verdict == "fails"
    spread = {"orientation_spread": [0.9, 1.3, 1.8, 1.9, 1.9], "score_spread": [0.3] * 5}
    wide = [make_record("full", seed, 50, diagnostics=spread) for seed in (42, 1, 2)]
    assert verdict("orientation", wide)["ours"] == (0.9, 1.8)
    assert verdict("orientation", wide)["why"] == "needs the paper's size"
    assert verdict("orientation.grows", wide)["ours"] == pytest.approx(0.9)


@pytest.mark.parametrize("name", ["entropy", "peak"])
@pytest.mark.parametrize("scale", ["lite", "paper"])
def test_sharpness_of_routing_stays_open(name: str, scale: str) -> None:
    """Sharpness depends on the start of the field and on how head diversity is averaged, both open in the paper."""
    found = verdict(name, make_records({"full": (85.9, 86.0, 85.9)}, scale=scale))
    assert found["verdict"] == "undecided"
    assert found["why"] == "open: depends on the start of the field and on how head diversity is averaged"


def test_speed_is_a_ratio_and_not_comparable() -> None:
    fast, slow = ({"images_per_second": [speed] * 10} for speed in (300.0, 100.0))
    records = [make_record("attention", s, 50, trajectory=fast) for s in (42, 1, 2)]
    records += [make_record("full", s, 50, trajectory=slow) for s in (42, 1, 2)]
    found = verdict("speed.slower", records)
    assert (found["verdict"], found["ours"]) == ("undecided", pytest.approx(3.0))
    assert found["why"] == "not comparable: the paper timed its own code on one RTX A6000"
    assert BY_ID["speed.slower"].rule(Evidence(records)).verdict == "fails"


def test_classes() -> None:
    hard = dict.fromkeys(("cat", "bird", "dog", "deer"), 0.3) | {"cat": 0.2}
    classes = {**make_record("full", 42, 60.0)["per_class"], **hard}
    records = [make_record("full", seed, 50.0, per_class=classes) for seed in (42, 1, 2)]
    assert verdict("classes.structure", records)["verdict"] == "holds"
    assert verdict("classes.cat", records)["ours"] == pytest.approx(-10)


def test_ten_times_compares_absolute_effects() -> None:
    """Effects of either sign count."""
    rows = ("full", 50.0), ("transport_identity", 44.0)
    assert verdict("roles.order_of_magnitude", around(*rows, ("routing_uniform", 50.0)))["verdict"] == "holds"
    for other in (48.0, 52.0):
        assert verdict("roles.order_of_magnitude", around(*rows, ("routing_uniform", other)))["verdict"] == "fails"


def test_ten_times_uses_common_seeds() -> None:
    """Sixty quiet seeds of two rows do not reduce the noise of the fifteen seeds that the third row has."""
    shifts = np.random.default_rng(1).normal(size=60)
    seeds = range(60)
    full, uniform = [50.0] * 60, [50.0 + 0.5 * (x if s < 15 else 0.01 * x) for s, x in zip(seeds, shifts, strict=True)]
    records = make_records({"full": full, "routing_uniform": uniform, "transport_identity": [48.0] * 15}, seeds=seeds)
    found = verdict("roles.order_of_magnitude", records)
    by_seed = [-2.0 + sign * 5 * shifts[:15] for sign in (1, -1)]
    low, high = stats.ttest_1samp(max(by_seed, key=np.mean), 0).confidence_interval(0.95)
    assert (found["verdict"], found["n"]) == ("undecided", 15)
    assert found["interval"] == pytest.approx((low, high))
    assert "the interval contains 0" in found["why"]


def test_verdict_follows_the_side_of_the_interval() -> None:
    for change in (-0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2):
        found = verdict("transport.cifar10", around(("full", 50.0), ("transport_identity", 50.0 + change)))
        low, high = found["interval"]
        assert found["verdict"] == ("holds" if high < 0 else "fails" if low > 0 else "undecided")


def test_claims_by_seed() -> None:
    records = make_records({"flat": (52.0, 52.5, 53.0), "attention": (50.0, 51.0, 51.9)})
    assert verdict("flat_over_sphere.ranges", records)["verdict"] == "holds"
    touching = make_records({"flat": (52.0, 52.5, 53.0), "attention": (50.0, 51.0, 52.1)})
    assert verdict("flat_over_sphere.ranges", touching)["verdict"] == "fails"
    whole = make_records({"full": (85.9, 86.0, 85.9)}, scale="paper")
    assert verdict("seeds.full", whole)["verdict"] == "holds"
    assert verdict("seeds.full", make_records({"full": (85.9, 86.0, 80.0)}, scale="paper"))["verdict"] == "fails"
    assert verdict("best", whole)["ours"] == pytest.approx(86.0)
    assert average_ranks([3.0, 1.0, 1.0, 2.0]) == [4.0, 1.5, 1.5, 3.0]
    classes = {name: 0.1 * place for place, name in enumerate(whole[0]["per_class"])}
    ordered = [make_record("full", seed, 50.0, per_class=classes) for seed in (42, 1, 2)]
    assert verdict("classes.stable", ordered)["ours"] == pytest.approx(1.0)
    assert verdict("classes.stable", whole)["verdict"] == "undecided"  # all classes alike have no order


def test_robustness_is_decided_by_the_worst_row() -> None:
    rows = ("lr_half", "lr_double", "quaternion_lr_low", "quaternion_lr_high", "repulsion_strong", "repulsion_off")
    steady = around(("full", 50.0), *((row, 50.2) for row in rows))
    assert verdict("robust", steady)["verdict"] == "holds"
    broken = around(("full", 50.0), *((row, 50.2) for row in rows[1:]), ("lr_half", 45.0))
    found = verdict("robust", broken)
    assert found["verdict"] == "fails"
    assert found["why"].startswith("lr_half")


@pytest.mark.parametrize("metric", CELL_METRICS)
def test_every_metric_is_finite_or_missing(metric: str) -> None:
    flat = {"energy": [None] * 3, "energy_start": [None] * 3}  # a plane has no Coulomb energy
    for record in (make_record("full", 42, 50.0), make_record("full", 42, 50.0, diagnostics=flat)):
        value = CELL_METRICS[metric](record)
        assert value is None or math.isfinite(value)


def test_two_sided_claims_have_margins() -> None:
    rules = [claim.rule for claim in TRAINED if isinstance(claim.rule, LiesBetween) and claim.rule.two_sided]
    assert len(rules) > 20
    assert all(rule.low < rule.high for rule in rules)


def test_ledger_contains_no_local_path() -> None:
    folder = Path(__file__).parent.parent.parent / "src" / "quatsphere" / "study" / "claims"
    assert not any("/home" in path.read_text() for path in folder.glob("*.py"))
