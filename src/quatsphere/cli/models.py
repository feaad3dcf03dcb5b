"""quatsphere models: list the trained models that come with the package, with accuracy and number of test images.

Use one with `quatsphere predict FILE --model NAME`, or in Python with `quatsphere.load(NAME)`.
"""

from __future__ import annotations

import json
from typing import Any

from quatsphere.cli.parser import Parser, add_json
from quatsphere.storage.model_folder import read_model_config, shipped_models


def run(words: list[str]) -> int:
    """List the models."""
    parser = Parser(prog="quatsphere models", description=__doc__)
    add_json(parser, "one JSON object per model")
    args = parser.parse_args(words)
    models = [shipped_facts(name) for name in shipped_models()]
    if args.json:
        for model in models:
            print(json.dumps(model))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for column in ("name", "model", "data", "image", "parameters", "images seen", "test accuracy", "n"):
        table.add_column(column, no_wrap=True, justify="left" if column in ("name", "model", "data") else "right")
    for model in models:
        accuracy = "-" if model["test_accuracy"] is None else f"{model['test_accuracy']:.4f}"
        counts = [f"{model[key]:,}" for key in ("parameters", "images_seen")]
        table.add_row(*(model[key] for key in ("name", "model", "data", "image")), *counts, accuracy, f"{model['n']:,}")
    Console(width=120).print(table)
    return 0


def shipped_facts(name: str) -> dict[str, Any]:
    """Facts of a model that comes with the package."""
    folder = shipped_models()[name]
    config = read_model_config(folder)
    settings, result = config["settings"], config["result"]
    model = settings["model"]
    return {
        "name": name,
        "model": model["name"] + (" (plane)" if model.get("layout") == "plane" else ""),
        "data": settings["data"]["name"],
        "image": f"{model['in_channels']}x{model['image_size']}x{model['image_size']}",
        "classes": model["num_classes"],
        "parameters": result["parameters"],
        "images_seen": result.get("images_seen", 0),
        "test_accuracy": result.get("test_accuracy"),
        "n": result.get("test", {}).get("images", 0),
        "seed": result.get("seed"),
        "commit": result.get("commit"),
        "folder": str(folder),
    }
