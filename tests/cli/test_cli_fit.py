"""--data.fit: images that are not square are cropped or squashed, the same in training, predict, view and preview."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from quatsphere.train.evaluation import predict_logits
from quatsphere.train.load import load
from quatsphere.train.predict import image_pixels

Command = Callable[..., Any]


def panorama(label: int, seed: int) -> bytes:
    """16 x 32 pixels of noise in the middle; the class is the colour of the outer quarters."""
    pixels = np.random.default_rng(seed).integers(0, 256, (16, 32, 3), np.uint8)
    pixels[:, :8] = pixels[:, -8:] = 40 + 150 * label
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory, write: Callable[..., Path]) -> Path:
    files = {f"{kind}/{i}.png": panorama(label, 100 * label + i) for label, kind in enumerate("ab") for i in range(24)}
    return write(tmp_path_factory.mktemp("wide"), files)


@pytest.fixture(scope="module")
def run(wide: Path, tmp_path_factory: pytest.TempPathFactory, tiny: list[str], command: Command) -> Path:
    folder = tmp_path_factory.mktemp("fit") / "run"
    words = ("--data.name=folder", f"--data.root={wide}", "--data.image_size=16", "--data.fit=squash")
    ended = command(
        "train", *tiny, *words, "--train.batch_size=8", f"--run-dir={folder}", "--model.wrap_longitude=true"
    )
    assert ended.code == 0, ended.err
    assert "48 of 48 images resized to 16 x 16, 48 of them squashed to a square" in ended.err
    return folder


def test_a_crop_is_called_a_crop(wide: Path, command: Command) -> None:
    words = ("data", "verify", "folder", "--data.root", str(wide), "--data.image_size", "16")
    said = command(*words).out
    assert "48 of them cropped to the centre square (--data.fit squash keeps the edges)" in said
    assert "48 of them squashed" in command(*words, "--data.fit", "squash").out
    assert command(*words).out == said


def test_predict_and_view_fit_as_the_run_did(run: Path, wide: Path, tmp_path: Path, command: Command) -> None:
    trained = load(str(run))
    dataset = trained.dataset()
    files, splits = sorted(wide.rglob("*.png")), (dataset.train, dataset.val, dataset.test)
    images = {image.numpy().tobytes() for split in splits for image in split.images}
    assert {image_pixels(file, trained.config).numpy().tobytes() for file in files} == images
    row = json.loads(command("predict", str(run), str(files[0]), "--json", "--top=2").out)
    logits = predict_logits(trained.model, dataset, image_pixels(files[0], trained.config)[None])
    assert row["classes"]["a"] == pytest.approx(float(logits.softmax(1)[0, 0]), abs=1e-5)
    ended = command("view", str(run), "--image", str(files[0]), "-o", str(tmp_path / "view.html"))
    assert ended.code == 0, ended.err


def test_preview_uses_the_chosen_fit(wide: Path, tmp_path: Path, command: Command) -> None:
    pictures = []
    for fit in ("crop", "squash"):
        words = ("data", "preview", "folder", "--data.root", str(wide), "--data.image_size", "16", "--data.fit", fit)
        assert command(*words, "-o", f"{fit}.png").code == 0
        pictures.append((tmp_path / f"{fit}.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_a_run_without_the_field_was_cropped(
    class_folder: Path, tmp_path: Path, tiny: list[str], command: Command, fails: Command
) -> None:
    words = ("--data.name=folder", f"--data.root={class_folder}", "--train.batch_size=4")
    assert command("train", *tiny, *words, "--run-dir=run").code == 0
    config = tmp_path / "run" / "config.yaml"
    assert "  fit: crop\n" in config.read_text()
    config.write_text(config.read_text().replace("  fit: crop\n", ""))
    (tmp_path / "run" / "result.json").unlink()
    assert load("run").config.data.fit == "crop"
    ended = command("train", "--run-dir=run", "--resume")
    assert ended.code == 0, ended.err
    (tmp_path / "run" / "result.json").unlink()
    asked = ("train", "--run-dir=run", "--resume", "--data.fit=squash")
    fails(2, "data.fit: 'crop' in the run, 'squash' now", *asked)


def test_the_help_of_wrap_names_the_crop(command: Command) -> None:
    text = re.sub(r"\s+", " ", command("train", "--help").out)
    assert "read these with --data.fit squash, because a crop would cut off the edges that meet" in text
