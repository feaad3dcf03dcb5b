"""What a picture page of a run shows: computed here from the model, drawn by the report room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatsphere.cli.trained import Trained
from quatsphere.data import Dataset
from quatsphere.data.augment import normalize
from quatsphere.errors import ConfigError
from quatsphere.nn.patch_embedding import sample_image
from quatsphere.train.evaluation import Evaluation


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


def write_run_page(trained: Trained, dataset: Dataset, evaluation: Evaluation, result: dict[str, Any]) -> Path:
    """Predictions, confusion, shells and curves of a run as `page.html` in its folder."""
    page, pictures = need_report()
    images = dataset.test.images.float() / 255
    chosen = _chosen(evaluation)
    classes = dataset.classes
    sure, said = evaluation.logits.softmax(1).max(1)
    grid = pictures.predictions(
        images[chosen].numpy(),
        [classes[i] for i in dataset.test.labels[chosen]],
        [classes[i] for i in said[chosen]],
        sure[chosen].tolist(),
    )
    first = chosen[0]
    places, samples = sampled(trained.model, images[first])
    positions = shell_positions(trained.model)
    facts = {"test accuracy": f"{result['test_accuracy']:.4f}", "validation accuracy": f"{result['val_accuracy']:.4f}"}
    facts |= {name: result[name] for name in ("parameters", "seed", "epochs", "best_step", "threads", "commit")}
    facts |= {"data": f"{result['data']} ({result['fingerprint'][:12]})", "torch": result["versions"]["torch"]}
    matrix = pictures.confusion(evaluation.confusion.numpy(), classes)
    title = f"a {classes[dataset.test.labels[first]]}"
    view = pictures.preview(images[first].numpy(), places, samples, positions[0], title)
    norms = pictures.shells(positions, token_norms(trained.model, dataset, dataset.test.images[first]), "token norm")
    parts = [
        ("Predictions", "Test images with the model's answer and its probability; wrong answers first.", grid),
        ("Confusion", "Rows: what it is. Columns: what the model says.", matrix),
        (
            "What the model samples",
            "A test image, the 25 samples of every first-shell vertex, the shell they paint.",
            view,
        ),
        ("Shells", "Token norm at every vertex for the same image, outer shell first (brighter is larger).", norms),
        ("Training", "Loss and accuracy by epoch.", pictures.curves(trained.run.read_metrics(), trained.run.name)),
    ]
    path = trained.run.path / "page.html"
    sections = [page.Section(title, text, pictures.to_png(figure)) for title, text, figure in parts]
    page.write_page(path, f"quatsphere: run {trained.run.name}", facts, sections)
    return path


def token_norms(model: Any, dataset: Dataset, image: Tensor) -> list[np.ndarray[Any, Any]]:
    """Norm of the tokens on every shell, after the last step that writes there."""
    with torch.no_grad():
        _, trace = model(normalize(image.unsqueeze(0), dataset.mean, dataset.std), return_trace=True)
    shells = len(model.layout.shells)
    return [hidden[0].norm(dim=-1).numpy() for hidden in trace["hidden"][:shells]]


def _chosen(evaluation: Evaluation, count: int = 24) -> Tensor:
    """Up to a third wrong answers, then right ones, spread over the test set."""
    right = evaluation.logits.argmax(1) == evaluation.labels
    wrong = (~right).nonzero().flatten()[: count // 3]
    rest = right.nonzero().flatten()
    spread = rest[torch.linspace(0, len(rest) - 1, min(count - len(wrong), len(rest))).long()] if len(rest) else rest
    return torch.cat((wrong, spread))
