"""quatsphere evaluate RUN: accuracy, per-class accuracy, confusion, likelihood and calibration of a trained run."""

from __future__ import annotations

import json

from rich.console import Console

from quatsphere.cli.parser import Parser, add_data_root, add_json, add_run


def run(words: list[str]) -> int:
    """Evaluate a run on one split of its data."""
    parser = Parser(prog="quatsphere evaluate", description=__doc__)
    add_run(parser)
    parser.add_argument("--split", choices=("test", "val", "train"), default="test", help="split to evaluate [test]")
    add_data_root(parser)
    add_json(parser)
    args = parser.parse_args(words)
    from quatsphere.cli.console import Ticker, evaluation_table, read_dataset_of
    from quatsphere.storage.atomic import finite
    from quatsphere.train.load import load

    trained = load(args.run, args.checkpoint)
    dataset = read_dataset_of(trained, args.data_root)
    with Ticker("evaluating") as ticker:
        report = trained.evaluate(args.split, dataset, progress=ticker).report()
    if args.json:
        facts = {"run": str(trained.run.path), "split": args.split, "step": trained.step, **report}
        print(json.dumps(finite(facts)))
        return 0
    Console().print(evaluation_table(report, f"{args.split} images, step {trained.step}"))
    print(f"{args.split} accuracy {report['accuracy']:.4f}   nll {report['nll']:.4f}   ece {report['ece']:.4f}")
    return 0
