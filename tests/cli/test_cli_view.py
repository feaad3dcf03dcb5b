"""quatsphere view: the trace agrees with the model, the page contains the trace, errors are one line."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quatsphere.data.augment import normalize
from quatsphere.diagnostics.view_trace import ViewImage, compute_trace, example_images
from quatsphere.report.view import read_trace
from quatsphere.train.load import load

Command = Callable[..., Any]


def test_a_view_of_a_run(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    ended = command("view", str(tiny_run), "-o", "inside.html", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == {"view": "inside.html", "trace": "inside.safetensors"}
    page = (tmp_path / "inside.html").read_text()
    carried = re.search(r'<script id="trace" type="application/octet-stream">([^<]*)</script>', page)
    assert carried is not None
    assert base64.b64decode(carried[1]) == (tmp_path / "inside.safetensors").read_bytes()
    assert not re.search(r"https?://|@import|url\(|<link|<iframe|innerHTML|eval\(|fetch\(", page)
    meta = read_trace(tmp_path / "inside.safetensors").meta
    assert len(meta["images"]) == 2
    assert meta["images"][0]["truth"] != meta["images"][1]["truth"]
    assert [step["name"] for step in meta["steps"]] == [
        "within shell 1",
        "shell 1 → 2",
        "round 1 on shell 2",
        "round 2 on shell 2",
    ]


def test_trace_agrees_with_the_model(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    """Compare weights, frames and evidence in the file with a forward pass of the trained model."""
    assert command("view", str(tiny_run), "-o", "v.html").code == 0
    arrays = read_trace(tmp_path / "v.safetensors").arrays
    trained = load(str(tiny_run))
    model: Any = trained.model
    shown = example_images(trained.dataset())
    images = torch.stack([image.pixels for image in shown])
    mean, std = torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"])
    with torch.no_grad():
        logits, trace = model(normalize(images, mean, std), return_trace=True)
    for step in range(len(trace["weights"])):
        weights = arrays[f"weights.{step}"]
        assert np.abs(weights - trace["weights"][step].numpy()).max() < 1e-4
        assert np.abs(weights.sum(2) - 1).max() < 1e-3
        assert np.abs(arrays[f"field.{step}"] - trace["field"][step].numpy()).max() < 1e-4
        assert np.allclose(arrays[f"norm.{step}"], trace["hidden"][step].norm(dim=-1).numpy(), atol=1e-5)
        assert np.array_equal(arrays[f"neighbours.{step}"], trace["neighbours"][step].numpy())
    predicted = logits.argmax(1)
    exact = (logits.gather(1, predicted[:, None])[:, 0] - model.classifier.bias[predicted]).detach().numpy()
    last = len(trace["weights"]) - 1
    assert np.allclose(arrays[f"evidence.{last}"].sum(1), exact, atol=1e-4)
    assert np.allclose(arrays["pool"].sum(1), 1, atol=1e-5)


def test_messages_sum_to_the_aggregate(tiny_run: Path) -> None:
    """Σ_j w_ij r_ij x_j r_ij* from the file's own numbers is the output of the kernel."""
    trained = load(str(tiny_run))
    model: Any = trained.model
    shown = example_images(trained.dataset())[:1]
    arrays = {name: torch.as_tensor(values) for name, values in compute_trace(trained, shown).arrays.items()}
    from quatsphere.geometry import quaternion

    mean, std = torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"])
    with torch.no_grad():
        _, trace = model(normalize(shown[0].pixels[None], mean, std), return_trace=True)
    neighbours = arrays["neighbours.1"].long()
    relative = quaternion.relative(arrays["field.1"][0][:, None], arrays["source_field.1"][0][neighbours])
    sent = arrays["features.1"][0][neighbours]
    messages = quaternion.sandwich(relative[..., None, :].expand(sent.shape), sent)
    aggregated = (arrays["weights.1"][0][..., None, None] * messages).sum(1)
    assert torch.allclose(aggregated, trace["aggregated"][1][0], atol=1e-5)


def test_drift_is_an_angle(tiny_run: Path) -> None:
    trained = load(str(tiny_run))
    arrays = compute_trace(trained, example_images(trained.dataset())).arrays
    assert (arrays["drift.0"] > 0).all()
    assert arrays["drift.0"].max() < np.pi
    assert arrays["drift.0"].shape == arrays["base.0"].shape[:2]


def test_colours_of_a_grey_image(tiny_run: Path) -> None:
    trained = load(str(tiny_run))
    grey = ViewImage("grey", torch.full((1, 8, 8), 77, dtype=torch.uint8), None)
    arrays = compute_trace(trained, [grey]).arrays
    for step in range(4):
        assert (arrays[f"colour.{step}"] == 77).all()


def test_images_from_files(tiny_run: Path, tmp_path: Path, command: Command, noise: Callable[..., bytes]) -> None:
    name = "<img src=x onerror=alert(1)>.png"
    (tmp_path / name).write_bytes(noise(1, (20, 30, 3)))
    (tmp_path / "b.png").write_bytes(noise(2))
    ended = command("view", str(tiny_run), "--image", name, "b.png", "b.png", "-o", "v.html")
    assert ended.code == 0, ended.err
    assert "2 images are shown; the other 1 left out" in ended.err
    meta = read_trace(tmp_path / "v.safetensors").meta
    assert [(image["name"], image["truth"]) for image in meta["images"]] == [(name, None), ("b.png", None)]
    assert "<img src=x" not in (tmp_path / "v.html").read_text()
    assert command("view", str(tiny_run), "--image", "b.png", "-o", "one.html").code == 0
    assert len(read_trace(tmp_path / "one.safetensors").meta["images"]) == 1


def test_errors_are_one_line(tiny_run: Path, tmp_path: Path, fails: Command, command: Command) -> None:
    fails(4, "no run in nowhere", "view", "nowhere")
    fails(3, r"cannot read .*none\.png", "view", str(tiny_run), "--image", "none.png", "-o", "v.html")
    fails(2, r"no folder no/folder \(for v.html\); create it", "view", str(tiny_run), "-o", "no/folder/v.html")
    fails(2, "RUN; see --help", "view")
    words = ["--preset", "demo", "--model.name", "resnet20", "--model.width", "2", "--train.epochs", "1"]
    assert command("train", *words, "--data.max_train_images", "64", "--run-dir", "plain").code == 0
    line = fails(2, "'resnet20' has no shells to show; view a run of qsv or attention", "view", "plain")
    assert "Traceback" not in line
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    "change",
    [
        ["--model.layout", "plane"],
        ["--model.transport", "one_sided"],
        ["--model.transport", "lift", "--model.head_mixing", "linear", "--model.perturbation", "shell"],
    ],
)
def test_other_models(change: list[str], tiny: list[str], command: Command, tmp_path: Path) -> None:
    assert command("train", *tiny, *change, "--run-dir", "r").code == 0
    ended = command("view", "r")
    assert ended.code == 0, ended.err
    assert ended.out == "view: r/view.html  (trace: r/view.safetensors)\n"
    assert read_trace(tmp_path / "r/view.safetensors").arrays["positions.0"].shape[1] == (2 if "plane" in change else 3)


def test_evidence_with_a_pool_weight_per_head(tiny: list[str], command: Command) -> None:
    """The contributions of the vertices sum to the predicted logit minus its bias."""
    change = ["--model.pooling", "quaternion_per_head"]
    assert command("train", *tiny, *change, "--run-dir", "r").code == 0
    trained = load("r")
    model: Any = trained.model
    shown = example_images(trained.dataset())
    found = compute_trace(trained, shown).arrays
    mean, std = torch.tensor(trained.meta["mean"]), torch.tensor(trained.meta["std"])
    with torch.no_grad():
        logits, trace = model(normalize(torch.stack([i.pixels for i in shown]), mean, std), return_trace=True)
    predicted = logits.argmax(1)
    exact = (logits.gather(1, predicted[:, None])[:, 0] - model.classifier.bias[predicted]).detach().numpy()
    assert np.allclose(found[f"evidence.{len(trace['weights']) - 1}"].sum(1), exact, atol=1e-4)
    assert np.allclose(found["pool"].sum(1), 1, atol=1e-5)


def test_attention_has_weights_and_no_frames(command: Command, tmp_path: Path) -> None:
    words = ["--preset", "demo", "--model.name", "attention", "--model.dim", "16", "--model.heads", "2"]
    small = [
        "--model.base_vertices",
        "8",
        "--model.shells",
        "2",
        "--train.epochs",
        "1",
        "--data.max_train_images",
        "64",
    ]
    assert command("train", *words, *small, "--run-dir", "r").code == 0
    assert command("view", "r").code == 0
    trace = read_trace(tmp_path / "r/view.safetensors")
    assert trace.meta["transport"] is None
    assert "weights.1" in trace.arrays
    assert not any(name.startswith(("field", "base", "drift", "features")) for name in trace.arrays)
