"""Distance that repulsion alone moves the vertices of a shell over a whole run, without any gradient.

    python benchmarks/repulsion_drift.py --start 0.05 0.001 --vertices 192 384

The paper trains 500 epochs of 352 batches; repulsion acts every tenth batch until 40 % of the run.
"""

from __future__ import annotations

import argparse
import json

import torch

from quatsphere.config import OptimConfig
from quatsphere.geometry.sphere import angular_separation, directions, fibonacci_sphere, mean_spacing
from quatsphere.optim.optimisers import repel


def drift(vertices: int, config: OptimConfig, steps: int) -> float:
    """Mean angular displacement from the start, in mean spacings."""
    start = fibonacci_sphere(vertices, 1.0)
    positions = start.clone()
    for step in range(0, steps, config.repulsion_every):
        repel([positions], step, steps, config)
    moved = angular_separation(directions(start.double()), directions(positions.double()))
    return float(moved.mean()) / mean_spacing(vertices)


def main() -> None:
    """Print one line of JSON per start and shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=float, nargs="+", default=[0.05, 0.001], help="first median step, in spacings")
    parser.add_argument("--vertices", type=int, nargs="+", default=[192, 256, 320, 384], help="vertices of a shell")
    parser.add_argument("--steps", type=int, default=500 * 352, help="batches of the run [176,000]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for start in options.start:
        for vertices in options.vertices:
            spacings = drift(vertices, OptimConfig(repulsion_start=start), options.steps)
            print(json.dumps({"start": start, "vertices": vertices, "spacings": round(spacings, 3)}), flush=True)


if __name__ == "__main__":
    main()
