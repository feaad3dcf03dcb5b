"""Own images from the command line: sizes by one rule, estimates, fine-tuning, every bad file named, the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from quatsphere.config import QSVConfig
from quatsphere.config.presets import load_preset, side_for, sizes_for

SMALL = ("--model.dim=16", "--model.heads=2", "--model.backend=factored", "--train.epochs=1", "--train.threads=1")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """24 colour images of different shapes in two classes."""
    return write_photos(tmp_path / "my_photos", "RGB", (20, 40))


def write_photos(root: Path, mode: str, sides: tuple[int, int]) -> Path:
    rng = np.random.default_rng(0)
    for name in ("bars", "stripes"):
        (root / name).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(256, size=(*rng.integers(*sides, 2), 3), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(root / name / f"{number}.png")
    return root


def test_rule_gives_the_sizes_of_the_paper_and_of_the_demo() -> None:
    paper, demo = sizes_for(32), sizes_for(8)
    assert {key: getattr(QSVConfig(), key.removeprefix("model.")) for key in paper if key.startswith("model.")} == {
        key: value for key, value in paper.items() if key.startswith("model.")
    }
    assert paper["data.crop_pad"] == 4
    preset = load_preset("demo")
    assert (demo["model.base_vertices"], demo["model.shells"]) == (preset.model.base_vertices, preset.model.shells)
    assert demo["data.crop_pad"] == preset.data.crop_pad


@given(st.integers(1, 2000))
def test_rule_gives_legal_sizes_for_every_image(side: int) -> None:
    sizes = {key.removeprefix("model."): value for key, value in sizes_for(side).items() if key.startswith("model.")}
    config = QSVConfig(**sizes)
    counts = [round(config.base_vertices * (1 + shell / 2)) for shell in range(config.shells)]
    assert all(count % config.plane_rows == 0 for count in counts)
    assert 8 <= side_for(side) <= 64
    assert side_for(side) <= max(8, side)


def settings_of(command: Callable[..., Any], *words: str) -> dict[str, Any]:
    outcome = command("train", *words, "--print-config")
    assert outcome.code == 0, outcome.err
    return yaml.safe_load(outcome.out)


def test_settings_follow_from_the_images(photos: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    found = settings_of(command, "--data.root", str(photos))
    assert (found["data"]["name"], found["data"]["image_size"], found["data"]["channels"]) == ("folder", 16, 3)
    assert (found["model"]["base_vertices"], found["model"]["shells"]) == (64, 4)
    larger = settings_of(command, "--data.root", str(photos), "--data.image_size", "100", "--model.shells", "3")
    assert (larger["model"]["base_vertices"], larger["model"]["shells"]) == (400, 3)
    grey = settings_of(command, "--data.root", str(write_photos(tmp_path / "grey", "L", (70, 90))))
    assert (grey["data"]["image_size"], grey["data"]["channels"]) == (64, 1)
    preset = settings_of(command, "--preset", "lite", "--data.name", "folder", "--data.root", str(photos))
    assert (preset["model"]["base_vertices"], preset["data"]["image_size"]) == (48, None)


def test_a_folder_of_photos_is_one_command(photos: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    outcome = command("train", "--data.root", f"{photos}/", *SMALL)
    assert outcome.code == 0, outcome.err
    run = Path("runs/my_photos")
    assert (run / "result.json").is_file()
    lines = outcome.err.splitlines()
    survey = next(i for i, line in enumerate(lines) if "24 colour images in 2 classes" in line)
    sampled = next(i for i, line in enumerate(lines) if "64 vertices on the first of 4 shells sample 1,600 " in line)
    estimate = next(i for i, line in enumerate(lines) if line.startswith("estimate: ") and "GiB of memory" in line)
    start = next(i for i, line in enumerate(lines) if line.startswith("qsv with "))
    assert survey < sampled < estimate < start
    assert "trained at 16 x 16" in lines[survey]
    assert "for 1 epoch" in lines[estimate]
    predicted = command("predict", str(photos / "bars" / "0.png"), "--model", str(run), "--json")
    assert set(json.loads(predicted.out)["classes"]) == {"bars", "stripes"}


def test_broken_number_in_the_estimate_is_left_to_the_run(photos: Path, command: Callable[..., Any]) -> None:
    outcome = command("train", "--data.root", str(photos), *SMALL, "--optim.peak_lr=1", "--train.beta_penalty=1e300")
    assert outcome.code == 5, outcome.err
    assert "estimate: " in outcome.err
    assert "beta_penalty is not finite" in outcome.err.splitlines()[-1]


def test_fine_tuning_states_what_is_carried_over(tmp_path: Path, command: Callable[..., Any]) -> None:
    photos = write_photos(tmp_path / "marks", "L", (16, 30))
    words = ("--init", "digits-qsv", "--data.root", str(photos), "--model.backend=factored", "--train.epochs=1")
    outcome = command("train", *words, "--train.threads=1", "--run-dir", "tuned", "--data.image_size", "12")
    assert outcome.code == 0, outcome.err
    notes = [line.removeprefix("quatsphere: note: ") for line in outcome.err.splitlines()]
    assert "copied from digits-qsv: 37,893 of 38,023 parameters" in notes
    line = "initialised: classifier (2 classes, 10 before); optimiser, schedule and normalisation of the new data"
    assert line in notes
    assert "images have 12 pixels instead of 8: no weight depends on that" in notes
    stored = yaml.safe_load(Path("tuned/config.yaml").read_text())
    assert (stored["model"]["dim"], stored["model"]["base_vertices"], stored["train"]["init"]) == (64, 32, "digits-qsv")
    packed = command("pack", "tuned", "-o", "packed")
    assert packed.code == 0, packed.err
    assert "| started from | digits-qsv |" in Path("packed/README.md").read_text()


def test_a_model_to_start_from_must_exist_and_fit(fails: Callable[..., str]) -> None:
    fails(4, "no run in nothing", "train", "--init", "nothing", "--preset", "demo", "--run-dir", "x")
    words = ("--model.name", "resnet20", "--data.name", "digits", "--run-dir", "x", "--train.batch_size", "8")
    fails(2, "train.init 'digits-qsv' is a model 'qsv', not 'resnet20'", "train", "--init", "digits-qsv", *words)
    assert not Path("x").exists()


def test_every_bad_file_is_named(photos: Path, fails: Callable[..., str], command: Callable[..., Any]) -> None:
    for number in range(3):
        (photos / "bars" / f"bad{number}.png").write_bytes(b"text")
    words = ("train", "--data.root", str(photos), "--run-dir", "x", *SMALL)
    fails(3, r"bad image bars/bad0.png .* and 2 more", *words)
    error = command(*words).err
    assert all(f"bars/bad{number}.png (" in error for number in range(3))
    assert not Path("x").exists()


def test_cache_is_listed_and_emptied(photos: Path, command: Callable[..., Any], fails: Callable[..., str]) -> None:
    assert command("data", "verify", "folder", "--data.root", str(photos)).code == 0
    before = json.loads(command("data", "cache", "--json").out)
    assert before["decoded"]["files"] >= 2
    assert before["decoded"]["bytes"] > 0
    fails(2, "--downloads belongs to --clear", "data", "cache", "--downloads")
    cleared = command("data", "cache", "--clear")
    assert "freed " in cleared.out
    after = json.loads(command("data", "cache", "--json").out)
    assert after["decoded"]["files"] == 0
    assert after["downloads"] == before["downloads"]
    assert command("data", "verify", "folder", "--data.root", str(photos)).code == 0
