"""Exported files equal their model, carry what is needed to use them, and run without quatsphere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from export.test_frozen import MEAN, STD, VARIANTS, shaken_model

import quatsphere
from quatsphere.cli.main import main
from quatsphere.export import files
from quatsphere.export.frozen import FrozenModel
from quatsphere.storage.atomic import sha256_file
from quatsphere.storage.checkpoint import WEIGHTS, step_name

ALONE = """
import json, sys, torch
extra = {"metadata.json": ""}
model = torch.export.load(sys.argv[1], extra_files=extra).module()
images = torch.load(sys.argv[2])
logits = [model(images), torch.cat([model(images[i : i + 1]) for i in range(len(images))])]
assert "quatsphere" not in sys.modules
print(json.dumps({"logits": [x.tolist() for x in logits], "metadata": json.loads(extra["metadata.json"])}))
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "run"
    size = ["model.dim=16", "model.heads=2", "model.base_vertices=8", "model.shells=2", "model.rounds=1"]
    settings = ["train.epochs=1", "data.max_train_images=64", "model.backend=factored", *size]
    quatsphere.train(quatsphere.load_preset("demo", settings), folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command in an empty folder; gives its exit code and output."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def test_pt2_runs_without_quatsphere(digits_run: Path, run: Run, tmp_path: Path) -> None:
    code, out, err = run("export", digits_run, "--to=pt2", "-o", "digits.pt2", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["difference"] <= files.LOGIT_TOLERANCE
    assert facts["source"] == "359 test images of digits"
    assert str(Path(quatsphere.__file__).parent).encode() not in Path("digits.pt2").read_bytes()

    trained = quatsphere.load(digits_run)
    images = trained.dataset().test.images[:5]
    torch.save(images.float() / 255, "images.pt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-I", "-c", ALONE, "digits.pt2", "images.pt"]
    ended = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    answer = json.loads(ended.stdout)
    probabilities = trained.predict(list(images)).probabilities
    for logits in answer["logits"]:
        torch.testing.assert_close(torch.tensor(logits).softmax(1), probabilities, atol=1e-5, rtol=0)
    weights = digits_run / "checkpoints" / step_name(trained.step) / WEIGHTS
    check_metadata(answer["metadata"], trained, sha256_file(weights))


def test_onnx_in_onnxruntime(digits_run: Path, run: Run) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    code, out, err = run("export", digits_run, "--to", "onnx", "-o", "digits.onnx")
    assert (code, err) == (0, "")
    assert "verified on 359 test images of digits: same classes, logits within" in out
    session = onnxruntime.InferenceSession("digits.onnx")
    assert [(i.name, i.shape) for i in session.get_inputs()] == [("images", ["batch", 1, 8, 8])]
    assert [(i.name, i.shape) for i in session.get_outputs()] == [("logits", ["batch", 10])]
    trained = quatsphere.load(digits_run)
    images = trained.dataset().test.images[:3]
    (logits,) = session.run(None, {"images": (images.float() / 255).numpy()})
    probabilities = trained.predict(list(images)).probabilities
    torch.testing.assert_close(torch.tensor(logits).softmax(1), probabilities, atol=1e-5, rtol=0)
    stored = session.get_modelmeta().custom_metadata_map
    metadata = {key: json.loads(value) if value[0] in "[{" else value for key, value in stored.items()}
    weights = digits_run / "checkpoints" / step_name(trained.step) / WEIGHTS
    check_metadata(metadata, trained, sha256_file(weights))
    content = Path("digits.onnx").read_bytes()
    assert str(Path(quatsphere.__file__).parent).encode() not in content


def test_a_page_by_both_commands(digits_run: Path, run: Run) -> None:
    code, out, err = run("export", digits_run, "--to", "html", "-o", "digits.html")
    assert (code, err) == (0, "")
    assert "verified on 359 test images of digits: same classes, logits within" in out
    code, out, err = run("view", digits_run, "--live", "-o", "view.html", "--json")
    assert (code, err, json.loads(out)) == (0, "", {"live": "view.html"})
    page = Path("digits.html").read_bytes()
    assert page == Path("view.html").read_bytes()
    assert str(Path(quatsphere.__file__).parent).encode() not in page
    weights = digits_run / "checkpoints" / step_name(quatsphere.load(digits_run).step) / WEIGHTS
    assert sha256_file(weights)[:12].encode() in page


def test_pages_of_other_models_are_refused(run: Run) -> None:
    for words in (["export", "cifar10-resnet20", "--to", "html"], ["view", "cifar10-attention", "--live"]):
        code, out, err = run(*words, "-o", "m.html")
        assert (code, out) == (2, "")
        assert "quatsphere: error: a live page runs qsv, not '" in err
        assert not list(Path().iterdir())


def check_metadata(metadata: dict[str, Any], trained: quatsphere.TrainedModel, weights: str) -> None:
    assert metadata["classes"] == list(trained.classes)
    assert metadata["weights_sha256"] == weights
    preprocessing = metadata["preprocessing"]
    assert (preprocessing["size"], preprocessing["channels"], preprocessing["levels"]) == (8, 1, [0, 1])
    assert (preprocessing["mean"], preprocessing["std"]) == (trained.meta["mean"], trained.meta["std"])


def test_a_file_that_differs_is_not_kept(digits_run: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that are 2e-4 too large are refused; the older file stays."""
    trained = quatsphere.load(digits_run)
    mean, std = (trained.meta[key] for key in ("mean", "std"))
    frozen = FrozenModel(trained.model, mean, std)
    fake = files.FileFormat(lambda program, metadata: b"", lambda data: lambda images: frozen(images) + 2e-4)
    monkeypatch.setattr(files, "export_program", lambda *_: None)
    monkeypatch.setitem(files.FORMATS, "pt2", fake)
    Path("m.pt2").write_text("older")
    code, out, err = run("export", digits_run, "--to", "pt2", "-o", "m.pt2")
    assert (code, out) == (5, "")
    assert "quatsphere: error: the pt2 file differs from the model by 2.0e-04 (at most 1e-04 is allowed)" in err
    assert Path("m.pt2").read_text() == "older"
    assert [path.name for path in Path().iterdir()] == ["m.pt2"]


def test_images_of_the_verification(digits_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Named files; else the data of the run; else noise, with a note."""
    from PIL import Image

    from quatsphere.cli.export import verification_images
    from quatsphere.errors import DataError

    notes: list[str] = []
    monkeypatch.setattr("quatsphere.cli.export.note", notes.append)
    trained = quatsphere.load(digits_run)
    Image.new("RGB", (20, 10), "red").save(tmp_path / "red.png")
    images, source = verification_images(trained, [str(tmp_path)], None)
    assert (images.shape, source) == ((1, 1, 8, 8), "1 named image")
    assert not notes

    def missing(*_: Any) -> Any:
        raise DataError("no data here; get it")

    monkeypatch.setattr("quatsphere.cli.console.read_dataset_of", missing)
    images, source = verification_images(trained, None, None)
    assert (images.shape, source) == ((64, 1, 8, 8), "64 images of noise")
    assert "verified on noise, because the run's data cannot be read (no data here; get it)" in notes[0]
    with pytest.raises(DataError):
        verification_images(trained, None, "elsewhere")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "onnx", "-o", "model.pt2"], "-o must end in .onnx with --to onnx: got 'model.pt2'"),
        (["--to", "pt2", "-o", "no/model.pt2"], "-o 'no/model.pt2' is in a folder that does not exist; name a file"),
        (
            ["--to", "onnx", "-o", "m.onnx"],
            "--to onnx needs onnx, onnxscript and onnxruntime; pip install 'quatsphere[",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    code, out, err = run("export", "nowhere", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"quatsphere: error: {message}")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("to", files.FORMATS)
@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_every_variant(name: str, overrides: dict[str, Any], to: str) -> None:
    frozen = FrozenModel(shaken_model(name, **overrides), MEAN, STD)
    classify = files.FORMATS[to].read(files.FORMATS[to].write(files.export_program(frozen, (3, 16, 16)), {}))
    for count in (1, 5):
        images = torch.rand(count, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(classify(images), frozen(images), atol=2e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_a_program_compiles_with_aot_inductor(tmp_path: Path) -> None:
    """The frozen module has no parameters without an axis, which AOTInductor cannot compile in the model itself."""
    size = {"dim": 8, "heads": 1, "base_vertices": 8, "shells": 1, "rounds": 0, "image_size": 8}
    frozen = FrozenModel(shaken_model("qsv", **size), MEAN, STD)
    assert all(value.ndim for value in (*frozen.parameters(), *frozen.buffers()))
    program = files.export_program(frozen, (3, 8, 8))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        compiled = torch._inductor.aoti_load_package(package)(images)
        torch.testing.assert_close(compiled, frozen(images), atol=2e-5, rtol=0)
