"""Cost of compiling a kernel, counted: inner functions are translated with their entry point only."""

from __future__ import annotations

import gc
from typing import Any

import pytest

pytest.importorskip("numba")

import numba
from numba.core.codegen import CPUCodeLibrary

from quatsphere.kernels.cpu.loops import jit


@jit.inlined
def twice(x):
    return 2 * x


@jit.not_inlined
def three_times(x):
    return x + twice(x)


def nine_times(x):
    return three_times(three_times(x))


def test_only_the_entry_is_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    optimised, original = [], CPUCodeLibrary._optimize_final_module

    def count(library: Any) -> None:
        optimised.append(library.name)
        original(library)

    monkeypatch.setattr(CPUCodeLibrary, "_optimize_final_module", count)
    assert numba.njit(nine_times)(2.0) == 18.0
    assert [name for name in optimised if name != "nrt"] == ["nine_times"]  # nrt: Numba's own, once per process


def test_garbage_is_collected_again_after_compiling() -> None:
    assert numba.njit(lambda x: three_times(x))(1) == 3
    assert gc.isenabled()
