"""The fused Hamilton feed-forward block equals the plain one: values and gradients, any shape, any threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from measures import relative_error
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.geometry.quaternion import block_expand
from quatsphere.kernels import cpu
from quatsphere.kernels.cpu import feed_forward as cpu_feed_forward
from quatsphere.randomness import keep_scale

SCALE = keep_scale(0.1)
"""Not representable in float32: it must be rounded once."""
PAIRED = cpu.available() and cpu_feed_forward.pairs_available()
pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


def plain(x: Tensor, up: Tensor, down: Tensor, keep: Tensor | None, keep_scale: float) -> Tensor:
    hidden = F.gelu(torch.einsum("...hc,hmc->...hm", x, block_expand(up)))
    out = torch.einsum("...hm,hcm->...hc", hidden, block_expand(down))
    return out if keep is None else out * keep * keep_scale


def make(seed: int, tokens: tuple[int, ...], heads: int, channels: int, wide: int) -> list[Tensor]:
    """x, up and down; channels and wide count real components."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (*tokens, heads, channels), (heads, wide // 4, channels // 4, 4), (heads, channels // 4, wide // 4, 4)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def run(function, tensors: list[Tensor], dtype: torch.dtype, dropped: bool = False) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in tensors]
    keep = tensors[0] > -0.8 if dropped else None
    out = function(*leaves, keep, SCALE)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)]


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 50)), st.integers(1, 5), st.integers(1, 8), st.integers(1, 4),
    st.integers(0, 10**6), st.booleans(),
)  # fmt: skip
def test_equals_plain_block(
    tokens: tuple[int, int], heads: int, channels: int, expansion: int, seed: int, dropped: bool
) -> None:
    tensors = make(seed, tokens, heads, 4 * channels, 4 * channels * expansion)
    exact = run(plain, tensors, torch.float64, dropped)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for value, expected in zip(run(cpu_feed_forward.feed_forward, tensors, dtype, dropped), exact, strict=True):
            assert relative_error(value, expected) < tolerance


def test_bit_identical_for_any_number_of_threads() -> None:
    tensors, before, found = make(0, (3, 1000), 3, 16, 64), torch.get_num_threads(), []
    for threads in (1, 2, 2, 3):
        torch.set_num_threads(threads)
        found.append(run(cpu_feed_forward.feed_forward, tensors, torch.float32))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("channels", [12, 16, 32])
@pytest.mark.parametrize("dropped", [False, True])
def test_full_and_partial_blocks_are_bit_identical(channels: int, dropped: bool) -> None:
    x, up, down = (part.float() for part in make(0, (70,), 3, channels, 2 * channels))
    keep = x > -0.8 if dropped else None
    value = cpu_feed_forward.feed_forward(x, up, down, keep, SCALE)
    gradient, *_ = cpu_feed_forward.feed_forward_backward(value, x, up, down, keep, SCALE)
    for tokens in (31, 33, 64):
        some, kept = slice(tokens), keep[:tokens] if keep is not None else None
        assert torch.equal(cpu_feed_forward.feed_forward(x[some], up, down, kept, SCALE), value[some])
        found, *_ = cpu_feed_forward.feed_forward_backward(value[some], x[some], up, down, kept, SCALE)
        assert torch.equal(found, gradient[some])


def test_several_chunks_equal_plain_block() -> None:
    tensors = make(0, (5000,), 2, 8, 32)
    exact = run(plain, tensors, torch.float64)
    for value, expected in zip(run(cpu_feed_forward.feed_forward, tensors, torch.float32), exact, strict=True):
        assert relative_error(value, expected) < 1e-5


def test_opcheck() -> None:
    tensors = make(0, (2, 3), 2, 4, 16)
    for keep in (None, torch.rand_like(tensors[0]) > 0.1):
        torch.library.opcheck(
            cpu_feed_forward.feed_forward.overload, (*(x.requires_grad_() for x in tensors), keep, SCALE)
        )


def test_wrong_mask_raises() -> None:
    x, up, down = make(0, (3,), 1, 8, 16)
    for keep in (torch.ones_like(x), torch.ones(2, 1, 8, dtype=torch.bool)):
        with pytest.raises(ConfigError, match="keep must be bool with 24 entries"):
            cpu_feed_forward.feed_forward(x, up, down, keep, SCALE)


@pytest.mark.parametrize("tokens", [0, 1, 47, 48, 3072, 3073, 8192, 16384, 24576, 100_000])
def test_chunks_are_even(tokens: int) -> None:
    from quatsphere.kernels.cpu.loops.feed_forward import BLOCK_TOKENS, MAX_CHUNK_TOKENS, even_chunk

    chunk = even_chunk(tokens)
    chunks = -(-tokens // chunk)
    assert chunk % BLOCK_TOKENS == 0
    assert BLOCK_TOKENS <= chunk <= MAX_CHUNK_TOKENS
    assert chunks * chunk - tokens < max(1, chunks) * BLOCK_TOKENS  # chunks differ by less than a block


@pytest.mark.skipif(not PAIRED, reason="the processor has no products in bfloat16")
@given(
    st.integers(1, 120), st.integers(1, 5), st.integers(1, 8), st.integers(1, 4), st.integers(0, 10**6), st.booleans()
)
def test_paired_block_rounds_factors_only(
    tokens: int, heads: int, channels: int, expansion: int, seed: int, dropped: bool
) -> None:
    """Factors have eight bits: each of the at most four on the way to a gradient adds an error of at most 2^-9 to every
    token's part of it. The parts may cancel in their sum, so the errors are compared with the parts."""
    x, up, down = (part.float() for part in make(seed, (tokens,), heads, 4 * channels, 4 * channels * expansion))
    keep, gradient = x > -0.8 if dropped else None, make(seed + 1, (tokens,), heads, 4 * channels, 4)[0].float()
    found = cpu_feed_forward.paired_backward(gradient, x, up, down, keep, SCALE)
    leaves = [part.double().requires_grad_() for part in (x, up, down)]
    by_token = torch.eye(tokens, dtype=torch.float64)[..., None, None] * gradient
    parts = torch.autograd.grad(plain(*leaves, keep, SCALE), leaves, by_token, is_grads_batched=True)
    for one, part in zip(found, parts, strict=True):
        assert float((one - part.sum(0)).norm()) <= 2**-6 * float(part.norm()) + 1e-6


@pytest.mark.skipif(not PAIRED, reason="the processor has no products in bfloat16")
def test_paired_block_is_bit_identical_for_any_number_of_threads() -> None:
    x, up, down = (part.float() for part in make(0, (7000,), 3, 16, 64))
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(cpu_feed_forward.paired_backward(x, x, up, down, None, SCALE))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
