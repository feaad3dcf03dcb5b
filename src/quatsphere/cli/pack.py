"""quatsphere pack RUN -o FOLDER: write a model folder (weights, settings, preprocessing, model card) from a run.

--push OWNER/NAME uploads the folder to the Hugging Face Hub; 'quatsphere predict FILE --model hf://OWNER/NAME' uses it.
"""

from __future__ import annotations

import json

from quatsphere.cli.parser import Parser, add_json, add_run


def run(words: list[str]) -> int:
    """Pack the model of a run."""
    parser = Parser(prog="quatsphere pack", description=__doc__)
    add = parser.add_argument
    add_run(parser, text="folder of a run, or a model folder")
    add("-o", "--output", metavar="FOLDER", required=True, help="model folder to write; its name is the model's")
    add("--licence", metavar="ID", default="other", help="licence of the weights, e.g. apache-2.0 [other]")
    add("--overwrite", action="store_true", help="replace a model folder of this name")
    add("--push", metavar="OWNER/NAME", help="also upload it to the Hugging Face Hub (extra 'hub')")
    add_json(parser, "print the folder and its result as JSON")
    args = parser.parse_args(words)
    from quatsphere.train.hub import push, require_hub
    from quatsphere.train.load import load

    if args.push:
        require_hub(args.push)
    trained = load(args.run, args.checkpoint)
    folder = trained.save_pretrained(args.output, licence=args.licence, overwrite=args.overwrite)
    address = push(folder, args.push) if args.push else None
    size = sum(path.stat().st_size for path in folder.iterdir())
    if args.json:
        facts = {key: trained.result.get(key) for key in ("test_accuracy", "val_accuracy", "parameters", "commit")}
        print(json.dumps({"folder": str(folder), "bytes": size, "step": trained.step, "commit_url": address, **facts}))
        return 0
    print(f"{folder}: {size / 1000:,.0f} kB, {trained!r}")
    if address:
        print(f"pushed: {address}")
    return 0
