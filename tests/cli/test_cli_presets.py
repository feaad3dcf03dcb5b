"""Presets: the paper's appendix field by field, matched budgets, and three training steps of each."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quatsphere.config import AttentionConfig, ResNet20Config, RunConfig
from quatsphere.config.presets import LITE_BUDGET, PRESETS, load_preset
from quatsphere.models import build_model
from quatsphere.models.attention_net import attention_parameters
from quatsphere.storage.run_folder import RunFolder

APPENDIX: list[tuple[str, str, Any]] = [
    ("d 256", "model.dim", 256),
    ("H 16", "model.heads", 16),
    ("V_1 128", "model.base_vertices", 128),
    ("L 5", "model.shells", 5),
    ("batch 128", "train.batch_size", 128),
    ("epochs 500", "train.epochs", 500),
    ("patience 50", "train.patience", 50),
    ("min delta 1e-4", "train.min_delta", 1e-4),
    ("weight decay 0.05", "optim.weight_decay", 0.05),
    ("one-cycle", "optim.schedule", "one_cycle"),
    ("peak 1e-3", "optim.peak_lr", 1e-3),
    ("warm-up 10 %", "optim.warmup", 0.1),
    ("div 10", "optim.initial_div", 10.0),
    ("final div 100", "optim.final_div", 100.0),
    ("position lr 5e-5", "optim.position_lr", 5e-5),
    ("bound logits x3", "optim.bound_lr_factor", 3.0),
    ("quaternion lr 2.5e-3", "optim.quaternion_lr", 2.5e-3),
    ("quaternion lr constant", "optim.quaternion_schedule", "constant"),
    ("Riemannian Adam", "optim.quaternion_optimizer", "riemannian_adam"),
    ("label smoothing 0.1", "train.label_smoothing", 0.1),
    ("attention dropout 0.1", "model.attention_dropout", 0.1),
    ("output dropout 0.1", "model.output_dropout", 0.1),
    ("smoothness 1e-3", "train.smoothness", 1e-3),
    ("head diversity 1e-2", "train.head_diversity", 1e-2),
    ("beta penalty 1e-5", "train.beta_penalty", 1e-5),
    ("crop pad 4", "data.crop_pad", 4),
    ("flip", "data.flip", True),
    ("TrivialAugmentWide", "data.trivial_augment", True),
    ("mixup off", "data.mixup", 0.0),
    ("cutmix off", "data.cutmix", 0.0),
    ("validation 5,000 of 50,000", "data.val_fraction", 0.1),
    ("repulsion", "optim.repulsion", True),
    ("repulsion k 8", "optim.repulsion_neighbours", 8),
    ("repulsion every 10 batches", "optim.repulsion_every", 10),
    ("repulsion to 40 %", "optim.repulsion_until", 0.4),
    ("fp32", "train.precision", "fp32"),
    ("compiled", "train.compile", True),
    ("two rounds", "model.rounds", 2),
    ("alignment", "model.routing", "alignment"),
    ("sandwich", "model.transport", "sandwich"),
    ("learned field", "model.field_mode", "learned"),
    ("learned bound", "model.bound", "learned"),
    ("zero init", "model.zero_init", True),
    ("sphere", "model.layout", "sphere"),
    ("radii from 1.0", "model.outer_radius", 1.0),
    ("radii to 0.4", "model.inner_radius", 0.4),
    ("k by the budget", "model.neighbours", None),
    ("quaternion pooling", "model.pooling", "quaternion"),
]
"""The paper's appendix "Default Configuration" and the choices of its method section: phrase, field, value."""
OTHERS: dict[str, dict[str, Any]] = {
    "paper-cifar10": {"data.name": "cifar10"},
    "paper-cifar100": {"data.name": "cifar100", "optim.repulsion_neighbours": 16, "model.num_classes": 100},
    "paper-attention": {"model.name": "attention", "train.patience": None, "model.dim": None, "model.heads": None},
    "paper-flat": {"model.name": "attention", "model.layout": "plane", "train.patience": None},
    "paper-resnet20": {"model.name": "resnet20", "model.width": 16, "train.patience": None},
    "paper-linear": {"model.name": "linear", "train.patience": None},
}
BASELINE = {"model.attention_dropout": 0.0, "model.output_dropout": 0.0, "model.rounds": 0, "model.positions": "frozen"}


@functools.cache
def preset(name: str) -> RunConfig:
    return load_preset(name)


def value(config: RunConfig, key: str) -> Any:
    group, field = key.split(".")
    return getattr(getattr(config, group), field)


@pytest.mark.parametrize(("phrase", "key", "expected"), APPENDIX, ids=[phrase for phrase, _, _ in APPENDIX])
def test_paper_presets_match_the_appendix(phrase: str, key: str, expected: Any) -> None:
    for name in ("paper-cifar10", "paper-cifar100"):
        wanted = OTHERS[name].get(key, expected)
        assert value(preset(name), key) == wanted, f"{name}: the paper has {phrase}"
    if not key.startswith("model."):
        for name in ("paper-attention", "paper-flat", "paper-resnet20"):
            wanted = OTHERS[name].get(key, expected)
            assert value(preset(name), key) == wanted, f"{name} shares the pipeline: {phrase}"


@pytest.mark.parametrize("name", OTHERS)
def test_what_each_paper_preset_changes(name: str) -> None:
    config = preset(name)
    for key, expected in OTHERS[name].items():
        assert value(config, key) == expected
    if config.model.name == "attention":
        for key, expected in BASELINE.items():
            assert value(config, key) == expected


def test_the_appendix_table_is_complete() -> None:
    """Each field occurs once, and every preset of the paper is listed."""
    assert len({key for _, key, _ in APPENDIX}) == len(APPENDIX)
    assert set(OTHERS) == {name for name in PRESETS if name.startswith("paper-")}


def parameters(config: RunConfig) -> int:
    return sum(parameter.numel() for parameter in build_model(config.model).parameters())


PARAMETERS = {
    "paper-cifar10": 639_187,
    "paper-cifar100": 639_187 + 90 * 257,
    "paper-attention": 567_658,
    "paper-flat": 567_658,
    "paper-resnet20": 269_722,
    "paper-linear": 96_010,
}
"""The paper has 0.64M, 0.57M and 0.27M; 90 more classes are 90 more rows of 256 weights and a bias."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_paper_presets_build(name: str) -> None:
    assert parameters(preset(name)) == PARAMETERS[name]


def train_three_steps(name: str, root: Path, command: Callable[..., Any], *more: str) -> None:
    words = f"--preset {name} --data.name folder --data.root {root} --data.max_train_images 6 --train.batch_size 2"
    trained = command("train", *words.split(), "--train.epochs=1", "--run-dir=run", "--json", *more)
    assert trained.code == 0, trained.err
    result = json.loads(trained.out)
    assert result == RunFolder("run").read_result()
    assert result["steps"] == 3
    losses = json.loads(Path("run/metrics.jsonl").read_text())["train"]
    assert all(isinstance(loss, float) for loss in losses.values())


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "demo"])
def test_every_preset_trains_three_steps(name: str, class_folder: Path, command: Callable[..., Any]) -> None:
    """Without compiling, which takes longer than the steps."""
    portable = ["--model.backend=factored"] if preset(name).model.name == "qsv" else []
    train_three_steps(name, class_folder, command, "--train.compile=false", *portable)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("name", ["paper-cifar10", "paper-attention", "paper-resnet20"])
def test_the_paper_presets_train_compiled(name: str, class_folder: Path, tmp_path: Path) -> None:
    """In a separate process, because the shape checks under pytest cannot be compiled."""

    def command(*words: str) -> SimpleNamespace:
        line = [sys.executable, "-m", "quatsphere", *words]
        done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=False)
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    train_three_steps(name, class_folder, command)


def test_lite_baselines_fill_the_budget_without_exceeding_it() -> None:
    assert parameters(preset("lite")) == LITE_BUDGET
    for name in ("lite-attention", "lite-flat"):
        model = build_model(preset(name).model)
        assert isinstance(model.config, AttentionConfig)
        assert model.config.dim is not None
        assert parameters(preset(name)) <= LITE_BUDGET
        assert attention_parameters(model.config, model.config.dim + 8) > LITE_BUDGET
    resnet = preset("lite-resnet20")
    assert isinstance(resnet.model, ResNet20Config)
    assert parameters(resnet) <= LITE_BUDGET
    wider = replace(resnet, model=replace(resnet.model, width=resnet.model.width + 1))
    assert parameters(wider) > LITE_BUDGET


def test_lite_presets_differ_in_the_model_alone() -> None:
    lite = preset("lite")
    for name in ("lite-attention", "lite-flat", "lite-resnet20"):
        other = preset(name)
        assert (other.data, other.optim, other.train) == (lite.data, lite.optim, lite.train)
