"""Rows, plans and cells: the promised rows and seeds, derived from the presets."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from quatsphere.config import AttentionConfig, QSVConfig
from quatsphere.config.presets import PRESETS
from quatsphere.config.resolve import flat_settings
from quatsphere.errors import ConfigError
from quatsphere.models.attention_net import attention_parameters, solve_width
from quatsphere.study.plan import PLANS, cell_config, parameter_count, plan_cells, reference_of
from quatsphere.study.variants import LITE_SIZE, SCALES, VARIANTS, find_variant

FIVE_SEEDS = {
    "full", "transport_identity", "routing_uniform", "both_off", "attention", "flat", "qsv_plane",
    "resample_geometric", "attention_resample_geometric",
}  # fmt: skip
THREE_SEEDS = {
    "frozen_random", "attention_value_identity", "flat_value_identity", "resnet20", "attention_wide",
    "routing_absolute", "routing_geometric", "beta_warm", "beta_frozen", "quaternion_adamw", "quaternion_annealed",
    "repulsion_off",
}  # fmt: skip


def lite(row: str, dataset: str = "cifar10") -> dict[str, object]:
    return flat_settings(cell_config(SCALES["lite"], dataset, row, 42, data_root=None, settings={}))


@pytest.mark.parametrize("plan", PLANS)
def test_ids_are_unique_and_name_the_cell(plan: str) -> None:
    cells = plan_cells(PLANS[plan])
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        length = "" if cell.epochs is None else f".e{cell.config.train.epochs}"
        assert cell.id == f"{cell.dataset}.{cell.variant}{length}.s{cell.config.train.seed}"


def test_lite_has_the_promised_seeds() -> None:
    cells = plan_cells(PLANS["lite"])
    seeds = Counter(cell.variant for cell in cells if cell.dataset == "cifar10")
    assert all(seeds[row] >= 5 for row in FIVE_SEEDS)
    assert all(seeds[row] >= 3 for row in THREE_SEEDS)
    part = Counter(cell.variant for cell in cells if cell.dataset == "cifar100-part")
    assert part == {"full": 3, "transport_identity": 3, "routing_uniform": 3}


def test_every_row_is_in_the_paper_plan() -> None:
    assert {cell.variant for cell in plan_cells(PLANS["paper"])} == set(VARIANTS)


def test_order_of_cells() -> None:
    cells = plan_cells(PLANS["lite"])
    seeds = [cell.seed for cell in cells]
    assert seeds == sorted(seeds, key=(42, 1, 2, 3, 4).index)
    assert {cell.variant for cell in cells[:9]} == FIVE_SEEDS


def test_paper_cells_are_the_paper_presets() -> None:
    for row, preset in (("full", "paper-cifar10"), ("attention", "paper-attention"), ("flat", "paper-flat")):
        config = cell_config(SCALES["paper"], "cifar10", row, 42, data_root=None, settings={})
        flat = flat_settings(config)
        for group, fields in PRESETS[preset].items():
            for name, value in fields.items():
                assert flat[f"{group}.{name}"] == value
    cifar100 = cell_config(SCALES["paper"], "cifar100", "full", 42, data_root=None, settings={})
    assert (cifar100.optim.repulsion_neighbours, cifar100.model.num_classes) == (16, 100)
    assert cifar100.train.patience == 50


def test_lite_follows_the_preset_except_schedule_and_width() -> None:
    flat = lite("full")
    own = {*SCALES["lite"].datasets["cifar10"], *SCALES["lite"].settings, *(f"model.{name}" for name in LITE_SIZE)}
    assert {name: flat[f"model.{name}"] for name in LITE_SIZE} == LITE_SIZE
    for group, fields in PRESETS["lite"].items():
        for name, value in fields.items():
            assert f"{group}.{name}" in own or flat[f"{group}.{name}"] == value
    assert flat["train.threads"] == 1


def test_widths_come_from_the_budget_of_the_full_model() -> None:
    full = cell_config(SCALES["lite"], "cifar10", "full", 1, data_root=None, settings={}).model
    assert isinstance(full, QSVConfig)
    for row in ("attention", "flat", "attention_value_identity"):
        config = cell_config(SCALES["lite"], "cifar10", row, 1, data_root=None, settings={}).model
        assert isinstance(config, AttentionConfig)
        assert config.budget == parameter_count(full)
        solved = solve_width(config)
        assert solved.dim is not None
        whole = dataclasses.replace(config, value="projected")
        assert attention_parameters(whole, solved.dim) <= config.budget < attention_parameters(whole, solved.dim + 8)
    wide = cell_config(SCALES["lite"], "cifar10", "attention_wide", 1, data_root=None, settings={}).model
    assert wide.dim == full.dim


def test_scaled_settings_multiply_the_scales_value() -> None:
    assert lite("lr_double")["optim.peak_lr"] == 2 * PRESETS["lite"]["optim"]["peak_lr"]
    changed = cell_config(SCALES["lite"], "cifar10", "lr_half", 1, data_root=None, settings={"optim.peak_lr": 0.01})
    assert changed.optim.peak_lr == 0.005


def test_settings_change_every_cell_except_the_rows_own_changes() -> None:
    cells = plan_cells(PLANS["smoke"], settings={"train.epochs": 2, "model.routing": "absolute"})
    by_row = {cell.variant: cell.config for cell in cells}
    assert all(config.train.epochs == 2 for config in by_row.values())
    assert by_row["full"].model.routing == "absolute"
    assert by_row["routing_uniform"].model.routing == "uniform"
    assert by_row["attention"].model.routing == "softmax"
    with pytest.raises(ConfigError, match=r"unknown setting 'model.rooting'"):
        plan_cells(PLANS["smoke"], settings={"model.rooting": "uniform"})


def test_a_row_that_changes_nothing_at_a_scale_is_left_out() -> None:
    off = {"model.attention_dropout": 0.0, "model.output_dropout": 0.0}
    with_dropout, without = (
        {cell.variant for cell in plan_cells(PLANS["beyond"], seeds=[1], settings=dict.fromkeys(off, rate))}
        for rate in (0.1, 0.0)
    )
    assert with_dropout - without == {"dropout_none"}


def test_only_and_seeds_select_cells() -> None:
    chosen = plan_cells(PLANS["lite"], only=["transport*", "cifar100*.full.*"], seeds=[7])
    assert [cell.id for cell in chosen] == [
        "cifar10.transport_identity.s7",
        "cifar100-part.full.s7",
        "cifar100-part.transport_identity.s7",
    ]
    with pytest.raises(ConfigError, match="no cell matches --only nothing"):
        plan_cells(PLANS["lite"], only=["nothing"])


def test_archive_is_found_in_the_data_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QUATSPHERE_DATA", str(tmp_path))
    (tmp_path / "cifar100-part.zip").touch()
    (cell,) = plan_cells(PLANS["lite"], only=["cifar100*.full.s1"])
    assert cell.config.data.root == str(tmp_path / "cifar100-part.zip")
    (whole,) = plan_cells(PLANS["lite"], only=["cifar10.full.s1"], data_root="somewhere")
    assert whole.config.data.root == "somewhere"


def test_variants_have_titles_and_references() -> None:
    assert all(variant.reference in VARIANTS and variant.title for variant in VARIANTS.values())
    assert len({variant.title for variant in VARIANTS.values()}) == len(VARIANTS)
    assert all(not variant.changes for name, variant in VARIANTS.items() if name in ("full", "attention", "resnet20"))
    with pytest.raises(ConfigError, match="unknown variant 'ful'"):
        find_variant("ful")


def test_stages_of_the_curve_run_one_after_the_other() -> None:
    cells = plan_cells(PLANS["curve"])
    lengths = [cell.epochs for cell in cells]
    assert lengths[:45] == [2] * 45
    assert lengths[45:90] == [6] * 45
    assert [cell.seed for cell in cells[:45]] == [seed for seed in (42, 1, 2, 3, 4) for _ in range(9)]
    assert all(cell.config.train.epochs == cell.epochs and cell.config.data.max_train_images is None for cell in cells)


def test_cell_names_contain_the_length() -> None:
    cells = plan_cells(PLANS["curve"], only=["*.full.e6.*"])
    assert [cell.id for cell in cells] == [f"cifar10.full.e6.s{seed}" for seed in (42, 1, 2, 3, 4)]
    assert {reference_of(cell, PLANS["curve"]).config.train.epochs for cell in cells} == {6}
