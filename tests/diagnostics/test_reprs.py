"""Objects that hold large tensors print one short line in a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from quatsphere.data import load_dataset
from quatsphere.diagnostics.diagnose import Diagnosis
from quatsphere.diagnostics.traced_model import TracedModel
from quatsphere.diagnostics.view_trace import ViewTrace
from quatsphere.models import create_model
from quatsphere.nn.trace import NoTrace
from quatsphere.report.run_files import RunFiles
from quatsphere.study.results import Results
from quatsphere.train.predict import Predictions
from quatsphere.train.run import RunResult


def test_reprs_are_one_short_line() -> None:
    model = create_model("qsv", dim=16, heads=2, base_vertices=16, shells=2, in_channels=1, image_size=8)
    digits = load_dataset("digits")
    with torch.no_grad():
        _, trace = model(torch.rand(2, 1, 8, 8), return_trace=True)
    traced = TracedModel(model, digits, "val", 8, None, None, (), lambda done, total: None)
    run = RunFiles("demo", Path(), {"model": {"name": "qsv"}}, [{"epoch": 1}] * 300, None, None)
    view = ViewTrace({"images": [{}]}, {f"weights.{i}": np.zeros((9, 9)) for i in range(50)})
    numbers = {name: list(range(1000)) for name in ("routing", "beta")}
    diagnosis = Diagnosis({"model": "qsv", "data": "digits", "split": "val", "images": 8, **numbers})
    result = RunResult(
        test_accuracy=0.97, test={"images": 359}, best_epoch=3, epochs=9, parameters=38_543, model="qsv", data="digits",
        predictions="A" * 10_000,
    )  # fmt: skip
    graphs = (model.layout.shells[0], model.layout.cross[0], model.within.post, model.within.output_dropout)
    short = (digits, digits.train, traced, run, view, NoTrace(), diagnosis, result, Results("results"), *graphs)
    for text in map(repr, short):
        assert len(text) < 160
        assert "\n" not in text
    assert repr(diagnosis) == "Diagnosis(qsv on 8 val images of digits: routing, beta)"
    assert repr(result).startswith("RunResult(qsv on digits: test accuracy 0.9700 (n = 359), epoch 3 of 9, ")
    assert repr(trace).startswith("Trace(field 4 x (2, 16, 2, 4), ")
    assert len(repr(trace)) < 1000
    assert repr(digits) == "Dataset(digits: 10 classes, 1,295 train, 143 val, 359 test images of 1x8x8)"


def test_layers_print_their_sizes() -> None:
    """No layer of the package prints as a bare name, except those that have no sizes."""
    model = create_model("qsv", dim=16, heads=2, base_vertices=16, shells=2, in_channels=1, image_size=8)
    attention = create_model("attention", dim=16, heads=2, base_vertices=16, shells=2, in_channels=1, image_size=8)
    bare = {"LearnedBound", "Sandwich", "Identity", "Residual", "GatedResidual", "QuaternionPooling", "MeanPooling"}
    for part in (*model.modules(), *attention.modules()):
        assert repr(part) != f"{type(part).__name__}()" or type(part).__name__ in {*bare, "ModuleList"}, part
    assert repr(model.layout.shells[0]) == "Shell(16 vertices, learned)"
    assert repr(model.layout.within) == f"Graph(16 vertices with {model.layout.within.k} neighbours each, euclidean)"
    assert repr(model.within.post) == "HamiltonLinear(heads=2, in_channels=2, out_channels=2)"
    assert len(repr(model).splitlines()) < 100


def test_long_predictions_are_cut() -> None:
    names = tuple(f"image {i}" for i in range(1000))
    lines = repr(Predictions(names, ("a", "b"), torch.full((1000, 2), 0.5))).splitlines()
    assert lines[0] == "image 0  a 0.500  b 0.500"
    assert lines[-1] == "... and 980 more"
    assert len(lines) == 21
