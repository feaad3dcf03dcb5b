"""Compare flat and curved connections on rotated point clouds. python benchmarks/point_clouds.py [--seeds 0 1 2]

Clouds: 900 of scikit-learn's scanned digits as surfaces, one point per pixel, its height the ink (64 points). Task:
the digit. Features of a point: its position and the offsets of its 8 nearest neighbours, in world axes or in its local
frame. All models have the same layers and parameters; they differ in the axes and in the rotations of the edges:

    world axes              no rotation                features turn with the cloud
    local, none             u_ij = 1                   frames are not compared
    local, flat             u_ij = g_i* g_j            holonomy 1 around every loop
    local, parallel         u_ij = g_i* t_ij g_j       holonomy is the curvature inside the loop
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from quatsphere import QuaternionConv, knn
from quatsphere.geometry import quaternion
from quatsphere.geometry.frames import frame_transport, gather_points, local_frames, to_local

K, HEIGHT, WIDTH, HEADS = 8, 0.6, 8, 4
MODELS = ("world axes", "local, none", "local, flat", "local, parallel")


def conv() -> QuaternionConv:
    """The graph layer of all models; absolute routing, because the sign of a frame's quaternion is arbitrary."""
    return QuaternionConv(WIDTH * HEADS, WIDTH, HEADS, routing="absolute", residual=True)


class CloudNet(nn.Module):
    """Two graph layers, mean and maximum over the points, a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * (K + 1), WIDTH * HEADS)
        self.layers = nn.ModuleList(conv() for _ in range(2))
        self.classify = nn.Linear(2 * WIDTH * HEADS, 10)

    def forward(self, features: Tensor, graph: Tensor, rotation: Tensor | None) -> Tensor:
        """(B, V, 27), (B, V, k), (B, V, k, 4) -> logits (B, 10)."""
        x = self.embed(features)
        for layer in self.layers:
            x = F.gelu(layer(x, graph, edge_rotation=rotation))
        return self.classify(torch.cat((x.mean(1), x.amax(1)), dim=-1))


def surfaces(count: int) -> tuple[Tensor, Tensor]:
    """Points (N, 64, 3) and labels."""
    digits = load_digits()
    ink = torch.from_numpy(digits.images[:count]).float() / 16
    grid = torch.linspace(-1, 1, 8)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    points = torch.stack((x.expand_as(ink), y.expand_as(ink), HEIGHT * ink), dim=-1).flatten(1, 2)
    return points - points.mean(1, keepdim=True), torch.from_numpy(digits.target[:count])


def upper_side(points: Tensor) -> Tensor:
    """A point far above every surface: along the direction of least variance, on the side of positive skewness."""
    axis = torch.linalg.eigh(points.transpose(-1, -2) @ points).eigenvectors[..., 0]
    skewness = (points @ axis.unsqueeze(-1)).pow(3).sum((-2, -1))
    return 10 * axis * skewness.sign().unsqueeze(-1)


def inputs_of(model: str, points: Tensor, graph: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features (N, V, 27) and edge rotations."""
    vectors = torch.cat((points.unsqueeze(2), gather_points(points, graph) - points.unsqueeze(2)), dim=2)
    if model == "world axes":
        return vectors.flatten(2), None
    frames = local_frames(points, graph, upper_side(points))
    rotation = None if model == "local, none" else frame_transport(frames, graph, flat=model == "local, flat")
    return to_local(frames, vectors).flatten(2), rotation


def train(model: str, points: Tensor, labels: Tensor, graph: Tensor, seed: int, epochs: int) -> CloudNet:
    """Train by Adam with a one-cycle learning rate."""
    torch.manual_seed(seed)
    net, batch = CloudNet(), 25
    features, rotation = inputs_of(model, points, graph)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    steps = epochs * -(-len(points) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(points)).split(batch):
            optimiser.zero_grad()
            logits = net(features[rows], graph[rows], None if rotation is None else rotation[rows])
            F.cross_entropy(logits, labels[rows]).backward()
            optimiser.step()
            schedule.step()
    return net


@torch.no_grad()
def accuracy(net: CloudNet, model: str, points: Tensor, labels: Tensor, graph: Tensor) -> float:
    """Percentage of clouds whose digit is predicted."""
    features, rotation = inputs_of(model, points, graph)
    return 100 * float((net(features, graph, rotation).argmax(-1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--clouds", type=int, default=900, help="two thirds of them for training")
    args = parser.parse_args()
    points, labels = surfaces(args.clouds)
    graph, cut = knn(points, K), 2 * args.clouds // 3
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in args.seeds:
        rotated = quaternion.rotate(
            quaternion.random_unit(args.clouds, 1, generator=torch.Generator().manual_seed(seed)), points
        )
        order = torch.randperm(args.clouds, generator=torch.Generator().manual_seed(seed))
        fit, test = order[:cut], order[cut:]
        for model in MODELS:
            for name, seen in (("aligned", points), ("rotated", rotated)):
                start = time.process_time()
                net = train(model, seen[fit], labels[fit], graph[fit], seed, args.epochs)
                scores = tuple(accuracy(net, model, p[test], labels[test], graph[test]) for p in (points, rotated))
                found.setdefault((model, name), []).append(scores)
                seconds = time.process_time() - start
                print(f"seed {seed}, {model}, trained {name}: aligned {scores[0]:.1f}, rotated {scores[1]:.1f}", end="")
                print(f" ({seconds:.0f} s of CPU time)", flush=True)
                if model != "world axes":
                    break  # invariant: training on rotated clouds is the same training
    print(f"\n| model | trained on | tested on aligned | tested on rotated |\n{'|---' * 4}|")
    for (model, name), runs in found.items():
        cells = [f"{statistics.mean(side):.1f} ± {spread(side):.1f}" for side in zip(*runs, strict=True)]
        print(f"| {model} | {name} | {' | '.join(cells)} |")


def spread(values: tuple[float, ...]) -> float:
    """Standard deviation of the seeds."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
