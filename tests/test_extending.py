"""A rule inside the package touches three files, a data set two (CONTRIBUTING.md): shown on a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import quatsphere

ROUTING = '''
class Squared(Routing):
    """softmax_j(beta_h Re(r_ij)^2)."""

    @staticmethod
    def rule(target: Tensor, source: Tensor, beta: Tensor) -> Tensor:
        return torch.softmax(beta * (target * source).sum(-1).square(), dim=2)


ROUTINGS: dict[str, type[Routing]] = {
    "squared": Squared,
'''
TRANSPORT = '''
class Negated(Transport):
    """m_ij = -x_j."""

    @staticmethod
    def rule(target: Tensor, source: Tensor, features: Tensor) -> Tensor:
        return -features


TRANSPORTS: dict[str, type[Transport]] = {
    "negated": Negated,
'''
READER = '''
"""Stripes, horizontal or vertical."""

import numpy as np

from quatsphere.data.dataset import RawDataset, ReadOptions, raw_split


def read_stripes(options: ReadOptions) -> RawDataset:
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 8, 8)).astype(np.uint8)
    images[:20, :, ::2] = 0
    images[20:, :, :, ::2] = 0
    return RawDataset(("horizontal", "vertical"), raw_split(images, np.arange(40) // 20), None)
'''
EDITS: dict[str, list[tuple[str, str]]] = {
    "nn/routing.py": [("\nROUTINGS: dict[str, type[Routing]] = {\n", ROUTING)],
    "nn/transport.py": [("\nTRANSPORTS: dict[str, type[Transport]] = {\n", TRANSPORT)],
    "config/schema.py": [
        ('    routing: Literal["alignment", ', '    routing: Literal["squared", "alignment", '),
        ('    transport: Literal["sandwich", ', '    transport: Literal["negated", "sandwich", '),
    ],
    "study/variants.py": [
        (
            "\nVARIANTS: dict[str, Variant] = {\n",
            "\nVARIANTS: dict[str, Variant] = {\n"
            '    "squared": Variant("Squared scores", {"model.routing": "squared"}),\n'
            '    "negated": Variant("Negated messages", {"model.transport": "negated"}),\n',
        )
    ],
    "data/__init__.py": [
        ('    "digits": "quat', '    "stripes": "quatsphere.data.stripes:read_stripes",\n    "digits": "quat')
    ],
    "data/stripes.py": [("", READER)],
}
SCRIPT = """
import sys, quatsphere
from quatsphere.config.presets import load_preset
from quatsphere.study.variants import VARIANTS
changes = [change for name in ("squared", "negated") for change in VARIANTS[name].changes.items()]
changes = [f"{key}={value}" for key, value in changes] + sys.argv[2:]
result = quatsphere.train(load_preset("demo", changes), sys.argv[1])
trained = quatsphere.load(sys.argv[1])
routing, transport = trained.config.model.routing, trained.config.model.transport
print(trained.model.within.routing.__class__.__name__, trained.classes, routing, transport, result["steps"])
"""
SMALL = (
    *("data.name=stripes", "data.crop_pad=0", "train.epochs=1", "train.batch_size=8", "model.backend=factored"),
    *("model.dim=16", "model.heads=2", "model.base_vertices=8", "model.shells=2", "model.neighbours=3"),
)


def test_a_rule_touches_three_files_and_a_data_set_two(tmp_path: Path) -> None:
    package = Path(quatsphere.__file__).parent
    copy = tmp_path / "src" / "quatsphere"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "pretrained", "assets"))
    for name, edits in EDITS.items():
        text = (copy / name).read_text() if (copy / name).exists() else ""
        for old, new in edits:
            assert text.count(old) == 1 or not old, f"{name} has no {old!r}"
            text = text.replace(old, new, 1) if old else new
        (copy / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), *SMALL],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "src")},
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines()[-1] == "Squared ('horizontal', 'vertical') squared negated 4"
