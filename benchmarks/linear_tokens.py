"""Accuracy of a linear classifier on the same tokens: a lower bound that a trained model must exceed.

Every image becomes the raw stencil samples of the preset's first shell (V_1 x 25 x channels numbers), and a softmax
regression is trained on them with the same data, split and augmentation-free pixels; the learning rate is chosen on
the validation images among three.

    python benchmarks/linear_tokens.py --preset lite --data.root cifar10.zip

The value of plan `lite`, stored as results/lite/linear.json:

    python benchmarks/linear_tokens.py --epochs 5 --json --preset lite --data.root cifar10.zip \\
        --data.max_train_images 8000 --data.val_fraction 0.04
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quatsphere.cli.train import make_parser
from quatsphere.data.augment import normalize
from quatsphere.models import build_model
from quatsphere.nn.patch_embedding import sample_image
from quatsphere.train.batches import epoch_order
from quatsphere.train.run import fit_to_data, load_data

RATES = (3e-4, 1e-3, 3e-3)


def tokens(model: nn.Module, images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(N, V_1 * 25 * C) samples as the model's patch embedding reads them."""
    places = (model.layout.image_coords().unsqueeze(1) + model.embed.stencil).detach()
    parts = [
        sample_image(normalize(part, mean, std), places, model.embed.wrap).flatten(1) for part in images.split(1000)
    ]
    return torch.cat(parts)


def accuracy(classifier: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Fraction of correct predictions."""
    with torch.no_grad():
        return float((classifier(inputs).argmax(1) == labels).double().mean())


def fit(inputs: Tensor, labels: Tensor, classes: int, rate: float, seed: int, epochs: int) -> nn.Linear:
    """Train softmax regression by Adam with a linearly decaying rate."""
    torch.manual_seed(seed)
    classifier = nn.Linear(inputs.shape[1], classes)
    optimiser = torch.optim.AdamW(classifier.parameters(), lr=rate, weight_decay=0.05)
    steps = epochs * (len(inputs) // 256)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, steps)
    for epoch in range(epochs):
        for chosen in epoch_order(seed, epoch, len(inputs)).split(256)[: len(inputs) // 256]:
            optimiser.zero_grad()
            F.cross_entropy(classifier(inputs[chosen]), labels[chosen]).backward()
            optimiser.step()
            schedule.step()
    return classifier


def main() -> None:
    """Print the test accuracy at the best validation rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--epochs", type=int, default=8)
    asked, rest = parser.parse_known_args()
    config = make_parser().parse_config(rest or ["--preset", "lite"]).config
    dataset = load_data(config.data, lambda message: None)
    model = build_model(fit_to_data(config, dataset).model)
    splits = {name: getattr(dataset, name) for name in ("train", "val", "test")}
    inputs = {name: tokens(model, split.images, dataset.mean, dataset.std) for name, split in splits.items()}
    seed, epochs = config.train.seed, asked.epochs
    found = [fit(inputs["train"], splits["train"].labels, len(dataset.classes), rate, seed, epochs) for rate in RATES]
    best = max(found, key=lambda classifier: accuracy(classifier, inputs["val"], splits["val"].labels))
    facts = {name: accuracy(best, inputs[name], splits[name].labels) for name in splits}
    facts |= {"tokens": inputs["train"].shape[1], "images": len(splits["train"].labels), "epochs": epochs, "seed": seed}
    print(
        json.dumps(facts) if asked.json else f"linear classifier on {facts['tokens']} samples: test {facts['test']:.4f}"
    )


if __name__ == "__main__":
    main()
