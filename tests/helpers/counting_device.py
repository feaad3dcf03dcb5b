"""Train on an emulated accelerator in CPU memory: operations are counted, and mixing devices is an error.

torch allows a Python backend in place of an accelerator (`PrivateUse1`). A tensor of this one holds a CPU tensor; the
operations that reach it are those that would reach a GPU. A backend cannot be unregistered, so `test_accelerator.py`
runs this file as a script: JSON of {label: [model, overrides]} in, counts per step out. `benchmarks/gpu_launches.py`
counts the paper's models with it.

An operation counts as the kernels that CUDA launches for it (`KERNELS`, `FOREACH`; views and allocations as none), its
traffic as the bytes of all its operands, each once, as if nothing stayed in a cache.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_runs import write_idx
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from quatsphere.config import DataConfig, OptimConfig, RunConfig, TrainConfig
from quatsphere.kernels.gpu import attention as triton_gpu
from quatsphere.models import build_model, model_config
from quatsphere.torch_operators import OPERATORS
from quatsphere.train import Progress, Reporter, train

_setup_privateuseone_for_python_backend("counting")
torch.counting.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
DEVICE, CPU = torch.device("counting", 0), torch.device("cpu")
WAITS = {"_local_scalar_dense", "nonzero", "bincount", "equal", "masked_select", "_unique2", "unique_dim"}
"""Operations for whose result, or its size, the host waits."""
KERNELS = {"sort": 4, "topk": 2, "cumsum": 1, "median": 3, "nonzero": 4, "bincount": 4, "_unique2": 6}
KERNELS |= {"native_layer_norm_backward": 2, "grid_sampler_2d_backward": 2, "convolution_backward": 3}
"""CUDA kernels of the operations that need several."""
FOREACH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Lists of tensors of a multi-tensor operation -> tensors per list that one launch takes."""
KINDS = ("launches", "waits", "uploads", "bytes")
counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
"""Launches by operation, waits and uploads by function of the package, bytes by operation."""
parts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
"""Launches, waits, uploads and bytes by part of the step."""
current = ["other"]
"""Part of the step that runs, innermost last."""


def count(kind: str, name: str, number: int = 1) -> None:
    """Add to a count and to that of the current part."""
    counts[kind][name] += number
    parts[kind][current[-1]] += number


@contextmanager
def part(name: str) -> Iterator[None]:
    """Replacement of `torch.profiler.record_function` that counts the launches of a part of the step."""
    current.append(name.removeprefix("quatsphere::"))
    try:
        yield
    finally:
        current.pop()


def kernels_of(name: str, args: Any) -> int:
    """Number of kernels that CUDA launches for an operation."""
    lists = [value for value in args if isinstance(value, (list, tuple)) and value and tensors(value)]
    if name.startswith(("_foreach", "_fused", "_amp_foreach")) and lists:
        return math.ceil(len(lists[0]) / FOREACH[min(5, len(lists))])
    return KERNELS.get(name, 1)


def traffic(operands: list[torch.Tensor]) -> int:
    """Bytes of the operands, each memory once; an axis with stride 0 counts once."""
    seen = {(x.data_ptr(), x.shape): x for x in operands}.values()
    return sum(
        x.element_size() * math.prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step) for x in seen
    )


def location() -> str:
    """Innermost function of the package on the stack, or `autograd`."""
    own = [line for line in traceback.extract_stack() if "/quatsphere/" in line.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].name}" if own else "autograd"


class OnDevice(torch.Tensor):
    """Tensor of the device: shape, type, and `held`, the CPU tensor with its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "quatsphere":  # an operator without a kernel for this device runs its Python body,
            return OPERATORS[func._schema.name].function(*args, **kwargs)
        parts = func.decompose(*args, **kwargs)  # in which nothing is decomposed by autograd
        return run(func, args, kwargs) if parts is NotImplemented else parts


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on the CPU tensors of its arguments and count it."""
    given = tensors((*args, *kwargs.values()))
    name = func._schema.name.removeprefix("aten::")
    copies = name in ("copy_", "_to_copy")
    if not copies and any(not isinstance(x, OnDevice) and x.dim() for x in given):
        raise RuntimeError(f"{name} of tensors on two devices at {location()}")
    behind = {id(x.held): x for x in given if isinstance(x, OnDevice)}
    down = copies and (kwargs.get("device") == CPU or not isinstance(given[0], OnDevice))
    inside = {key: CPU if key == "device" else each(held, value) for key, value in kwargs.items()}
    out = func(*each(held, args), **inside)
    assert all(x.shape == x.held.shape for x in behind.values()), f"{name} resizes a tensor at {location()}"
    if "empty" in name:
        for x in tensors(out) if PLACEHOLDERS else ():
            x.zero_()
    elif copies and (down or len(behind) < len(given)):
        count("waits" if down else "uploads", location())
    elif func._schema.is_mutable or name in WAITS or not shares_memory(tensors(out), behind.values()):
        if name in WAITS or (name.startswith("index") and any(x.dtype == torch.bool for x in tensors(args[1]))):
            count("waits", f"{name} {location()}")
        if name != "_local_scalar_dense":
            count("launches", name, kernels_of(name, args))
            count("bytes", name, traffic([held(x) for x in (*given, *tensors(out))]))
    return out if down else each(lambda x: behind[id(x)] if id(x) in behind else OnDevice(x), out)


def each(function: Any, value: Any) -> Any:
    """Apply a function to the tensors of a value, also inside lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)([each(function, item) for item in value])
    return function(value) if isinstance(value, torch.Tensor) else value


def held(x: torch.Tensor) -> torch.Tensor:
    """CPU tensor of a tensor of the device."""
    return x.held if isinstance(x, OnDevice) else x


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of a value."""
    found: list[torch.Tensor] = []
    each(found.append, value)
    return found


def shares_memory(results: list[torch.Tensor], arguments: Any) -> bool:
    """True if all results are views of the arguments."""
    memory = {x.held.untyped_storage().data_ptr() for x in arguments}
    return bool(results) and all(x.untyped_storage().data_ptr() in memory for x in results)


def allocate(name: str) -> Any:
    """Kernel that creates a tensor on the device."""

    def make(*args: Any, **kwargs: Any) -> OnDevice:
        made = getattr(torch.ops.aten, name)(*args, **kwargs | {"device": CPU})
        if "empty" not in name:
            count("launches", name)
            count("bytes", name, traffic([made]))
        elif PLACEHOLDERS:
            made.zero_()
        return OnDevice(made)

    return make


def upload(source: torch.Tensor, target: OnDevice, non_blocking: bool = False) -> OnDevice:
    """Copy a constant made by `torch.tensor(..., device=...)` to the device."""
    count("uploads", location())
    target.held.copy_(source)
    return target


PLACEHOLDERS = "--placeholders" in sys.argv
"""True if Triton kernels are counted but not run, and uninitialised memory is zero: fast at any size."""


class Launched:
    """Triton kernel, interpreted on the CPU tensors of its arguments."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            count("launches", self.kernel.__name__)
            count("bytes", self.kernel.__name__, traffic([held(x) for x in tensors((*args, *kwargs.values()))]))
            if not PLACEHOLDERS:
                self.kernel[grid](*each(held, args), **{key: each(held, value) for key, value in kwargs.items()})

        return launch


class Steps(Reporter):
    """Stores the counts of each step."""

    def __init__(self) -> None:
        self.counts: list[dict[str, dict[str, int]]] = []
        self.parts: list[dict[str, dict[str, int]]] = []
        self.addresses: list[dict[str, int]] = []
        self.model = torch.nn.Module()

    def step(self, progress: Progress, steps: int, epochs: int, images_per_second: float) -> None:
        self.counts.append({kind: dict(counts[kind]) for kind in KINDS})
        self.parts.append({kind: dict(parts[kind]) for kind in KINDS})
        self.addresses.append({name: x.data_ptr() for name, x in tables(self.model).items()})
        self.losses = progress.means()
        for kind in KINDS:
            counts[kind].clear()
            parts[kind].clear()


def tables(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a model, and the reversed edges of its graphs."""
    found: dict[str, Any] = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, module in model.named_modules():
        for table, known in getattr(module, "_reversed", {}).items():
            found |= {f"{name}.{table}.offsets": known.offsets, f"{name}.{table}.edges": known.edges}
    return found


def measure(config: RunConfig, folder: Path, steps: Steps, data: Any = None, device: torch.device = DEVICE) -> Steps:
    """Train and test on a device; return the counts."""
    run_module: Any = importlib.import_module("quatsphere.train.run")
    run_module.pick_device = lambda *_: device

    def build(*args: Any, **kwargs: Any) -> Any:
        steps.model = build_model(*args, **kwargs)
        return steps.model

    run_module.build_model = build
    train(config, folder, reporter=steps, data=data)
    return steps


def main(models: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Counts of two epochs of two steps, the last with repulsion; where kernels run, the losses, also on the CPU."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pixels = np.random.default_rng(0).integers(0, 255, (12, 8, 8))
        write_idx(root / "data", pixels, np.arange(12) % 2)
        data = DataConfig(name="idx", root=str(root / "data"), val_fraction=0.2, test_fraction=0.2, max_train_images=4)
        schedule = (
            OptimConfig(repulsion_every=3, repulsion_until=1.0),
            TrainConfig(epochs=2, batch_size=2, patience=None, threads=1),
        )
        for label, (name, overrides) in models.items():
            config = RunConfig(data, model_config(name, **overrides), *schedule)
            there = measure(config, root / f"{label}-0", Steps())
            moved = [name for name, at in there.addresses[-1].items() if at != there.addresses[0][name]]
            found[label] = {"steps": there.counts, "parts": there.parts, "moved": moved}
            if not PLACEHOLDERS:
                plain = {"backend": "factored"} if name == "qsv" else {}
                config = RunConfig(data, model_config(name, **overrides | plain), *schedule)
                here = measure(config, root / f"{label}-1", Steps(), device=CPU)
                found[label] |= {"losses": there.losses, "on_cpu": here.losses}
    return found


library = torch.library.Library("aten", "IMPL")
for overload in ("empty.memory_format", "empty_strided", "arange", "arange.start"):
    library.impl(overload, allocate(overload.split(".")[0]), "PrivateUse1")
library.impl("_copy_from", upload, "PrivateUse1")
for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
    importlib.import_module(module)._foreach_supported_types.append(OnDevice)
importlib.import_module("quatsphere.train.step").record_function = part  # type: ignore[attr-defined]
if triton_gpu.available():
    package = importlib.import_module("quatsphere.kernels.gpu")
    for info in pkgutil.walk_packages(package.__path__, "quatsphere.kernels.gpu."):
        module = importlib.import_module(info.name)
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            setattr(module, name, Launched(getattr(module, name)))

if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
