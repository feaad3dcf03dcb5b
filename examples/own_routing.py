"""Train a model with a routing of your own on the embedded digits: python examples/own_routing.py"""

import tempfile

import torch

import quatsphere
from quatsphere.config import DataConfig, QSVConfig, RunConfig, TrainConfig
from quatsphere.train import train


@quatsphere.register_routing("squared")
def squared(target: torch.Tensor, source: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """softmax_j(β_h Re(r_ij)²): (B, T, 1, H, 4), (B, T, k, H, 4), (H,) -> weights (B, T, k, H)."""
    return torch.softmax(beta * (target * source).sum(-1).square(), dim=2)


config = RunConfig(
    data=DataConfig(name="digits", max_train_images=256, crop_pad=0, flip=False, trivial_augment=False),
    model=QSVConfig(routing="squared", dim=32, heads=2, base_vertices=16, shells=2),
    train=TrainConfig(epochs=2, batch_size=64, threads=1),
)
with tempfile.TemporaryDirectory() as folder:
    result = train(config, f"{folder}/run")
print(f"test accuracy after {config.train.epochs} epochs: {result['test']['accuracy']:.3f}")
