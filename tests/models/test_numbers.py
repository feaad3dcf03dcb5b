"""The numbers of the paper, pinned: parameters line by line, sizes, graphs, temperatures."""

from __future__ import annotations

import pytest
import torch

from quatsphere import create_model
from quatsphere.config import AttentionConfig
from quatsphere.geometry.neighbours import edge_ratio
from quatsphere.models import build_model
from quatsphere.models.attention_net import attention_parameters, default_heads, qsv_budget
from quatsphere.study.plan import cell_config
from quatsphere.study.variants import SCALES


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_qsv_parameters_line_by_line() -> None:
    model = create_model("qsv")
    assert model.parameter_parts() == {
        "field": 81_920,
        "positions": 3_840,
        "patch embedding": 19_968,
        "post": 7 * 1_024,
        "ffn": 7 * 8_192,
        "perturbation": 7 * 66_608,
        "betas": 112,
        "bounds": 5,
        "gates": 4,
        "classifier": 2_570,
    }
    assert count(model) == 639_187


def test_geometry_of_the_paper() -> None:
    layout = create_model("qsv").layout
    assert layout.vertex_counts == [128, 192, 256, 320, 384]
    assert layout.neighbour_counts == [14, 14, 16, 16, 16]
    radii = [float(shell.radius[0]) for shell in layout.shells]
    assert radii == pytest.approx([1.0, 0.85, 0.7, 0.55, 0.4])
    assert edge_ratio(layout.vertex_counts, layout.neighbour_counts) == pytest.approx(19_840 / 368_640)


def test_kernel_parameters_against_attention_projections() -> None:
    """ "about 87K": field + post layers of the five steps the baseline also has; attention at d = 256: 1.32M."""
    parts = create_model("qsv").parameter_parts()
    assert parts["field"] + 5 * 1_024 == 87_040
    projections = create_model("attention", dim=256).parameter_parts()["projections"]
    assert projections == 1_315_840
    assert round(projections / 87_040) == 15


def test_kernel_count_excludes_the_perturbation_networks() -> None:
    """The perturbation networks make the quaternions: 73 % of the model, and with those of the same five steps 3.1x."""
    model = create_model("qsv")
    perturbation = model.parameter_parts()["perturbation"]
    assert perturbation == 466_256
    assert round(100 * perturbation / count(model)) == 73
    assert perturbation * 5 // 7 == 333_040
    assert round(1_315_840 / (87_040 + 333_040), 1) == 3.1


def test_one_perturbation_network_per_shell_is_not_the_papers_size() -> None:
    """The paper says "per shell"; five networks instead of seven would make 0.51M parameters, not 0.64M."""
    model = create_model("qsv")
    assert round((count(model) - 2 * model.parameter_parts()["perturbation"] // 7) / 1e6, 2) == 0.51


def test_attention_width_is_solved_from_the_budget() -> None:
    model = create_model("attention")
    assert (model.config.dim, model.config.heads) == (96, 6)
    assert count(model) == 567_658
    assert qsv_budget(AttentionConfig()) == 639_187
    assert attention_parameters(AttentionConfig(), 104) > 639_187


@pytest.mark.parametrize("layout", ["sphere", "plane"])
def test_removing_the_value_projection_keeps_the_width(layout: str) -> None:
    model = create_model("attention", value="identity", layout=layout)
    assert (model.config.dim, model.config.heads) == (96, 6)
    assert count(model) == 567_658 - 5 * (96 * 96 + 96)


def test_resnet_starts_as_in_he_et_al() -> None:
    weight = create_model("resnet20").stages[2][2].conv1.weight
    assert float(weight.std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.05)


def test_attention_at_the_same_width() -> None:
    model = create_model("attention", dim=256)
    assert count(model) == 3_971_338
    assert model.config.heads == 16


@pytest.mark.parametrize("layout", ["sphere", "plane"])
@pytest.mark.parametrize(
    "changes", [{}, {"value": "identity"}, {"rounds": 2}, {"positions": "learned"}, {"num_classes": 100}]
)
def test_closed_form_of_the_attention_parameters(layout: str, changes: dict[str, object]) -> None:
    model = create_model("attention", layout=layout, dim=48, base_vertices=32, **changes)
    assert count(model) == attention_parameters(model.config, 48)


def test_heads_of_the_lite_baseline() -> None:
    """Plan `lite`: within 43,111 parameters attention has width 32, and six heads do not divide it."""
    config = cell_config(SCALES["lite"], "cifar10", "attention", 42, data_root=None, settings={}).model
    model = build_model(config)
    assert (model.config.dim, model.config.heads) == (32, 2)


def test_default_heads() -> None:
    assert [default_heads(d) for d in (96, 256, 72, 40, 8)] == [6, 16, 6, 5, 1]


def test_resnet20_parameters() -> None:
    model = create_model("resnet20")
    assert count(model) == 269_722
    assert model.parameter_parts() == {
        "stem": 464,
        "stage 1": 14_016,
        "stage 2": 51_072,
        "stage 3": 203_520,
        "classifier": 650,
    }


def test_flat_control_has_the_same_parameters() -> None:
    assert count(create_model("attention", layout="plane")) == 567_658
    assert count(create_model("qsv", layout="plane")) == 639_187 - 3_840  # positions are frozen there


def test_beta_and_bound_at_the_start() -> None:
    model = create_model("qsv")
    assert float(model.within.routing.beta[0]) == pytest.approx(0.793, abs=5e-4)
    assert float(model.fields[0].bound.value) == pytest.approx(0.398, abs=5e-4)
    assert float(torch.sigmoid(model.cross[0].gate.logit)) == 0.5
