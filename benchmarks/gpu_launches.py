"""Kernel launches, memory traffic and host waits of a training step of the paper's models on an accelerator, by part.

No accelerator is needed: the real trainer runs on the emulated device of tests/helpers/counting_device.py. Traffic is
linear in the batch, so the counts of two batches give those of any larger one. Triton kernels are counted, not run.

Usage: python benchmarks/gpu_launches.py [--batch 128] [--operations] [--model qsv | attention] [--backend NAME]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # lets Triton be imported without a GPU
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
arguments, sys.argv = sys.argv[1:], [sys.argv[0], "--placeholders"]

import counting_device as device  # noqa: E402
import torch  # noqa: E402

from quatsphere.config import RunConfig  # noqa: E402
from quatsphere.config.presets import load_preset  # noqa: E402
from quatsphere.data.dataset import Dataset, Split  # noqa: E402
from quatsphere.kernels import neighbour_ops  # noqa: E402
from quatsphere.train.losses import AuxiliaryLosses  # noqa: E402

ROWS = neighbour_ops.ROWS
BATCHES = (64, 96)
"""Beyond the batches at which the number of partial sums still grows, traffic is linear."""
PLAIN, REPULSION = 1, 2
"""Steps that are counted: repulsion is due at every second one."""
PARTS = ("forward", "losses", "backward", "finite_check", "optimisers", "repulsion", "constrain", "other")


class Enough(BaseException):
    """Raised to end the run after the counted steps."""


class Counted(device.Steps):
    """Counts of the first three steps."""

    def step(self, *args: Any) -> None:
        super().step(*args)
        if len(self.counts) > max(PLAIN, REPULSION):
            raise Enough


def counted(config: RunConfig, batch: int, of: int) -> Counted:
    """Counts of the steps of a run with this batch; memory is limited as for `of` images."""
    neighbour_ops.ROWS = ROWS * batch // of
    train = dataclasses.replace(config.train, batch_size=batch, compile=False, threads=1)
    optim = dataclasses.replace(config.optim, repulsion_every=2)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (8 * batch, 3, 32, 32), dtype=torch.uint8, generator=generator)
    split = Split(pixels, torch.arange(8 * batch) % 10)
    half = torch.full((3,), 0.5)
    data = Dataset("counted", tuple("0123456789"), split, split, split, half, half, "counted", ())
    steps = Counted()
    with tempfile.TemporaryDirectory() as folder:
        try:
            device.measure(dataclasses.replace(config, train=train, optim=optim), Path(folder) / "run", steps, data)
        except Enough:
            return steps
    raise AssertionError("the run ended before its third step")


def extrapolate(few: dict[str, int], many: dict[str, int], batch: int) -> dict[str, float]:
    """Value at a batch of a quantity that is linear in the batch, from its values at BATCHES."""
    small, large = BATCHES
    return {
        key: few.get(key, 0) + (many.get(key, 0) - few.get(key, 0)) / (large - small) * (batch - small)
        for key in few | many
    }


def paper_config(model: str, backend: str) -> RunConfig:
    """Preset of a model with a backend for the kernels."""
    config = load_preset("paper-cifar10" if model == "qsv" else f"paper-{model}")
    fields = {field.name for field in dataclasses.fields(config.model)}
    chosen = {"backend": backend} if "backend" in fields else {}
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **chosen))


def main() -> None:
    """Print a table per model and kind of step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--model", nargs="+", default=["qsv", "attention"])
    parser.add_argument("--backend", default="triton_gpu")
    parser.add_argument("--operations", action="store_true", help="also print the launches of each operation")
    args = parser.parse_args(arguments)
    for model in args.model:
        runs = [counted(paper_config(model, args.backend), batch, args.batch) for batch in BATCHES]
        for label, step in (("plain step", PLAIN), ("step with repulsion", REPULSION)):
            report(f"{model}, {args.backend}, {label}, batch {args.batch}", runs, step, args.batch)
        if args.operations:
            launches = Counter(runs[1].counts[PLAIN]["launches"])
            print("\n" + ", ".join(f"{name} {number}" for name, number in launches.most_common()))
            print("\nwaits:", runs[1].counts[PLAIN]["waits"], "uploads:", runs[1].counts[PLAIN]["uploads"])


def report(title: str, runs: list[Counted], step: int, batch: int) -> None:
    """Print the table of one step."""
    few, many = (run.parts[step] for run in runs)
    found = {kind: extrapolate(few[kind], many[kind], batch) for kind in device.KINDS}
    print(f"\n{title}\n\n| part | launches | MB per image | waits | uploads |\n|---|---|---|---|---|")
    for name in (*PARTS, "**sum**"):
        values = [sum(found[kind].values()) if "sum" in name else found[kind].get(name, 0) for kind in device.KINDS]
        launches, waits, uploads, traffic = values
        if launches or waits or uploads:
            print(f"| {name} | {launches:,.0f} | {traffic / batch / 1e6:,.1f} | {waits:.0f} | {uploads:.0f} |")


def store_at_once(self: AuxiliaryLosses, *args: Any) -> None:
    """Initialise the losses with a previous epoch, so that every step has all of them."""
    initialise(self, *args)
    self.store_fields()


initialise = AuxiliaryLosses.__init__
AuxiliaryLosses.__init__ = store_at_once  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
