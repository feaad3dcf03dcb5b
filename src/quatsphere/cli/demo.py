"""quatsphere demo: train QSV on the embedded digits, print a table, and leave a page of pictures."""

from __future__ import annotations

import argparse
import json

from rich.console import Console


def run(words: list[str]) -> int:
    """Train the demo preset and show it."""
    parser = argparse.ArgumentParser(
        prog="quatsphere demo", description=__doc__, epilog="any --GROUP.FIELD VALUE of 'quatsphere train' works too"
    )
    parser.add_argument("--run-dir", default="runs/demo", help="default: runs/demo, then runs/demo-2, ...")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    asked, rest = parser.parse_known_args(words)
    from quatsphere.cli.console import LiveReporter, evaluation_table
    from quatsphere.cli.looks import write_run_page
    from quatsphere.cli.settings import resolve
    from quatsphere.cli.trained import open_run
    from quatsphere.train import evaluate, train
    from quatsphere.train.run import load_data

    folder = free_folder(asked.run_dir)
    config = resolve("demo", ["--preset", "demo", *rest]).config
    result = train(config, folder, reporter=LiveReporter())
    trained = open_run(folder)
    dataset = load_data(trained.config.data, lambda message: None)
    evaluation = evaluate(trained.model, dataset, "test")
    path = write_run_page(trained, dataset, evaluation, result)
    if asked.json:
        print(json.dumps({**result, "page": str(path)}))
        return 0
    Console().print(evaluation_table(result["test"], f"{result['data']}: {result['parameters']:,} parameters"))
    print(f"test accuracy {result['test_accuracy']:.3f}")
    print(f"pictures: {path}")
    return 0


def free_folder(wanted: str) -> str:
    """The wanted folder, or with a number where one exists already: a demo never asks and never overwrites."""
    from pathlib import Path

    Path(wanted).absolute().parent.mkdir(parents=True, exist_ok=True)
    candidates = [wanted, *(f"{wanted}-{number}" for number in range(2, 10_000))]
    return next(name for name in candidates if not Path(name).exists())
