"""Objects that hold large tensors print one short line in a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from quatsphere.data import load_dataset
from quatsphere.diagnostics.traced_model import TracedModel
from quatsphere.models import create_model
from quatsphere.nn.trace import NoTrace
from quatsphere.report.run_files import RunFiles
from quatsphere.report.view import ViewTrace


def test_reprs_are_one_short_line() -> None:
    model = create_model("qsv", dim=16, heads=2, base_vertices=16, shells=2, in_channels=1, image_size=8)
    digits = load_dataset("digits")
    with torch.no_grad():
        _, trace = model(torch.rand(2, 1, 8, 8), return_trace=True)
    traced = TracedModel(model, digits, "val", 8, None, None, (), lambda done, total: None)
    run = RunFiles("demo", Path(), {"model": {"name": "qsv"}}, [{"epoch": 1}] * 300, None, None)
    view = ViewTrace({"images": [{}]}, {f"weights.{i}": np.zeros((9, 9)) for i in range(50)})
    for text in map(repr, (digits, digits.train, traced, run, view, NoTrace())):
        assert len(text) < 160
        assert "\n" not in text
    assert repr(trace).startswith("Trace(field 4 x (2, 16, 2, 4), ")
    assert len(repr(trace)) < 1000
    assert repr(digits) == "Dataset(digits: 10 classes, 1,295 train, 143 val, 359 test images of 1x8x8)"
