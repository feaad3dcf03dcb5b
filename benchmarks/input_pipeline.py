"""Cost of the input pipeline: milliseconds to augment and normalise one batch, best of several rounds.

With `--step` a default training step (QSV at the paper's size, forward, backward, both optimisers) of the same batch
is timed in the same run, and the pipeline's share of it printed.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from quatsphere.config import OptimConfig
from quatsphere.data.augment import augment, normalize
from quatsphere.models import create_model
from quatsphere.optim import Optimisers


def milliseconds(batch: int, size: int, rounds: int, device: str) -> dict[str, float]:
    """Best time of augmentation (crop, flip, TrivialAugmentWide), of normalisation, and of both in one round."""
    images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=device)
    samples, half = torch.arange(batch), torch.full((3,), 0.5)
    laps = []
    for epoch in range(rounds):
        start = time.perf_counter()
        augmented = augment(images, samples, seed=0, epoch=epoch, crop_pad=4, flip=True, trivial_augment=True)
        between = time.perf_counter()
        normalize(augmented, half, half).sum().item()
        laps.append((between - start, time.perf_counter() - between, time.perf_counter() - start))
    names = ("augment_ms", "normalize_ms", "total_ms")
    return {name: 1000 * min(column) for name, column in zip(names, zip(*laps, strict=True), strict=True)}


def step_milliseconds(batch: int, size: int, device: str) -> float:
    """Best of two default training steps after one that warms up."""
    model = create_model("qsv", image_size=size).to(device)
    optimisers = Optimisers(dict(model.named_parameters()), model.parameter_roles(), OptimConfig())
    images = torch.randn(batch, 3, size, size, device=device)
    laps = []
    for step in range(3):
        start = time.perf_counter()
        optimisers.set_rates(step, 100)
        optimisers.zero_grad()
        model(images).logsumexp(1).mean().backward()
        optimisers.step()
        model.constrain()
        laps.append(time.perf_counter() - start)
    return 1000 * min(laps[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128, help="images per batch")
    parser.add_argument("--size", type=int, default=32, help="side of an image in pixels")
    parser.add_argument("--rounds", type=int, default=50, help="batches to time; the best counts")
    parser.add_argument("--device", default="cpu", help="where the images live")
    parser.add_argument("--step", action="store_true", help="also time a default training step of this batch")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    times = milliseconds(arguments.batch, arguments.size, arguments.rounds, arguments.device)
    record = {"batch": arguments.batch, "size": arguments.size, "threads": torch.get_num_threads(), **times}
    if arguments.step:
        record["step_ms"] = step_milliseconds(arguments.batch, arguments.size, arguments.device)
        record["share"] = times["total_ms"] / record["step_ms"]
    if arguments.json:
        print(json.dumps(record))
    else:
        print(
            f"batch {arguments.batch}, {arguments.size}x{arguments.size}x3, {record['threads']} threads: "
            f"{times['total_ms']:.2f} ms (augment {times['augment_ms']:.2f}, normalise {times['normalize_ms']:.2f})"
            + (f"; {record['share']:.2%} of a {record['step_ms']:.0f} ms training step" if arguments.step else "")
        )


if __name__ == "__main__":
    main()
