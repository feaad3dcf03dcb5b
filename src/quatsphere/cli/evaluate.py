"""quatsphere evaluate RUN: accuracy, per-class accuracy, confusion, likelihood and calibration of a trained run."""

from __future__ import annotations

import argparse
import json

from rich.console import Console


def run(words: list[str]) -> int:
    """Evaluate a run on one split of its data."""
    parser = argparse.ArgumentParser(prog="quatsphere evaluate", description=__doc__)
    parser.add_argument("run", metavar="RUN", help="folder of a run")
    parser.add_argument("--split", choices=("test", "val", "train"), default="test", help="default: test")
    parser.add_argument("--data.root", dest="root", help="where the data lies, if not where the run found it")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    asked = parser.parse_args(words)
    from dataclasses import replace

    from quatsphere.cli.console import Ticker, evaluation_table, note
    from quatsphere.cli.trained import open_run
    from quatsphere.errors import CheckpointError
    from quatsphere.train.evaluation import evaluate
    from quatsphere.train.run import load_data

    trained = open_run(asked.run)
    with Ticker("reading data") as ticker:
        data = replace(trained.config.data, root=asked.root or trained.config.data.root)
        dataset = load_data(data, note, ticker)
    if dataset.fingerprint != trained.meta["fingerprint"]:
        raise CheckpointError(
            f"the data is not what the run was trained on ({dataset.fingerprint[:12]} instead of "
            f"{trained.meta['fingerprint'][:12]}); name the right files with --data.root"
        )
    with Ticker("evaluating") as ticker:
        report = evaluate(trained.model, dataset, asked.split, progress=ticker).report()
    facts = {"run": str(trained.run.path), "split": asked.split, "step": trained.step, **report}
    if asked.json:
        print(json.dumps(facts))
        return 0
    Console().print(evaluation_table(report, f"{asked.split} images, step {trained.step}"))
    print(f"{asked.split} accuracy {report['accuracy']:.4f}   nll {report['nll']:.4f}   ece {report['ece']:.4f}")
    return 0
