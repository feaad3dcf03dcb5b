"""What a picture page of a run shows: computed here from the model, drawn by the report room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatsphere.cli.trained import Trained, open_run
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError
from quatsphere.nn.patch_embedding import sample_image
from quatsphere.train.evaluation import Evaluation, evaluate
from quatsphere.train.run import load_data

Pictured = tuple[str, str, Any]
"""Heading, sentence, figure."""
SHOWN = 24
"""Test images on a page."""


def need_report() -> Any:
    """The picture functions, or a line that says what to install."""
    try:
        from quatsphere.report import page, pictures
    except ImportError as error:
        raise ConfigError("pictures need matplotlib; pip install 'quatsphere[report]'") from error
    return page, pictures


def sampled(model: Any, image: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(places (V, S, 2), samples (V, S, C)) of one image (C, H, W) in [0, 1], exactly as the model reads it."""
    with torch.no_grad():
        places = model.layout.image_coords().unsqueeze(1) + model.embed.stencil
        samples = sample_image(image.unsqueeze(0), places, model.embed.wrap)[0]
    return places.numpy(), samples.numpy()


def shell_positions(model: Any) -> list[np.ndarray[Any, Any]]:
    """Positions of every shell as arrays."""
    return [shell.positions.detach().numpy() for shell in model.layout.shells]


def write_run_page(folder: str, result: dict[str, Any]) -> Path:
    """Predictions, confusion, shells and curves of a finished run as `page.html` in its folder."""
    page, pictures = need_report()
    trained = open_run(folder)
    dataset = load_data(trained.config.data, lambda message: None)
    evaluation = evaluate(trained.model, dataset, "test")
    chosen = choose(evaluation)
    parts = answers(pictures, dataset, evaluation, chosen)
    if hasattr(trained.model, "layout"):
        parts += insides(pictures, trained, dataset, int(chosen[0]))
    parts += [("Training", "Loss and accuracy by epoch.", pictures.curves(trained.run.read_metrics()))]
    path = trained.run.path / "page.html"
    sections = [page.Section(title, text, pictures.to_png(figure)) for title, text, figure in parts]
    page.write_page(path, f"quatsphere: run {trained.run.name}", facts_of(result), sections)
    return path


def facts_of(result: dict[str, Any]) -> dict[str, object]:
    """The head of the page."""
    return {
        "test accuracy": f"{result['test_accuracy']:.4f} ({result['test']['images']:,} images)",
        "validation accuracy": f"{result['val_accuracy']:.4f}",
        "model": f"{result['model']}, {result['parameters']:,} parameters",
        "data": f"{result['data']} (fingerprint {result['fingerprint'][:12]})",
        "epochs": f"{result['epochs']}, best after step {result['best_step']:,}",
        "seed": result["seed"],
        "commit": result["commit"] or "unknown",
        "torch": f"{result['versions']['torch']}, threads: {result['threads']}",
    }


def answers(pictures: Any, dataset: Dataset, evaluation: Evaluation, chosen: Tensor) -> list[Pictured]:
    """What the model says about test images."""
    classes = dataset.classes
    sure, said = evaluation.logits.softmax(1).max(1)
    grid = pictures.predictions(
        dataset.test.images[chosen].numpy() / 255,
        [classes[i] for i in dataset.test.labels[chosen]],
        [classes[i] for i in said[chosen]],
        sure[chosen].tolist(),
    )
    matrix = pictures.confusion(evaluation.confusion.numpy(), classes)
    return [
        ("Predictions", "Test images with the model's answer and its probability; wrong answers first.", grid),
        ("Confusion", "Rows: what it is. Columns: what the model says. Number of test images.", matrix),
    ]


def insides(pictures: Any, trained: Trained, dataset: Dataset, index: int) -> list[Pictured]:
    """What a model on shells makes of one test image."""
    image = dataset.test.images[index]
    places, samples = sampled(trained.model, image.float() / 255)
    positions = shell_positions(trained.model)
    name = f"{dataset.classes[dataset.test.labels[index]]} (test image {index})"
    view = pictures.preview(image.numpy() / 255, places, samples, positions[0], name)
    norms = pictures.shells(positions, token_norms(trained.model, dataset, image), "token norm")
    sampling = "A test image, the 25 samples of every first-shell vertex, and the shell they paint"
    sampling += " (its far side small and pale)." if positions[0].shape[1] == 3 else "."
    return [
        ("What the model samples", sampling, view),
        ("Shells", "Norm of the token at every vertex for the same image, outer shell first.", norms),
    ]


def token_norms(model: Any, dataset: Dataset, image: Tensor) -> list[np.ndarray[Any, Any]]:
    """Norm of the tokens on every shell, after the last step that writes there."""
    with torch.no_grad():
        _, trace = model(normalize(image.unsqueeze(0), dataset.mean, dataset.std), return_trace=True)
    first = trace["hidden"][: len(model.layout.shells) - 1]
    return [hidden[0].norm(dim=-1).numpy() for hidden in (*first, trace["hidden"][-1])]


def choose(evaluation: Evaluation, count: int = SHOWN) -> Tensor:
    """Up to a third wrong answers, then right ones, both spread over the test set."""
    right = evaluation.logits.argmax(1) == evaluation.labels
    wrong = _spread((~right).nonzero().flatten(), count // 3)
    return torch.cat((wrong, _spread(right.nonzero().flatten(), count - len(wrong))))


def _spread(items: Tensor, count: int) -> Tensor:
    """At most `count` of the items, evenly spaced."""
    return items[torch.linspace(0, len(items) - 1, min(count, len(items))).long()] if len(items) else items
