"""The packages and their permitted imports (docs/architecture.md): imports only point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "quatsphere"

EVERYWHERE = {"errors", "randomness", "runtime", "torch_operators"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "randomness": set(),
    "runtime": set(),
    "torch_operators": set(),
    "config": set(),
    "storage": set(),
    "geometry": set(),
    "kernels": {"geometry"},
    "nn": {"geometry", "kernels", "config"},
    "models": {"geometry", "kernels", "nn", "config"},
    "optim": {"geometry", "config"},
    "data": {"storage", "config"},
    "train": {"models", "optim", "data", "storage", "config", "geometry", "kernels", "nn", "diagnostics"},
    "diagnostics": {"models", "geometry", "data", "config", "kernels", "nn"},
    "study": {"train", "diagnostics", "models", "optim", "data", "storage", "config", "geometry"},
    "export": {"models", "nn", "geometry", "kernels", "config", "data", "storage", "train", "diagnostics", "report"},
    "bench": {"models", "optim", "config", "geometry", "kernels", "nn", "train"},
    "report": {
        *("storage", "models", "nn", "data", "config", "geometry", "train", "diagnostics", "study", "bench"),
    },
}
"""package -> packages it may import; `cli` may import everything, and nothing imports it."""

THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "randomness": {"torch", "jaxtyping"},
    "torch_operators": {"torch"},
    "runtime": set(),
    "config": set(),
    "storage": {"safetensors", "yaml", "torch", "numpy", "filelock"},
    "geometry": {"torch", "jaxtyping", "scipy"},
    "kernels": {"torch", "jaxtyping", "numba", "triton", "numpy"},
    "nn": {"torch", "jaxtyping", "einops"},
    "models": {"torch", "jaxtyping", "einops"},
    "optim": {"torch", "jaxtyping", "einops"},
}
"""package -> third-party packages it may import (packages not named here are free)."""


FILES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.add(node.module)
            if node.module == "quatsphere":
                found |= {f"quatsphere.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    package = package_of(path)
    if package in ("__init__", "__main__", "cli"):
        return
    modules = imported_modules(path)
    packages = {module.split(".")[1] for module in modules if module.startswith("quatsphere.")}
    assert packages <= ALLOWED[package] | EVERYWHERE | {package}, f"{package} may not import {packages}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_packages_from_outside(path: Path) -> None:
    import sys

    package = package_of(path)
    outside = {module.split(".")[0] for module in imported_modules(path)} - {"quatsphere"}
    outside -= set(sys.stdlib_module_names)
    if package in THIRD_PARTY:
        assert outside <= THIRD_PARTY[package], f"{package} may not import {outside - THIRD_PARTY[package]}"


def test_no_catch_all_modules() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "helpers", "misc", "common")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
