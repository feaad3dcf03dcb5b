"""evaluate, predict, info and data: what a script reads, images of any size, and runs that cannot be used."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quatsphere.config.presets import LITE_BUDGET
from quatsphere.storage.checkpoint import load_checkpoint, save_checkpoint

Command = Callable[..., Any]


def test_evaluate_gives_what_training_gave(tiny_run: Path, command: Command) -> None:
    ended = command("evaluate", str(tiny_run), "--json")
    assert ended.code == 0
    assert ended.err == ""
    report = json.loads(ended.out)
    stored = json.loads((tiny_run / "result.json").read_text())
    assert report["split"] == "test"
    assert report["step"] == stored["best_step"]
    assert {name: report[name] for name in stored["test"]} == stored["test"]
    assert np.array(report["confusion"]).sum() == report["images"] == 359
    assert set(report) >= {"accuracy", "per_class", "confusion", "nll", "ece"}
    val = json.loads(command("evaluate", str(tiny_run), "--split", "val", "--json").out)
    assert val["accuracy"] == stored["val_accuracy"]


def test_evaluate_for_people(tiny_run: Path, command: Command) -> None:
    text = command("evaluate", str(tiny_run), "--split", "train").out
    assert "train images, step" in text
    assert all(f"│ {digit} " in text for digit in range(10))
    assert text.splitlines()[-1].startswith("train accuracy 0.")


def test_evaluate_refuses_other_data(tiny_run: Path, class_folder: Path, tmp_path: Path, fails: Command) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    text = (run / "config.yaml").read_text().replace("name: digits", "name: folder")
    (run / "config.yaml").write_text(text)
    words = ("evaluate", "run", "--data.root", str(class_folder))
    fails(4, "the data is not what the run was trained on .* name the right files with --data.root", *words)


@pytest.mark.parametrize("verb", ["evaluate", "predict"])
def test_runs_that_cannot_be_opened(verb: str, tiny_run: Path, tmp_path: Path, fails: Command) -> None:
    rest = ["x.png"] if verb == "predict" else []
    fails(4, r"no run in nowhere \(looked for config.yaml\); name the folder of a run", verb, "nowhere", *rest)
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    for text, message in (
        ("", "not the settings of a run"),
        ("model: 3", "not the settings of a run"),
        (config.replace("name: qsv", "name: vit"), "not the settings of a run .*vit"),
        (config.replace("epochs: 1", "epochs: 0"), "epochs must be >= 1"),
        (config.replace("  epochs: 1\n", "  epochs: 1\n  extra: 1\n"), "extra"),
    ):
        (run / "config.yaml").write_text(text)
        fails(4, message, verb, "run", *rest)
    (run / "config.yaml").write_text(config)
    shutil.rmtree(run / "checkpoints")
    fails(4, "run 'run' has no checkpoint yet; train it first", verb, "run", *rest)


@pytest.fixture
def two_steps(tiny: list[str], tmp_path: Path, command: Command) -> Path:
    """A run of two epochs with both checkpoints and without its result."""
    ended = command("train", *tiny, "--train.epochs=2", "--run-dir=run")
    assert ended.code == 0, ended.err
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_damaged_checkpoints(two_steps: Path, command: Command, fails: Command) -> None:
    """A damaged checkpoint is replaced by an older one with a note; exit code 4 only if no good one is left."""
    older, newer = sorted((two_steps / "checkpoints").glob("step-*"))
    flip(newer / "state.safetensors")
    ended = command("train", "--run-dir=run", "--resume")
    assert ended.code == 0, ended.err
    note = "checkpoint step 4 is damaged (hash); falling back to step 2"
    assert f"quatsphere: note: {note}" in ended.err.splitlines()
    assert command("evaluate", "run", "--json").code == 0
    (two_steps / "result.json").unlink()
    for step in (older, newer):
        flip(step / "weights.safetensors")
    fails(
        4, r"no good checkpoint left \(.*: 2 damaged, step 2: hash\); start again", "train", "--run-dir=run", "--resume"
    )
    fails(4, r"checkpoint step \d is damaged \(hash: .*weights.safetensors\); load another", "evaluate", "run")


def test_a_field_that_left_the_sphere_needs_repair(two_steps: Path, command: Command, fails: Command) -> None:
    """Quaternions that are not of unit norm are refused unless --repair, which lists what it renormalised."""
    *_, newest = sorted((two_steps / "checkpoints").glob("step-*"))
    saved = load_checkpoint(newest)
    name = next(name for name in saved.weights if name.endswith(".base"))
    saved.weights[name].mul_(1.01)
    save_checkpoint(newest.parent, saved, best=True)
    refused = rf"{name} has a quaternion whose norm is off by 1.0e-02; --repair renormalises it"
    fails(4, refused, "evaluate", "run")
    fails(4, refused, "train", "--run-dir=run", "--resume")
    ended = command("train", "--run-dir=run", "--resume", "--repair")
    assert ended.code == 0, ended.err
    assert f"quatsphere: note: repaired {name}: a norm was off by 1.0e-02" in ended.err.splitlines()
    (two_steps / "result.json").unlink()
    saved.weights[name][0] = float("nan")
    save_checkpoint(newest.parent, saved, best=False)
    fails(4, f"{name} holds values that are not finite; use an older checkpoint", "train", "--run-dir=run", "--resume")


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    """Image files of many sizes, modes and formats."""
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (50, 80, 3), np.uint8))
    images = {
        "wide.jpg": colour,
        "tall.png": colour.transpose(Image.Transpose.ROTATE_90),
        "grey.png": colour.convert("L"),
        "alpha.png": colour.convert("RGBA"),
        "palette.png": colour.convert("P"),
        "same.webp": colour.resize((8, 8)),
        "dot.png": colour.resize((1, 1)),
        "a name with späces.png": colour,
    }
    for name, image in images.items():
        image.save(tmp_path / name)
    return list(images)


def test_predict_takes_images_of_any_size(tiny_run: Path, pictures: list[str], command: Command) -> None:
    ended = command("predict", str(tiny_run), *pictures, "--json", "--top", "10")
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["file"] for row in rows] == pictures
    for row in rows:
        assert len(row["classes"]) == 10
        assert sum(row["classes"].values()) == pytest.approx(1, abs=1e-5)
        assert list(row["classes"].values()) == sorted(row["classes"].values(), reverse=True)
    lines = command("predict", str(tiny_run), *pictures).out.splitlines()
    assert all(line.startswith(f"{name}  ") for line, name in zip(lines, pictures, strict=True))
    assert all(len(line.removeprefix(name).split()) == 6 for line, name in zip(lines, pictures, strict=True))


def test_predict_agrees_with_evaluate(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    """A data set's own images, saved as files, get the answers that evaluation counts."""
    from quatsphere.data import load_dataset
    from quatsphere.train.evaluation import predict_logits
    from quatsphere.train.load import load

    dataset = load_dataset("digits", max_train_images=64)
    trained = load(str(tiny_run))
    names = [f"{i}.png" for i in range(70)]
    for name, image in zip(names, dataset.test.images, strict=False):
        Image.fromarray(image[0].numpy()).save(tmp_path / name)
    expected = predict_logits(trained.model, dataset, dataset.test.images[:70]).softmax(1)
    rows = command("predict", str(tiny_run), *names, "--json", "--top", "10").out.splitlines()
    found = torch.tensor([[json.loads(row)["classes"][label] for label in dataset.classes] for row in rows])
    assert torch.allclose(found, expected, atol=1e-6)


def test_predict_refuses_files_that_are_not_images(
    tiny_run: Path, tmp_path: Path, pictures: list[str], fails: Command, command: Command
) -> None:
    """The other files are classified; one bad file is the error message, several are noted one by one."""
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes((tmp_path / "tall.png").read_bytes()[:200])
    os.mkfifo(tmp_path / "pipe.png")
    reasons = {
        "text.png": "not a PNG, JPEG or WebP image",
        "empty.png": "the file is empty",
        "cut.png": "truncated|broken",
        "pipe.png": "not a regular file",
        "missing.png": "No such file or directory",
    }
    answers = [command("predict", str(tiny_run), name).out for name in pictures[:2]]
    for name, reason in reasons.items():
        cure = rf"cannot read {name} \(.*({reason}).*\); give a PNG"
        fails(3, cure, "predict", str(tiny_run), name)
        ended = command("predict", str(tiny_run), pictures[0], name, pictures[1])
        assert (ended.code, len(ended.err.splitlines())) == (3, 1)
        assert re.search(cure, ended.err)
        assert [line.split()[:2] for line in ended.out.splitlines()] == [line.split()[:2] for line in answers]
    ended = command("predict", str(tiny_run), *reasons, pictures[0])
    assert ended.code == 3
    assert len(ended.out.splitlines()) == 1
    *notes, last = ended.err.splitlines()
    assert [re.search("cannot read (.*?) ", line)[1] for line in notes] == list(reasons)  # type: ignore[index]
    assert last == "quatsphere: error: 5 images could not be read, see above; the others were classified"


def test_predict_takes_folders(tiny_run: Path, tmp_path: Path, noise: Callable[..., bytes], command: Command) -> None:
    for name in ("b/2.png", "b/1.PNG", "b/deep/3.png", "b/.hidden.png", "a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(noise(0))
    (tmp_path / "b" / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    ended = command("predict", str(tiny_run), "b", "a.png", "a.png", "--json")
    assert ended.code == 0, ended.err
    files = [json.loads(line)["file"] for line in ended.out.splitlines()]
    assert files == ["b/1.PNG", "b/2.png", "b/deep/3.png", "a.png", "a.png"]
    assert ended.err == "quatsphere: note: 1 of 4 files in b ignored: no PNG, JPEG or WebP\n"
    ended = command("predict", str(tiny_run), "empty", "a.png")
    assert (ended.code, len(ended.out.splitlines())) == (3, 1)
    assert "no PNG, JPEG or WebP images in empty; name image files" in ended.err


def test_predict_states_the_pixel_limit(tiny_run: Path, tmp_path: Path, fails: Command) -> None:
    """A PNG of 240 megapixels, as in the header of a real one; its pixels are never read."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", 20_000, 12_000, 8, 2, 0, 0, 0), b"IDAT")
    sealed = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(sealed))
    cure = r"cannot read huge.png \(more than 64,000,000 pixels\); resize it$"
    fails(3, cure, "predict", str(tiny_run), "huge.png")


def test_an_unused_root_of_the_digits_is_noted(tiny_run: Path, command: Command) -> None:
    said = "quatsphere: note: --data.root is not used: digits are embedded; choose other images with --data.name"
    ended = command("evaluate", str(tiny_run), "--data.root", "/nonexistent")
    assert (ended.code, ended.err.splitlines()) == (0, [said])


def test_a_table_is_not_a_folder_of_images(tiny: list[str], tmp_path: Path, fails: Command) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    message = r"x.csv is neither a folder nor a zip; pass --data.root of a folder with one subfolder per class"
    fails(3, message, "train", *tiny, "--data.name=folder", "--data.root=x.csv", "--run-dir=run")
    assert not (tmp_path / "run").exists()


def test_info_for_scripts_and_people(command: Command) -> None:
    ended = command("info", "--preset", "lite", "--model.backend=factored", "--batch", "4", "--json")
    assert ended.code == 0, ended.err
    facts = json.loads(ended.out)
    assert facts["parameters"] == sum(facts["parts"].values()) == sum(facts["roles"].values()) == LITE_BUDGET
    assert facts["memory_bytes"] > 16 * facts["parameters"]
    assert {"device", "processor", "threads", "versions", "commit", "backend", "backend_reason"} <= set(facts)
    words = ["--model.name", "attention", "--model.dim", "16", "--model.base_vertices", "16", "--model.shells", "2"]
    text = command("info", *words).out
    assert "attention: parameters by part" in text
    assert "GiB to train at batch 128" in text
    assert "projections" in text


def test_data_verify_for_scripts(class_folder: Path, command: Command) -> None:
    ended = command("data", "verify", "folder", "--data.root", str(class_folder), "--data.image_size", "16", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert (report["train"], report["test"], report["shape"]) == (18, 6, [3, 16, 16])
    assert report["classes"] == ["a", "b", "c"]
    assert len(report["fingerprint"]) == 64
    text = command("data", "verify", "digits").out
    assert "fingerprint" in text
    assert json.loads(command("data", "verify", "digits", "--json").out)["train"] == 1797


@pytest.mark.parametrize("words", ["digits", "digits --layout plane --index 7", "folder"])
def test_data_preview_draws(words: str, class_folder: Path, tmp_path: Path, command: Command) -> None:
    rest = words.split() + (["--root", str(class_folder)] if words == "folder" else [])
    ended = command("data", "preview", *rest, "-o", "seen here.png")
    assert ended.code == 0, ended.err
    assert ended.out == "seen here.png\n"
    with Image.open(io.BytesIO((tmp_path / "seen here.png").read_bytes())) as picture:
        assert picture.format == "PNG"
        assert picture.width > 900
        assert 300 < picture.height < picture.width
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 50


def test_data_preview_mistakes(fails: Command, tmp_path: Path) -> None:
    fails(2, r"--index must lie in 0\.\.1294: got 5000", "data", "preview", "digits", "--index", "5000")
    fails(6, "missing/x.png|No such file", "data", "preview", "digits", "-o", "missing/x.png")
    assert not list(tmp_path.iterdir())
