"""Random settings, valid or not, give a configuration or one error line; valid ones build and train."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from quatsphere.config.resolve import MODEL_CONFIGS, field_types

ODD = ["", "x", "nan", ".inf", "-1", "1e400", "null", "[]", "{a: 1}", "!!python/object:os.x", "'", "\n", "0x1F", "true"]
EXTREME = [0.0, 1.0, 1e-30, 1e5, 1e30, 1e300]
ODD_KEYS = ["model.bonud", "train.", "data.name.x", "optim.peak-lr", "train.epochs ", "model.ü"]
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "model.image_size": st.sampled_from([8, 32]),
    "model.base_vertices": st.sampled_from([4, 8, 16]),
    "model.shells": st.integers(1, 3),
    "model.plane_rows": st.sampled_from([1, 2, 4]),
    "model.dim": st.sampled_from([8, 16, 24, None]),
    "model.heads": st.sampled_from([1, 2, 3, None]),
    "model.neighbours": st.sampled_from([None, 1, 3, 5]),
    "model.budget": st.sampled_from([None, 1, 20_000]),
    "model.width": st.integers(1, 4),
    "model.rounds": st.integers(0, 2),
    "model.backend": st.sampled_from(["factored", "reference"]),
    "optim.position_lr": st.sampled_from([-1.0, 0.0, 1e-3, 1.0]),
    "data.name": st.just("folder"),
    "data.image_size": st.sampled_from([8, 16]),
    "data.max_train_images": st.sampled_from([None, 4, 9]),
    "train.epochs": st.just(1),
    "train.batch_size": st.sampled_from([1, 3, 15, 16]),
    "train.device": st.sampled_from(["auto", "cpu", "cpu:0", "meta", "nothing"]),
    "train.compile": st.just(False),
    "train.threads": st.just(1),
    "train.track": st.just("none"),
}
"""Values for fields that decide the cost of a step: small, some of them invalid."""
SMALL: dict[str, Any] = {
    "model.base_vertices": 8, "model.shells": 2, "model.plane_rows": 2, "model.image_size": 8, "data.name": "folder",
    "data.image_size": 8, "train.epochs": 1, "train.batch_size": 4, "train.threads": 1,
}  # fmt: skip
OWN = {
    "qsv": {"model.dim": 8, "model.heads": 1, "model.backend": "factored"},
    "attention": {"model.dim": 8},
    "resnet20": {"model.width": 2},
    "linear": {},
}
Words = list[str]


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field of this type."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is UnionType:
        return st.one_of([of_type(part) for part in get_args(kind)])
    if kind is NoneType:
        return st.none()
    return {
        int: st.one_of(st.integers(-2, 12), st.sampled_from([10**12, 2**64])),
        float: st.one_of(
            st.floats(-0.1, 2, allow_subnormal=False), st.sampled_from([0.0, 1.0, 1e-30, 1e5, 1e30, 1e300])
        ),
        bool: st.booleans(),
        str: st.sampled_from(["x", "", "none"]),
    }[kind]


def spelled(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def commands(draw: st.DrawFn) -> Words:
    """Words of a train command: a small model, a handful of fields changed, sometimes to nonsense."""
    model = draw(st.sampled_from(sorted(MODEL_CONFIGS)))
    fields = field_types(model)
    chosen = {key: value for key, value in (SMALL | OWN[model]).items() if key in fields}
    for key in draw(st.lists(st.sampled_from(sorted(set(fields) - {"model.name", "data.root"})), max_size=6)):
        chosen[key] = draw(SENSIBLE.get(key, of_type(fields[key])))
    if draw(st.integers(0, 5)) == 0:
        chosen[draw(st.sampled_from([*fields, *ODD_KEYS]))] = draw(st.sampled_from(ODD))
    name = chosen.pop("model.name", model)
    pairs = [(f"--model.name={name}",), *((f"--{key}={spelled(value)}",) for key, value in chosen.items())]
    return list(itertools.chain.from_iterable(pairs))


def check(words: Words, command: Callable[..., Any]) -> bool:
    """Return True if the words resolve; otherwise require a one-line error."""
    ended = command("train", *words, "--print-config")
    if ended.code != 0:
        own_images = any(word.startswith("--data.root=") for word in words)  # their sizes are read
        assert ended.code in ((2, 3) if own_images else (2,)), ended
        assert ended.out == ""
        assert ended.err.startswith("quatsphere: error: ")
        assert ended.err.count("\n") == 1
        assert len(ended.err) < 700
        return False
    assert ended.err == ""
    assert list(yaml.safe_load(ended.out)) == ["data", "model", "optim", "train"]
    return True


@given(words=commands())
@settings(max_examples=100)
def test_random_settings_resolve_or_fail_with_one_line(words: Words, command: Callable[..., Any]) -> None:
    check(words, command)


@given(words=commands())
@settings(max_examples=20)
def test_random_models_are_described_or_fail_with_one_line(words: Words, command: Callable[..., Any]) -> None:
    resolved = check(words, command)
    looked = command("info", *words, "--json")
    assert looked.code in ((0, 2, 6) if resolved else (2,)), looked


def train_one(words: Words, root: Path, run: Path, command: Callable[..., Any]) -> int:
    """One epoch of one to fifteen steps on fifteen images: trained, or one line."""
    given_root = [] if any(word.startswith("--data.root") for word in words) else [f"--data.root={root}"]
    ended = command("train", *words, *given_root, "--run-dir", str(run))
    start = next((word.partition("=")[2] for word in words if word.startswith("--train.init=")), "none")
    starts_elsewhere = start not in ("none", "null")  # a run that does not exist
    assert ended.code in ((2, 3, 4) if starts_elsewhere else (0, 2, 3, 5, 6)), ended
    assert "Traceback" not in ended.err
    assert "this is a bug" not in ended.err
    if ended.code:
        last = ended.err.splitlines()[-1]
        assert last.startswith("quatsphere: error: "), ended.err
    assert ended.code == 5 or (run / "result.json").is_file() == (ended.code == 0)
    return int(ended.code)


def run_folders(folder: Path) -> Any:
    return (folder / f"run-{number}" for number in itertools.count())


def test_some_random_settings_train(
    class_folder: Path, tmp_path_factory: pytest.TempPathFactory, command: Callable[..., Any]
) -> None:
    folders = run_folders(tmp_path_factory.mktemp("random"))

    @given(words=commands())
    @settings(max_examples=15)
    def trial(words: Words) -> None:
        train_one(words, class_folder, next(folders), command)

    trial()
