"""quatsphere report: finished and unfinished runs, runs without data, studies; HTML in names is escaped."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from quatsphere.config import RunConfig
from quatsphere.config.resolve import flat_settings

Command = Callable[..., Any]
SECTIONS = ("results", "predictions", "what-the-model-sees", "training", "diagnostics", "settings", "identity")


def page_of(folder: Path) -> str:
    return (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def reported(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory, command: Command) -> str:
    """Text of the report of the tiny run, with its view beside it."""
    folder = tmp_path_factory.mktemp("reported")
    assert command("view", str(tiny_run), "-o", str(folder / "view.html")).code == 0
    ended = command("report", str(tiny_run), "-o", str(folder / "report.html"))
    assert ended.code == 0, ended.err
    assert ended.out == f"report: {folder / 'report.html'}\n"
    return page_of(folder)


def test_a_report_of_a_run(reported: str, tiny_run: Path) -> None:
    for anchor in SECTIONS:
        assert reported.count(f'<section id="{anchor}"') == 1
    result = json.loads((tiny_run / "result.json").read_text())
    for fact in (result["fingerprint"], result["commit"] or "", str(result["seed"]), result["versions"]["torch"]):
        assert str(fact) in reported
    assert f"{result['test_accuracy']:.4f}" in reported
    assert 20 <= reported.count('<li class="card') <= 24
    assert reported.count('alt="Patches sampled from the image"') == reported.count('<li class="card')
    assert 'href="view.html"' in reported
    assert not re.search(r"https?://|<script|<link|<iframe|@import|url\(", re.sub(r"base64,[^\"]*", "", reported))


def test_settings_that_differ_are_marked(reported: str) -> None:
    marked = set(re.findall(r'<tr class="marked"><th scope="row">([a-z_]+)</th>', reported))
    assert {"dim", "heads", "base_vertices", "max_train_images", "epochs"} <= marked
    assert "weight_decay" not in marked


@pytest.mark.usefixtures("blank_figures")
def test_diagnostics_are_shown_after_diagnose(reported: str, tiny_run: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(tiny_run, tmp_path / "r")
    assert "None yet. Run &#39;quatsphere diagnose RUN&#39;" in reported
    assert command("diagnose", "r", "--images", "8").code == 0
    assert command("report", "r", "--json").out == '{"report": "r/report.html"}\n'
    page = page_of(tmp_path / "r")
    assert 'href="view.html"' not in page
    for words in ("Routing weights", "transport off at test time", "holonomy of", "Transport switched off"):
        assert words in page


def test_html_in_names_is_escaped(
    tmp_path: Path, command: Command, write: Callable[[Path, Mapping[str, bytes]], Path], noise: Callable[..., bytes]
) -> None:
    """Classes and the run folder have names with HTML tags."""
    bad = "<script>alert(1)<script>"
    labels = (bad, "<img src=x onerror=alert(1)>", "c")
    files = {
        f"{split}/{label}/{i}.png": noise(hash((split, label, i)) % 2**32)
        for split, count in (("train", 6), ("test", 2))
        for label in labels
        for i in range(count)
    }
    write(tmp_path / "data", files)
    tiny = ["--model.dim", "16", "--model.heads", "2", "--model.base_vertices", "8", "--model.shells", "2"]
    words = ["--data.name", "folder", "--data.root", "data", "--data.image_size", "8", "--data.val_fraction", "0.4"]
    more = ["--train.epochs", "1", "--train.batch_size", "4", "--model.backend", "factored", "--run-dir", bad]
    trained = command("train", *tiny, *words, *more)
    assert trained.code == 0, trained.err
    assert command("report", bad).code == 0
    assert command("view", bad).code == 0
    for name in ("report.html", "view.html"):
        page = (tmp_path / bad / name).read_text()
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "&lt;script&gt;alert(1)&lt;script&gt;" in page


@pytest.mark.usefixtures("blank_figures")
def test_a_run_without_its_data_or_weights(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(tiny_run, tmp_path / "r")
    shutil.rmtree(tmp_path / "r/checkpoints")
    assert command("report", "r").code == 0
    page = page_of(tmp_path / "r")
    assert "Left out: run &#39;r&#39; has no checkpoint yet" in page
    assert '<li class="card' not in page
    assert '<section id="results"' in page


@pytest.mark.usefixtures("blank_figures")
def test_an_unfinished_run(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    shutil.copytree(tiny_run, tmp_path / "r")
    (tmp_path / "r/result.json").unlink()
    assert command("report", "r").code == 0
    page = page_of(tmp_path / "r")
    assert "not finished: numbers so far" in page
    assert '<section id="results"' not in page
    assert '<li class="card' in page


@pytest.mark.usefixtures("blank_figures")
def test_a_model_without_shells(command: Command, tmp_path: Path) -> None:
    words = ["--preset", "demo", "--model.name", "resnet20", "--model.width", "2", "--train.epochs", "1"]
    assert command("train", *words, "--data.max_train_images", "64", "--run-dir", "r").code == 0
    assert command("report", "r").code == 0
    page = page_of(tmp_path / "r")
    assert '<li class="card' in page
    assert "patches" not in page
    assert 'id="what-the-model-sees"' not in page


def synthetic_cell(variant: str, seed: int) -> dict[str, Any]:
    """Return the record of a finished cell, as `study run` writes it."""
    epochs = 12
    steps, shells = [[0.7] * 7] * epochs, [[0.1] * 5] * epochs
    accuracy = 0.5 + 0.01 * seed + 0.001 * len(variant)
    per_epoch = ("train_loss", "train_cross_entropy", "train_accuracy", "val_accuracy", "images_per_second")
    return {
        "format": 1,
        "cell": f"cifar10-{variant}-{seed}",
        "variant": variant,
        "dataset": "cifar10",
        "seed": seed,
        "status": "finished",
        "config": flat_settings(RunConfig()),
        "test_accuracy": accuracy,
        "val_accuracy": accuracy,
        "best_epoch": 10,
        "epochs": epochs,
        "steps": 1000,
        "parameters": 639_187,
        "fingerprint": "ab" * 32,
        "commit": "c" * 40,
        "versions": {"torch": "2.13.0"},
        "threads": 1,
        "seconds": 300.0,
        "processor": "a CPU",
        "per_class": dict.fromkeys(("cat", "dog", "<b>ship</b>"), accuracy),
        "nll": 1.2,
        "ece": 0.1,
        "trajectory": {
            **{name: [accuracy] * epochs for name in per_epoch},
            **dict.fromkeys(("beta", "routing_entropy", "routing_peak"), steps),
            **dict.fromkeys(("bound", "field_motion"), shells),
        },
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred finished cells."""
    from quatsphere.study.variants import VARIANTS

    folder = tmp_path_factory.mktemp("results <i>")
    (folder / "cells").mkdir()
    for variant in list(VARIANTS)[:20]:
        for seed in range(5):
            record = synthetic_cell(variant, seed)
            (folder / "cells" / f"{record['cell']}.json").write_text(json.dumps(record))
    return folder


def test_a_study_of_a_hundred_runs(results: Path, tmp_path: Path, command: Command) -> None:
    ended = command("report", str(results), "-o", "report.html")
    assert ended.code == 0, ended.err
    page = page_of(tmp_path)
    assert len(page) < 15e6
    for anchor in ("accuracies", "claims-that-need-training", "claims-that-need-none", "every-run", "identity"):
        assert page.count(f'<section id="{anchor}"') == 1
    cells = page.split('<section id="every-run"')[1].split("</section>")[0]
    assert cells.count('<th scope="row">') == 100
    assert "Study results &lt;i&gt;" in page
    claims = json.loads(command("study", "claims", "--results", str(results), "--json").out)
    for verdict in ("holds", "fails", "undecided"):
        assert page.count(f'class="claim {verdict}"') == sum(claim["verdict"] == verdict for claim in claims)


def test_errors_are_one_line(tmp_path: Path, tiny_run: Path, fails: Command) -> None:
    (tmp_path / "empty").mkdir()
    fails(2, r"neither a run nor results in empty \(looked for config.yaml and cells/\)", "report", "empty")
    fails(2, "neither a run nor results in nowhere", "report", "nowhere")
    fails(2, r"no folder no/folder \(for r.html\); create it", "report", str(tiny_run), "-o", "no/folder/r.html")
    fails(2, "RUN_OR_RESULTS; see --help", "report")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
