"""Machine code of the Triton kernels without a GPU: launches recorded, compiled, and their cost read off."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch


class Launch(NamedTuple):
    """A kernel, its positional arguments, its constants and options, and its grid of programs."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]
    grid: tuple[int, ...]

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__).removesuffix("_kernel")


def record_launches(patch: pytest.MonkeyPatch) -> list[Launch]:
    """Append launches to the returned list from now on, instead of running them on a device."""
    import triton

    launches: list[Launch] = []

    def record(self: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        launches.append(Launch(self, arguments, constants, grid))

    patch.setattr(triton.JITFunction, "run", record)
    return launches


def compile_launch(launch: Launch, target: tuple[str, int | str, int]) -> Any:
    """Compile a kernel as this launch would; Triton specialises integers equal to 1 or divisible by 16."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    kernel, constants = launch.kernel, dict(launch.constants)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    names = dict(zip(kernel.arg_names, launch.arguments, strict=False))
    free = {p.name for p in kernel.params if p.do_not_specialize}
    ones = {n: 1 for n, value in names.items() if isinstance(value, int) and value == 1 and n not in free}
    types = {name: mangle_type(value) for name, value in names.items()}
    aligned = {
        (kernel.arg_names.index(n),): [["tt.divisibility", 16]]
        for n, value in names.items()
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0 and n not in free)
    }
    constants |= ones
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget(*target), options=options)


class Cost(NamedTuple):
    """Registers and bytes of stack per thread, and instructions of a warp with `rounds` passes of every loop."""

    registers: int
    stack: int
    instructions: int
    narrow_loads: int


def read_cost(compiled: Any, rounds: int = 1) -> Cost:
    """Registers, stack and instructions of compiled code, from the tools in Triton's package."""
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    if not (tools / "cuobjdump").exists() or not (tools / "nvdisasm").exists():
        pytest.skip(f"needs cuobjdump and nvdisasm, which this build of Triton does not have in {tools.name}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([tools / name, option, file.name], capture_output=True, text=True, check=True).stdout
            for name, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        )
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    count, narrow = count_instructions(code, rounds)
    return Cost(int(registers), int(stack), count, narrow)


def count_instructions(code: str, rounds: int) -> tuple[int, int]:
    """(instructions without padding, loads of 32 bits), every loop passed `rounds` times."""
    labels: dict[str, tuple[int, int]] = {}
    count = narrow = 0
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x?_?\w+):", line):
            labels[label[1]] = (count, narrow)
        found = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*)", line)
        if found is None or found[1] == "NOP":
            continue
        count, narrow = count + 1, narrow + bool(re.fullmatch(r"LDG\.E(\.CONSTANT|\.U8|\.S8|\.U16)*", found[1]))
        back = re.search(r"\((\.L_x?_?\w+)\)", found[2]) if found[1].startswith("BRA") else None
        if back and back[1] in labels and count - labels[back[1]][0] > 1:
            start = labels[back[1]]
            count, narrow = count + (rounds - 1) * (count - start[0]), narrow + (rounds - 1) * (narrow - start[1])
    return count, narrow
