"""Backends: implementations of the same operations. The first that supports a call runs it; plain torch does."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.kernels import cpu, ragged, reference, torch_backend
from quatsphere.kernels.cpu import attention as cpu_attention
from quatsphere.kernels.cpu import dot_product as cpu_dot_product
from quatsphere.kernels.cpu import feed_forward as cpu_feed_forward
from quatsphere.kernels.cpu import field as cpu_field
from quatsphere.kernels.cpu import ragged as cpu_ragged
from quatsphere.kernels.cpu import resample as cpu_resample
from quatsphere.kernels.cpu import step as cpu_step
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.gpu import dot_product as gpu_dot_product
from quatsphere.kernels.gpu import ragged as gpu_ragged
from quatsphere.kernels.gpu import step as gpu_step
from quatsphere.kernels.inputs import AttentionInputs, FusedStepInputs, Mixing, Network, Rule, ShellPair, working_dtype
from quatsphere.kernels.ragged import RaggedInputs
from quatsphere.torch_operators import transformed

FUSED_DTYPES = (torch.float32, torch.float64)
MAX_GRID = 2**16 - 1
"""Images of one batch that the grid of a GPU kernel can hold."""


class TorchBackend:
    """Plain torch, and the interface: a backend overrides the operations that it has and inherits the others."""

    name = "factored"
    description = "plain torch"
    widens = True
    """True if the attention kernel needs all inputs in one dtype."""
    hashes_masks = False
    """True if the operator for a whole step takes keys in place of dropout masks."""

    def supports(self, device: str, *rules: Rule) -> str | None:
        """Return why the backend does not run these rules on a device, or None if it does."""
        return None

    def supports_step(self, tokens: Tensor, base: Tensor) -> str | None:
        """Return why the backend has no single operator for a whole step of these dtypes, or None if it has."""
        return f"backend {self.name} runs a step part by part"

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Σ_j C_ij m_ij -> (B, T, H, Q, 4)."""
        return torch_backend.quaternion_attention(inputs)

    def ragged_attention(self, inputs: RaggedInputs) -> Tensor:
        """The same over a sorted edge list."""
        return ragged.attention_over_edges(inputs)

    def dot_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
    ) -> Tensor:
        """Scaled dot-product attention (B, T, H, C)."""
        scale = 1 / math.sqrt(queries.shape[-1])
        return torch_backend.dot_attend(queries, keys, values, neighbours, keep, keep_scale, scale)

    def feed_forward(self, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
        """down_h gelu(up_h x_h) per head, with dropout."""
        return torch_backend.feed_forward(x, up, down, keep, keep_scale)

    def perturb(
        self, hidden: Tensor, network: Network, shells: ShellPair, mixing: Mixing | None
    ) -> tuple[Tensor, Tensor]:
        """Perturbed fields of the sources and of the targets; without targets the second is empty."""
        return torch_backend.perturb(hidden, *network, *shells, *(mixing or (None, None)))

    def resample(self, x: Tensor, mixing: Mixing) -> Tensor:
        """`interp` along the vertices."""
        return torch_backend.resample(x, *mixing)

    def add_resampled(self, update: Tensor, gate: Tensor, x: Tensor, mixing: Mixing) -> Tensor:
        """update + gate * interp(x)."""
        return update + gate * self.resample(x, mixing)

    def step(self, inputs: FusedStepInputs) -> Tensor:
        """A whole step of QSV."""
        return torch_backend.step(*inputs.operands())


class ReferenceBackend(TorchBackend):
    """The attention kernel edge by edge, as in the paper: for tests."""

    name, description = "reference", "the paper's equations, edge by edge"

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Σ_j C_ij m_ij, literally."""
        return reference.quaternion_attention(inputs)

    def ragged_attention(self, inputs: RaggedInputs) -> Tensor:
        """The same over a sorted edge list, literally."""
        return reference.ragged_attention(inputs)


class FusedBackend(TorchBackend):
    """A backend with compiled kernels: no rules given as functions, no forward mode, no `torch.func`."""

    def installed(self) -> bool:
        """Return whether its compiler is installed."""
        raise NotImplementedError

    def missing(self) -> str:
        """Message for when its compiler is not installed."""
        raise NotImplementedError

    def supports(self, device: str, *rules: Rule) -> str | None:
        """Return why plain torch runs instead, or None."""
        if transformed():
            return "plain torch for torch.func and forward mode"
        if self.name not in BACKENDS:
            return self.missing()
        return None if all(isinstance(rule, str) for rule in rules) else "plain torch for a rule given as a function"


class CpuBackend(FusedBackend):
    """Numba's loops, also for a whole step. They compute in at least float32, except for the products of a step under
    autocast, and return the dtype of their input."""

    name, description = "numba_cpu", "fused loops for the CPU"

    def installed(self) -> bool:
        """Return whether Numba is installed."""
        return cpu.available()

    def missing(self) -> str:
        """Return the message for when Numba is not installed."""
        return "numba is not installed; with it the kernel is many times faster: pip install 'quatsphere[fast]'"

    def supports_step(self, tokens: Tensor, base: Tensor) -> str | None:
        """One precision throughout, or float32 with products in bfloat16 under autocast."""
        if torch.is_autocast_enabled("cpu"):
            narrow = torch.get_autocast_dtype("cpu")
            known = narrow == torch.bfloat16 and base.dtype == torch.float32
            return None if known else f"autocast to {narrow}, quaternions are {base.dtype}"
        if tokens.dtype != base.dtype or tokens.dtype not in FUSED_DTYPES:
            return f"tokens are {tokens.dtype}, quaternions {base.dtype}"
        return None

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Σ_j C_ij m_ij in one pass over the graph."""
        return cpu_attention.quaternion_attention(inputs)

    def ragged_attention(self, inputs: RaggedInputs) -> Tensor:
        """The same over a sorted edge list, with cost linear in the number of edges."""
        return cpu_ragged.ragged_attention(inputs)

    def dot_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
    ) -> Tensor:
        """Scaled dot-product attention in one pass over the graph."""
        return cpu_dot_product.dot_product_attention(queries, keys, values, neighbours, keep, keep_scale)

    def feed_forward(self, x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
        """down_h gelu(up_h x_h) without its wide intermediate in memory."""
        dtype = working_dtype(x)
        with torch.autocast("cpu", enabled=False):
            out = cpu_feed_forward.feed_forward(x.to(dtype), up.to(dtype), down.to(dtype), keep, keep_scale)
            return out.to(x.dtype)

    def perturb(
        self, hidden: Tensor, network: Network, shells: ShellPair, mixing: Mixing | None
    ) -> tuple[Tensor, Tensor]:
        """Both fields in one pass over the rows, where the network's width per head is even."""
        if network.weight.shape[1] % 2:
            return super().perturb(hidden, network, shells, mixing)
        dtype = working_dtype(shells.source)
        given = (None if x is None else x.to(dtype) for x in (hidden, *network, *shells))
        with torch.autocast("cpu", enabled=False):
            rows = (None, None) if mixing is None else (mixing.indices, mixing.shares.to(dtype))
            source, target = cpu_field.perturb(*given, *rows)
            return source.to(shells.source.dtype), target.to(shells.source.dtype)

    def resample(self, x: Tensor, mixing: Mixing) -> Tensor:
        """`interp` in one pass over memory."""
        return cpu_resample.resample(x, *mixing) if x.dtype in FUSED_DTYPES else super().resample(x, mixing)

    def add_resampled(self, update: Tensor, gate: Tensor, x: Tensor, mixing: Mixing) -> Tensor:
        """update + gate * interp(x) in one pass over memory."""
        if update.dtype != x.dtype or x.dtype not in FUSED_DTYPES:
            return super().add_resampled(update, gate, x, mixing)
        return cpu_resample.resample_onto(update, gate.to(x.dtype), x, *mixing)

    def step(self, inputs: FusedStepInputs) -> Tensor:
        """A whole step in one operator, which caches its packed constants where no gradient is needed."""
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return self.step(inputs.narrowed(torch.float32, torch.bfloat16))
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return cpu_step.step(*inputs.operands())[0]
        return cpu_step.infer(*inputs.operands())


class GpuBackend(FusedBackend):
    """Triton's kernels for the attention and for a whole step, which read narrow features as they are."""

    name, description = "triton_gpu", "fused kernels for the GPU, equal to plain torch in a self-check"
    widens = False
    hashes_masks = True

    def installed(self) -> bool:
        """Return whether Triton is installed and torch was built for GPUs."""
        return gpu_attention.available()

    def missing(self) -> str:
        """Return the message for when torch was built without GPU support or Triton is not installed."""
        if not gpu_attention.built_for_gpus():
            return "this torch was built without CUDA and ROCm; pytorch.org has builds for GPUs"
        return "triton is not installed; it compiles the fused kernel: pip install 'quatsphere[gpu]'"

    def supports(self, device: str, *rules: Rule) -> str | None:
        """Return why plain torch runs instead, or None; the self-check of the device must pass."""
        reason = super().supports(device, *rules)
        if reason is not None:
            return reason
        from quatsphere.kernels.gpu import self_check  # imports torch's compiler, which takes seconds

        fault = self_check.fault_on(device)
        return None if fault is None else f"the fused kernel failed its self-check: {fault}"

    def supports_step(self, tokens: Tensor, base: Tensor) -> str | None:
        """Quaternions of float32 or float64, and tokens of the same dtype or under autocast."""
        if base.dtype not in FUSED_DTYPES or len(tokens) > MAX_GRID:
            return f"quaternions are {base.dtype} of {len(tokens)} images"
        if tokens.dtype != base.dtype and not torch.is_autocast_enabled(tokens.device.type):
            return f"tokens are {tokens.dtype}, quaternions {base.dtype}"
        return None

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """Σ_j C_ij m_ij with two numbers per edge and head in memory."""
        if len(inputs.features) > MAX_GRID:
            return super().attention(inputs)
        return gpu_attention.quaternion_attention(inputs)

    def ragged_attention(self, inputs: RaggedInputs) -> Tensor:
        """The same over a sorted edge list: Triton's sums over the edges, torch's products per vertex."""
        gpu_ragged.register()
        return super().ragged_attention(replace(inputs, features=inputs.features.to(inputs.target_field.dtype)))

    def dot_attention(
        self, queries: Tensor, keys: Tensor, values: Tensor, neighbours: Tensor, keep: Tensor | None, keep_scale: float
    ) -> Tensor:
        """Scaled dot-product attention with two numbers per edge and head in memory."""
        if len(queries) > MAX_GRID:
            return super().dot_attention(queries, keys, values, neighbours, keep, keep_scale)
        return gpu_dot_product.dot_attend_gpu(queries, keys, values, neighbours, keep, keep_scale)[0]

    def step(self, inputs: FusedStepInputs) -> Tensor:
        """A whole step in one operator: Triton's kernels around torch's matrix products."""
        kind = inputs.tokens.device.type
        products = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.tokens.dtype
        return gpu_step.step_gpu(*inputs.operands(), *inputs.masks[4:], products)[0]


TORCH = TorchBackend()
FUSED: dict[str, FusedBackend] = {"cpu": CpuBackend(), "cuda": GpuBackend()}
"""Device type (cuda for ROCm as well) -> its fused backend."""
BACKENDS: dict[str, TorchBackend] = {"reference": ReferenceBackend(), "factored": TORCH}
BACKENDS |= {backend.name: backend for backend in FUSED.values() if backend.installed()}
"""Installed backends by name."""


def backends_on(device: str = "cpu") -> list[str]:
    """Names of the backends that run on a device; interpreted Triton also runs on CPUs."""
    kind = device.partition(":")[0]
    elsewhere = {backend.name for other, backend in FUSED.items() if other != kind}
    return [name for name in BACKENDS if name not in elsewhere or (name == "triton_gpu" and gpu_attention.INTERPRETED)]


def explain_backend(name: str, device: str = "cpu", *rules: Rule) -> tuple[str, str]:
    """Return (backend that runs, why) for a requested name and a device; `auto` is the fastest exact one.

    A fused backend requested by name leaves rules that are functions to plain torch.
    """
    if name == "auto":
        kind = device.partition(":")[0]
        if kind not in FUSED:
            return TORCH.name, f"plain torch on {kind}"
        reason = FUSED[kind].supports(device, *rules)
        return (FUSED[kind].name, FUSED[kind].description) if reason is None else (TORCH.name, reason)
    if name not in backends_on(device):
        known = name in BACKENDS or name in {backend.name for backend in FUSED.values()}
        rule = f"backend {name!r} does not run here on {device}" if known else f"unknown backend {name!r}"
        own = FUSED.get(device.partition(":")[0])  # what a backend lacks matters on its own device only
        missing = f" ({own.missing()})" if own is not None and own.name == name else ""
        raise ConfigError(f"{rule}{missing}; choose one of auto, {', '.join(backends_on(device))}")
    if isinstance(BACKENDS[name], FusedBackend):
        if transformed():
            raise ConfigError(
                f"backend {name!r} has no forward mode and no torch.func; choose auto, factored or reference"
            )
        if not all(isinstance(rule, str) for rule in rules):
            return TORCH.name, "plain torch for a rule given as a function"
    return name, "requested by name"


def choose_backend(name: str, device: str = "cpu") -> str:
    """Name of the backend that runs for a requested name."""
    return explain_backend(name, device)[0]


def select_backend(name: str, device: str, *rules: Rule) -> TorchBackend:
    """Backend that runs these rules on a device."""
    return BACKENDS[explain_backend(name, device, *rules)[0]]
