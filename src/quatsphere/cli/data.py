"""quatsphere data get|verify|preview|cache: download or check data, draw samples, manage the cache."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, add_json, at_least
from quatsphere.data import DATASETS
from quatsphere.data.cifar_files import CIFARS

READ_OPTIONS = ("root", "image_size", "fit", "skip_bad")


def run(words: list[str]) -> int:
    """Run `get`, `verify`, `preview` or `cache`."""
    parser = Parser(prog="quatsphere data", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="get|verify|preview|cache")
    text = "download and verify an archive; an interrupted download is resumed"
    get = actions.add_parser("get", help=text, description=text)
    get.add_argument("name", choices=tuple(CIFARS), help="data set")
    get.add_argument(
        "-o", "--output", metavar="DIR", help="folder to download to (default: the one that training searches)"
    )
    get.add_argument("--url", help="another address of the same file (or QUATSPHERE_URL)")
    texts = {
        "verify": "check a copy of the data: counts, content, duplicates",
        "preview": "draw an image and the samples that the first shell takes of it",
    }
    for action, text in texts.items():
        add_read_options(actions.add_parser(action, help=text, description=text))
    preview = actions.choices["preview"]
    preview.add_argument("-o", "--output", default="preview.png", help="picture to write (default preview.png)")
    preview.add_argument("--index", type=at_least(0), metavar="N", default=0, help="index of the training image [0]")
    preview.add_argument("--layout", choices=("sphere", "plane"), default="sphere", help="shape of the shells [sphere]")
    text = "show location and size of the cache; --clear deletes decoded images"
    cache = actions.add_parser("cache", help=text, description=text)
    cache.add_argument("--clear", action="store_true", help="delete decoded images; they are decoded again when needed")
    cache.add_argument("--downloads", action="store_true", help="with --clear: delete downloaded files too")
    add_json(cache)
    args = parser.parse_args(words)
    return {"get": _get, "verify": _verify, "preview": _preview, "cache": _cache}[args.action](args)


def add_read_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select and read the data."""
    parser.add_argument("name", choices=tuple(DATASETS), help="data set")
    parser.add_argument("--data.root", dest="root", metavar="PATH", help="file or folder, as in training")
    parser.add_argument("--data.image_size", dest="image_size", type=at_least(1), metavar="N", help="resize to N x N")
    parser.add_argument(
        "--data.fit",
        dest="fit",
        choices=("crop", "squash"),
        default="crop",
        help="treatment of images that are not square [crop]",
    )
    parser.add_argument(
        "--data.skip_bad", dest="skip_bad", type=at_least(0), metavar="N", default=0, help="allow N bad images"
    )
    add_json(parser)


def _get(args: argparse.Namespace) -> int:
    from quatsphere.cli.console import Ticker
    from quatsphere.data import download_dataset, download_folder

    folder = Path(args.output) if args.output else download_folder()
    with Ticker(f"fetching {args.name}") as ticker:
        path = download_dataset(args.name, folder, args.url, ticker)
    print(path)
    return 0


def _cache(args: argparse.Namespace) -> int:
    from quatsphere.data.cache import CACHED, cache_usage, clear_cache
    from quatsphere.errors import ConfigError
    from quatsphere.storage.atomic import size_text

    if args.downloads and not args.clear:
        raise ConfigError("--downloads belongs to --clear; add it, or leave both out to see the sizes")
    freed = clear_cache("decoded", *(["downloads"] if args.downloads else [])) if args.clear else 0
    usage = cache_usage()
    if args.json:
        print(json.dumps({**usage, "freed": freed}))
        return 0
    for name, found in usage.items():
        print(
            f"{name:<10} {found['files']:>6} files {size_text(found['bytes']):>12}  {found['path']}  ({CACHED[name]})"
        )
    if args.clear:
        print(f"freed {size_text(freed)}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from quatsphere.cli.console import Ticker
    from quatsphere.data import verify

    options = {name: getattr(args, name) for name in READ_OPTIONS}
    with Ticker("reading data") as ticker:
        report = verify(args.name, **options, progress=ticker)
    if args.json:
        print(json.dumps(report))
        return 0
    for name, value in report.items():
        print(f"{name:<20} {_format_value(value)}")
    return 0


def _preview(args: argparse.Namespace) -> int:
    from quatsphere.cli.console import Ticker, note
    from quatsphere.config import DataConfig
    from quatsphere.errors import ConfigError
    from quatsphere.models import create_model
    from quatsphere.report import require_report
    from quatsphere.train.run import load_data

    require_report()
    from quatsphere.diagnostics.view_trace import first_shell_samples, shell_positions
    from quatsphere.report.figures import sampling_preview, to_bytes
    from quatsphere.storage.atomic import write_bytes

    with Ticker("reading data") as ticker:
        options = {name: getattr(args, name) for name in READ_OPTIONS}
        dataset = load_data(DataConfig(name=args.name, **options), note, ticker)
    if args.index >= len(dataset.train.labels):
        raise ConfigError(f"--index must lie in 0..{len(dataset.train.labels) - 1}: got {args.index}")
    image = dataset.train.images[args.index].float() / 255
    model = create_model("qsv", layout=args.layout, image_size=image.shape[-1], in_channels=image.shape[0])
    coords, samples = first_shell_samples(model, image)
    title = f"{dataset.classes[dataset.train.labels[args.index]]} (training image {args.index})"
    figure = sampling_preview(image.numpy(), coords, samples, shell_positions(model)[0], title)
    write_bytes(Path(args.output), to_bytes(figure, "png", dpi=110))
    print(json.dumps({"picture": args.output}) if args.json else args.output)
    return 0


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{v:.4f}" if isinstance(v, float) else str(v) for v in value) or "-"
    return str(value)
