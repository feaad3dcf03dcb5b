"""Damaged and hostile files are refused in one line; nothing of them runs, leaks or hangs."""

from __future__ import annotations

import random
import resource
import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.data_files import class_folders, write_files
from helpers.tiny_runs import Process, tiny_config
from soak.promises import Trials, promise, within

from quatsphere.data import load_dataset
from quatsphere.errors import CheckpointError
from quatsphere.report.page import Card, PageClaim, Picture, Report, Section, Tile, png_uri, write_report
from quatsphere.storage.checkpoint import load_checkpoint
from quatsphere.study.table_formats import Table
from quatsphere.train import train


def damaged_copies(files: dict[str, bytes], count: int) -> Iterator[tuple[str, str, bytes]]:
    """(kind, file, content): half are flipped bits, the others cuts of every length, headers edited, pieces moved."""
    dice, names = random.Random(0), list(files)
    for number in range(count):
        name = names[number % len(names)] if number % 2 else dice.choices(names, [len(files[n]) for n in names])[0]
        data, kind = bytearray(files[name]), ("cut", "header", "zeros", "insert", "swap")[number // 2 % 5]
        at = dice.randrange(len(data))
        if number % 2 == 0:
            kind = "flip"
            data[at] ^= 1 << dice.randrange(8)
        elif kind == "cut":
            del data[len(data) * (number // 10 % 100) // 100 :]
        elif kind == "header":
            data[dice.randrange(min(len(data), 300))] = dice.randrange(256)
        elif kind == "zeros":
            data[at : at + 16] = bytes(len(data[at : at + 16]))
        elif kind == "insert":
            data[at:at] = dice.randbytes(dice.randint(1, 9))
        else:
            data[:] = data[at:] + data[:at]
        if bytes(data) != files[name]:
            yield kind, name, bytes(data)


@promise(
    "A damaged copy of a real checkpoint (bits, cuts, headers) is refused in 1 s, within twice its size", 10_000, 8
)
def damaged_checkpoints(trials: Trials) -> None:
    train(tiny_config(epochs=1), trials.folder / "run")
    step = next((trials.folder / "run" / "checkpoints").glob("step-*"))
    files = {path.name: path.read_bytes() for path in step.iterdir()}
    size, before = sum(map(len, files.values())), None
    for kind, name, data in damaged_copies(files, trials.count * 11 // 10 + 10):
        if trials.tried == trials.count:
            break
        (step / name).write_bytes(data)
        with trials.one(f"{kind} in {name}"), within(1):
            with pytest.raises(CheckpointError) as refused:
                load_checkpoint(step)
            assert "\n" not in str(refused.value)
        (step / name).write_bytes(files[name])
        if trials.tried == 100:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with trials.one("memory"):
        assert load_checkpoint(step).step
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - (before or 1 << 40))
        assert grown <= 2 * size + (8 << 20), f"{grown / 1e6:.1f} MB for a checkpoint of {size / 1e6:.1f} MB"


@promise("Hostile pickles, archives, YAML and tensor files: nothing runs, nothing is written outside", 100, 9)
def hostile_files(trials: Trials) -> None:
    trials.tests("tests/data/test_pickles.py", "tests/data/test_archives.py", "tests/storage/test_safe_yaml.py",
                 "tests/storage/test_tensors.py")  # fmt: skip


@promise("No damaged copy of a data set is accepted", 102)
def damaged_data(trials: Trials) -> None:
    trials.tests("tests/data/test_cifar.py", "-k", "no_flipped_bit_is_accepted", each=51)


@promise(
    "A decoder that is killed, hangs or exits is an error that names the file, in time; no process is left", 90, 80
)
def failing_decoders(trials: Trials) -> None:
    trials.tests("tests/data/test_decode_files.py", "-k", "thirty_times", each=30)


@promise("Random settings train or are refused in one line; no traceback", 2000, 120)
def random_settings(trials: Trials) -> None:
    from cli.conftest import call
    from cli.test_cli_random_configs import Words, commands, train_one
    from hypothesis import HealthCheck, Phase, given, settings

    root, codes = write_files(trials.folder / "set", class_folders()), []

    @given(words=commands())
    @settings(max_examples=trials.count, phases=[Phase.generate], derandomize=True, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    def attempt(words: Words) -> None:
        run = trials.folder / f"run-{trials.tried}"
        with trials.one(words):
            codes.append(train_one(words, root, run, call))
        shutil.rmtree(run, ignore_errors=True)

    attempt()
    assert codes.count(0) > trials.count / 4, f"only {codes.count(0)} of {trials.count} settings trained"


@promise("Checkpoints and runs of every released format load, resume and evaluate", 4, 100)
def released_formats(trials: Trials) -> None:
    trials.tests("tests/storage/test_existing_runs.py")


@promise("Missing data is refused with exit code 3 within a second, before a model is built", 10, 3)
def missing_data(trials: Trials) -> None:
    from quatsphere.cli import main

    main(
        ["train", "--data.name", "cifar10", "--data.root", str(trials.folder), "--run-dir", str(trials.folder / "run")]
    )
    for number in range(trials.count):
        where = ["--data.root", str(trials.folder / str(number)), "--run-dir", str(trials.folder / "run")]
        words = ["train", "--data.name", "cifar10", *where]
        with trials.one(number), within(1):
            assert main(words) == 3
            assert not (trials.folder / "run").exists()


@promise("Two processes that fill one cache of decoded images at the same time both read the right images", 20)
def shared_image_cache(trials: Trials) -> None:
    root = write_files(trials.folder / "set", class_folders())
    expected = load_dataset("folder", root=root, cache=trials.folder / "own").fingerprint
    for number in range(trials.count):
        cache = trials.folder / f"cache-{number}"

        def work(cache: Path = cache) -> None:
            for _ in range(2):
                assert load_dataset("folder", root=root, cache=cache).fingerprint == expected

        with trials.one(number):
            pair = [Process(work, trials.folder / f"log-{number}-{i}") for i in (0, 1)]
            assert [process.wait() for process in pair] == [0, 0], pair[0].text + pair[1].text
            assert not list(cache.rglob("*.tmp.*"))


@promise("Two processes that compile into one empty cache at the same time both finish with the right result", 10, 13)
def shared_compiled_cache(trials: Trials) -> None:
    """Forks of a process that has imported the compiler and compiled nothing."""
    import numba

    from quatsphere.kernels.cpu.loops import jit

    (trials.folder / "small.py").write_text(
        "def add(a, b, out):\n    for i in range(len(out)):\n        out[i] = a[i] + b[i]\n"
    )
    sys.path.insert(0, str(trials.folder))
    import small

    def work(cache: Path) -> None:
        numba.config.CACHE_DIR = str(cache)
        one, out = np.ones(9, np.float32), np.zeros(9, np.float32)
        jit.compiled(small.add)(one, one, out)
        assert (out == 2).all()

    for number in range(trials.count):
        cache = trials.folder / f"cache-{number}"
        with trials.one(number):
            pair = [Process(lambda cache=cache: work(cache), trials.folder / f"log-{number}-{i}") for i in (0, 1)]
            assert [process.wait() for process in pair] == [0, 0], pair[0].text + pair[1].text
            assert list(cache.rglob("*.nbc")), "nothing was compiled into the cache"


WRAPPERS = ("{}", '">{}', "'>{}", "</title>{}", "</style>{}", "<!--{}-->", "]]>{}", "\u2028{}")
MARKUP = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "' onmouseover='alert(1)", '" onfocus="alert(1)" autofocus="', "<a href=javascript:alert(1)>x</a>", "<b>bold</b>",
    "{{ 7 * 7 }}", "{% raw %}", "&lt;b&gt; & more", "<math><mtext></math><img src onerror=alert(1)>", "<base href=//x>",
    "<meta http-equiv=refresh content=0>", "<style>*{display:none}</style>", "<form action=//x><input>",
    "<object data=x>",
    "<embed src=x>", "<link rel=stylesheet href=//x>", "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<body onload=alert(1)>", "<template><script>alert(1)</script></template>", "<plaintext>", "\u202e rtl <u>x</u>",
)  # fmt: skip
PIXEL = png_uri(np.zeros((1, 1, 3), np.uint8))


class Outline(HTMLParser):
    """Tags, names of attributes and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[Any] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def outline(text: str, folder: Path) -> Outline:
    """Outline of a report in which every text is the given one."""
    section = Section(
        text, text, [Table((text,), [(text,)], text, text=text)], [Picture(text, text, PIXEL, 9, 9)],
        [Card(text, PIXEL, None, text, 0.5, text)], [PageClaim(text, text, "holds", text)],
    )  # fmt: skip
    write_report(folder / "report.html", Report(text, text, [Tile(text, text, text)], [(text, text)], [section]))
    return Outline((folder / "report.html").read_text(encoding="utf-8"))


@promise("Markup in names and values appears in reports as text: no tag or attribute comes from it", 200, 6)
def markup_in_reports(trials: Trials) -> None:
    plain = outline("plainest", trials.folder)
    for text in [wrapper.replace("{}", text) for text in MARKUP for wrapper in WRAPPERS][: trials.count]:
        with trials.one(text):
            seen = outline(text, trials.folder)
            assert seen.tags == plain.tags
            counts = [sum(word in part for part in page.texts) for page, word in ((seen, text), (plain, "plainest"))]
            assert counts[0] == counts[1] > 10


@promise("Pages with hostile names run no script and request nothing in a real browser", 10)
def pages_in_a_browser(trials: Trials) -> None:
    trials.tests("tests/report/test_report_browser.py", "tests/report/test_view_browser.py")


@promise("Verdicts need three seeds or more, unique and logged; means with intervals, the test named", 10)
def published_claims(trials: Trials) -> None:
    trials.tests("tests/study/test_study_claims.py", "tests/study/test_study_statistics.py")
