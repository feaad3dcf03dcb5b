"""The operation count: known values, and matrix products as counted by torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from quatsphere.bench import step
from quatsphere.bench.step import attention_flops, forward_flops, qsv_flops, steps_of, training_flops
from quatsphere.config import AttentionConfig, QSVConfig, ResNet20Config
from quatsphere.errors import ConfigError
from quatsphere.models import create_model


def test_operations_of_the_default_models() -> None:
    """GFLOP per image of a training step; 1.63 if the perturbation network also ran on every target."""
    config = QSVConfig()
    assert round(training_flops(config) / 1e9, 2) == 1.17
    assert round(training_flops(AttentionConfig()) / 1e9, 2) == 0.83
    again = sum(2 * targets * config.dim**2 for sources, targets in steps_of(config) if sources != targets)
    assert round((training_flops(config) + 3 * again) / 1e9, 2) == 1.63


def test_attention_agrees_with_the_counter_of_torch() -> None:
    """The counter of torch includes exactly the dense products, not the neighbour sums."""
    small = {"base_vertices": 16, "shells": 3, "neighbours": 4}
    model = create_model("attention", dim=24, **small)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, 3, 32, 32))
    assert counter.get_total_flops() == forward_flops(model.config)


def test_operations_of_the_hamilton_layers() -> None:
    """Post (Q, Q), up (Q, 4Q), down (4Q, Q) as real matrices per head: 9 (4Q)² multiply-adds per head and target."""
    config = QSVConfig(dim=32, heads=2, base_vertices=8, shells=2, neighbours=4, rounds=1)
    targets = sum(t for _, t in steps_of(config))
    width = 4 * config.channels
    assert qsv_flops(config)["Hamilton"] == 2 * 9 * width**2 * config.heads * targets


def test_removed_value_projection_is_not_counted() -> None:
    with_values = AttentionConfig(dim=24, base_vertices=16, shells=2, neighbours=4)
    without = dataclasses.replace(with_values, value="identity")
    sources = sum(s for s, _ in steps_of(with_values))
    difference = attention_flops(with_values)["projections"] - attention_flops(without)["projections"]
    assert difference == 2 * 24**2 * sources


def test_other_models_have_no_operation_count() -> None:
    with pytest.raises(ConfigError, match="no operation count for ResNet20Config"):
        forward_flops(ResNet20Config())


def test_the_baseline_of_every_size_has_as_many_parameters() -> None:
    """At most as many as its QSV, and within a fifth."""
    for size in step.MODEL_SIZES:
        ours, theirs = (
            sum(p.numel() for p in step.build(name, size).parameters()) for name in ("qsv", "attention fused")
        )
        assert 0.8 * ours < theirs <= ours, size
