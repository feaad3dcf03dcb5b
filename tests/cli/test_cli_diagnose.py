"""quatsphere diagnose and quatsphere figures: tables, files and pictures of a run folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.study_records import make_record
from rich.console import Console

from quatsphere.diagnostics import PAPER_VALUES
from quatsphere.diagnostics.diagnose import SECTIONS
from quatsphere.diagnostics.tables import print_diagnosis
from quatsphere.storage.sealed_json import unseal

Command = Callable[..., Any]
LITE = Path(__file__).parent.parent.parent / "results" / "lite"


@pytest.fixture(scope="module")
def run(tiny_run: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny run with its diagnostics."""
    folder = shutil.copytree(tiny_run, tmp_path_factory.mktemp("diagnosed") / "run <b>")
    outcome = command("diagnose", str(folder), "--images", "8", "--accuracy-images", "40", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == unseal((folder / "diagnostics.json").read_bytes())
    return folder


def test_file_contains_every_section(run: Path) -> None:
    found = json.loads((run / "diagnostics.json").read_text())
    assert set(SECTIONS) <= set(found)
    assert not any("absent" in found[name] for name in SECTIONS)
    assert (found["model"], found["data"], found["split"], found["images"]) == ("qsv", "digits", "val", 8)
    assert found["step"] == json.loads((run / "result.json").read_text())["best_step"]
    assert found["training"]["epoch"] == [1]
    assert found["accuracy"]["held_out"]["images"] == found["accuracy"]["train"]["images"] == 40


def test_fingerprint(tiny_run: Path, command: Command) -> None:
    ended = command("diagnose", str(tiny_run), "--fingerprint", "--images", "4")
    assert ended.code == 0, ended.err
    assert "0.24-0.46" in ended.out
    assert {"fits", "misses"} & set(ended.out.split())
    found = json.loads(command("diagnose", str(tiny_run), "--fingerprint", "--images", "4", "--json").out)
    assert [mark["name"] for mark in found][:2] == ["normalised routing entropy", "peak weight, multiples of 1/k"]
    assert not (tiny_run / "diagnostics.json").exists()


def test_fused_steps_are_measured_by_part(command: Command) -> None:
    """With the default backend of the demo, interventions have effects and every part is timed."""
    words = ["--preset", "demo", "--train.epochs", "1", "--data.max_train_images", "64", "--run-dir", "demo"]
    assert command("train", *words).code == 0
    out = command("diagnose", "demo", "--images", "8", "--accuracy-images", "20").out
    assert "parts (time measured part by part; training runs these parts" in out
    found = json.loads(Path("demo/diagnostics.json").read_text())
    effects = [*found["transport"]["heads"], *found["transport"]["steps"], found["transport"]["all"]]
    assert min(abs(effect["nll"]) for effect in effects) > 1e-5
    assert {"perturbation", "kernel", "Hamilton block"} <= set(found["parts"]["time_share"])
    assert found["parts"]["note"] == "measured part by part; training runs these parts fused"


def test_printed_tables(tiny_run: Path, command: Command) -> None:
    ended = command("diagnose", str(tiny_run), "--images", "4", "--accuracy-images", "20", "--no-save")
    assert ended.code == 0
    assert not (tiny_run / "diagnostics.json").exists()
    titles = ("accuracy", "by step", "field by shell", "vertices by shell", "over training", "parts")
    for title in (*titles, "transport off at test time"):
        assert f"\n{title}" in ended.out
    assert "holonomy of" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 100
    assert "automobile" not in ended.out  # these are digits
    assert "0.24-0.46" not in ended.out


def test_papers_values_are_printed_for_cifar10(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((run / "diagnostics.json").read_text())
    print_diagnosis(found | {"data": "cifar10", "paper": PAPER_VALUES}, Console())
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("automobile, truck", "about 0.99", "0.24-0.46", "paper: QSV on CIFAR-10"))


def test_a_model_without_shells(command: Command, tiny: list[str]) -> None:
    words = ["--preset", "demo", "--model.name", "resnet20", "--train.epochs", "1", "--data.max_train_images", "64"]
    assert command("train", *words, "--run-dir", "plain").code == 0
    out = command("diagnose", "plain", "--images", "4", "--accuracy-images", "20").out
    assert "does not apply (the model has no shells): routing, coverage, graphs" in out
    assert "does not apply (the model has no quaternions): spread, beta" in out
    assert "paper: QSV" not in out


def test_invalid_arguments_of_diagnose_and_figures(fails: Command, tiny_run: Path) -> None:
    fails(4, "no run in nowhere", "diagnose", "nowhere")
    fails(2, "--images must be a whole number >= 1", "diagnose", str(tiny_run), "--images", "0")
    fails(2, "no run in nowhere .*name the folder of a run", "figures", "nowhere")
    fails(2, "no results in nowhere", "figures", "--results", "nowhere")
    fails(2, "no scaling and no throughput in nowhere", "figures", "--bench", "nowhere")


def test_figures_of_a_run(run: Path, command: Command) -> None:
    ended = command("figures", str(run), "-o", "drawn", "--json")
    assert ended.code == 0, ended.err
    names = {Path(path).stem for path in json.loads(ended.out)}
    assert {"kernel", "qsv", "training", "classes", "temperature", "inside"} <= names
    assert {"routing", "coverage", "transport", "receptive", "cost"} <= names
    assert all(Path(path).read_bytes().startswith(b"<?xml") for path in json.loads(ended.out))


@pytest.mark.usefixtures("blank_figures")
def test_runs_of_the_same_name_have_separate_files(run: Path, tiny_run: Path, command: Command) -> None:
    other = Path("elsewhere") / run.name
    shutil.copytree(run, other)
    ended = command("figures", str(run), str(other), "--format", "png", "-o", "drawn")
    paths = ended.out.split()
    assert len(set(paths)) == len(paths) == len(list(Path("drawn").iterdir()))
    assert "drawn/run_b_-coverage.png" in paths
    assert "drawn/run_b_-coverage-2.png" in paths


def test_note_about_missing_diagnostics(tiny_run: Path, command: Command) -> None:
    ended = command("figures", str(tiny_run), "-o", "drawn")
    assert ended.code == 0
    assert "has no diagnostics.json; 'quatsphere diagnose" in ended.err
    assert not Path("drawn/routing.svg").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}'])
def test_damaged_diagnostics(text: str, tiny_run: Path, fails: Command) -> None:
    folder = shutil.copytree(tiny_run, "copy")
    (folder if isinstance(folder, Path) else Path(folder)).joinpath("diagnostics.json").write_text(text)
    fails(4, "diagnostics.json", "figures", "copy", "-o", "drawn")
    assert not Path("drawn").exists()


def cell(variant: str, seed: int, accuracy: float, **settings: Any) -> dict[str, Any]:
    beta = [[0.7, settings.get("model.beta_start", 0.8), 0.9]] * 2
    trajectory = {"beta": beta, "beta_min": beta, "beta_max": beta}
    record = make_record(variant, seed, 100 * accuracy, trajectory=trajectory)
    small = {"model.shells": 2, "model.base_vertices": 48, "train.batch_size": 32}
    return record | {"config": record["config"] | small | settings, "steps": 1250, "parameters": 43_111}


def test_figures_of_results(command: Command) -> None:
    folder = Path("results/cells")
    folder.mkdir(parents=True)
    cells = [cell("full", seed, 0.5 + 0.01 * seed) for seed in (1, 2, 3)]
    cells += [cell("transport_identity", seed, 0.46 + 0.012 * seed) for seed in (1, 2, 3)]
    cells += [cell("beta_warm", 1, 0.51, **{"model.beta_start": 5.0})]
    for record in cells:
        (folder / f"{record['cell']}.json").write_text(json.dumps(record))
    ended = command("figures", "--results", "results", "-o", "drawn")
    assert ended.code == 0, ended.err
    assert [Path(path).stem for path in ended.out.split()] == ["kernel", "qsv", "ablation", "temperature"]


def test_values_of_the_figures_of_results() -> None:
    """Accuracies in percent, changes paired by seed, the paper's numbers from the ledger."""
    from quatsphere.report.figure_data import ablation_rows, costs_of, probe_curves

    cells = [cell("full", seed, 0.5 + 0.01 * seed) for seed in (1, 2, 3)]
    cells += [cell("transport_identity", seed, 0.46 + 0.012 * seed) for seed in (1, 2, 3)]
    full, off = ablation_rows(cells, "cifar10")
    assert full.accuracy.value == pytest.approx(52)
    assert (full.change, full.paper_accuracy) == (None, 85.9)
    assert off.change is not None
    assert off.change.value == pytest.approx(-3.6)
    interval = off.change.interval()
    assert interval is not None
    assert interval[0] < -3.6 < interval[1]
    assert (off.paper_accuracy, off.paper_change) == (81.7, -4.3)
    costs, caption = costs_of(cells)
    assert costs == pytest.approx({"transport_identity": -3.6})
    assert "our own runs with\n2 shells of 48 to 72 vertices, 43,111 parameters, 40,000 images seen; n = 3 (" in caption
    paper, caption = costs_of([])
    assert paper == {"routing_uniform": -0.2, "transport_identity": -4.3, "both_off": -21.8, "frozen_random": -19.4}
    assert "the paper's" in caption
    (curve,) = probe_curves(cells)
    assert curve.label == "learned: 52.0 (n = 3)"
    assert list(curve.mean) == pytest.approx([0.7931, 0.8, 0.8])


def test_figures_of_results_separate_data_sets(command: Command) -> None:
    """results/lite has a hundred cells of CIFAR-10 with five epochs and a part of CIFAR-100 with four."""
    from quatsphere.report.figure_data import read_results, result_figures

    found = dict(result_figures(read_results(str(LITE))))
    assert set(found) == {
        f"{kind}-{data}" for kind in ("ablation", "temperature") for data in ("cifar10", "cifar100-part")
    }
    (legend,) = found["temperature-cifar10"].legends
    assert legend.get_title().get_text() == "CIFAR-10, mean test accuracy in %"
    assert [text.get_text() for text in legend.get_texts()] == [
        "learned: 41.6 (n = 100)",
        "starts at 5: 41.1 (n = 13)",
        "frozen at 5: 40.9 (n = 13)",
    ]
    assert max(found["temperature-cifar10"].axes[0].lines[0].get_xdata()) == 5
    assert found["ablation-cifar100-part"].axes[0].get_xlabel().startswith("CIFAR-100 part: ")


def test_caption_states_the_origin_of_the_costs() -> None:
    from quatsphere.report.figure_data import costs_of, read_results, schematics

    for records, says in (([], "the paper's values"), (read_results(str(LITE)), "n = 100 (uniform), 17 (identity)")):
        caption = dict(schematics(*costs_of(records)))["qsv"].get_supxlabel()
        assert "Drawn: the paper's geometry, 5 shells of 128 to 384 vertices." in caption
        assert says in caption
    assert "3 shells of 48 to 96 vertices, 43,111 parameters, 40,000 images seen" in caption


def test_figures_of_a_benchmark(command: Command) -> None:
    points = [{"vertices": 1280 * 4**i, "seconds": 0.1 * 4**i, "peak_mb": 100 * 4**i} for i in range(3)]
    speeds = [{"title": name, "images_per_second": 100.0} for name in ("QSV", "attention")]
    Path("bench.json").write_text(json.dumps({"scaling": points, "throughput": speeds}))
    ended = command("figures", "--bench", "bench.json", "-o", "drawn", "--format", "pdf")
    assert {"drawn/scaling.pdf", "drawn/throughput.pdf"} <= set(ended.out.split())
    assert Path("drawn/scaling.pdf").read_bytes().startswith(b"%PDF")
