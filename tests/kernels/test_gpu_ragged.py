"""Triton's sums over irregular graphs equal the oracle: on a GPU, or in the interpreter (started by test_gpu.py)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from measures import relative_error
from torch import Tensor

from quatsphere import quaternion_attention
from quatsphere.geometry import quaternion as Q
from quatsphere.kernels.gpu import attention as gpu_attention
from quatsphere.kernels.gpu import ragged
from quatsphere.kernels.inputs import ONE_WAY, ROUTINGS, TRANSPORTS
from quatsphere.kernels.ragged import pair_dot_operator, pair_sum_operator

HERE = gpu_attention.available() and (torch.cuda.is_available() or gpu_attention.INTERPRETED)
DEVICE = "cpu" if gpu_attention.INTERPRETED else "cuda"
here = pytest.mark.skipif(not HERE, reason="needs triton and a GPU or TRITON_INTERPRET=1")
DEGREES = {"random": [3, 0, 5, 1, 2, 4], "star": [0, 0, 37, 0, 0, 0], "empty": [0] * 6}


@here
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "channels"), [(1, 1), (3, 5), (4, 16)])
def test_sums_equal_plain_torch(heads: int, channels: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, n, heads, channels, generator=generator, dtype=dtype).to(DEVICE) for n in (6, 8))
    i, j = (torch.randint(0, n, (50,), generator=generator).to(DEVICE) for n in (6, 8))
    weights = torch.randn(2, 50, heads, generator=generator, dtype=dtype).to(DEVICE)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert relative_error(ragged.pair_dot(a, b, i, j), pair_dot_operator.function(a, b, i, j)) < tolerance
    found = ragged.pair_sum(weights, b, j, i, 6)
    assert relative_error(found, pair_sum_operator.function(weights, b, j, i, 6)) < tolerance
    assert torch.equal(found, ragged.pair_sum(weights, b, j, i, 6))
    assert ragged.usable(a.device, dtype)


def values_and_gradients(backend: str, degrees: list[int], rules: tuple[str, str], turned: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = torch.tensor([0, *degrees]).cumsum(0)
    source = torch.randint(0, 5, (int(rows[-1]),), generator=generator)
    keep = torch.rand(1, len(source), 2, generator=generator) > 0.2
    leaves = [Q.normalize(normal(1, 6, 2, 4)), Q.normalize(normal(1, 5, 2, 4)), normal(1, 5, 2, 2, 4)]
    leaves += [normal(2).abs(), torch.nn.functional.normalize(normal(6, 3), dim=-1)]
    leaves += [torch.nn.functional.normalize(normal(5, 3), dim=-1)]
    if turned:
        leaves.append(Q.normalize(normal(len(source), 4)) if len(source) else normal(0, 4))
    leaves = [leaf.to(DEVICE).requires_grad_() for leaf in leaves]
    out = quaternion_attention(
        *leaves[:3],
        (rows.to(DEVICE), source.to(DEVICE)),
        leaves[3],
        routing=rules[0],
        transport=rules[1],
        keep=keep.to(DEVICE),
        keep_scale=1.25,
        target_directions=leaves[4],
        source_directions=leaves[5],
        edge_rotation=leaves[6] if turned else None,
        backend=backend,
    )
    probe = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves, materialize_grads=True)]


RULES = [*((name, "sandwich") for name in ROUTINGS), *(("alignment", name) for name in (*TRANSPORTS[1:], *ONE_WAY))]
CASES = [
    pytest.param(*case, marks=[] if case[1] == "random" or case[0] == ("alignment", "sandwich") else pytest.mark.slow)
    for case in itertools.product(RULES, DEGREES)
]
"""Every rule on a random graph and one rule on every graph; slow tests take every rule on every graph."""


@here
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize(("rules", "graph"), CASES)
def test_attention_equals_reference(rules: tuple[str, str], graph: str, turned: bool) -> None:
    """Values and gradients of everything, also of the rotations of the edges; the sums ran in Triton."""
    found = values_and_gradients("triton_gpu", DEGREES[graph], rules, turned)
    expected = values_and_gradients("reference", DEGREES[graph], rules, turned)
    for one, other in zip(found, expected, strict=True):
        assert one.numel() == 0 or float((one - other).abs().max()) < 1e-12
    assert ragged._usable[torch.zeros((), device=DEVICE).device, torch.float64]


@pytest.mark.slow
@pytest.mark.skipif(gpu_attention.INTERPRETED, reason="the interpreter replaces the compiler")
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_both_kernels_compile_for_gpus(
    target: tuple[str, Any, int], dtype: str, monkeypatch: Any, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from quatsphere.kernels.gpu.ragged_kernels import pair_dot_kernel, pair_sum_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    numbers, indices = f"*{dtype}", "*i64"
    for kernel, types, blocks in (
        (pair_dot_kernel, (numbers, numbers, indices, indices, numbers), {"CHANNELS": 16, "ITEMS": 128}),
        (pair_sum_kernel, (numbers, numbers, indices, indices, indices, numbers), {"ROW": 64, "CHUNK": 16}),
    ):
        constants = {"H": 4, "C": 16, **blocks}
        names = kernel.arg_names
        given = dict(zip(names, (*types, "i32", "i32", "i32"), strict=False)) | dict.fromkeys(constants, "constexpr")
        compiled = triton.compile(ASTSource(kernel, given, constexprs=constants), target=GPUTarget(*target))
        assert compiled.asm["cubin" if target[0] == "cuda" else "hsaco"]
