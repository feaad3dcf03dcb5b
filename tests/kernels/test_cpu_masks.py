"""The compiled dropout masks are bit-identical to the plain ones."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quatsphere.kernels import cpu
from quatsphere.kernels.cpu.masks import fused_keep_mask
from quatsphere.randomness import draw_mask, fold, keep_mask, name_seed

pytestmark = pytest.mark.skipif(not cpu.available(), reason="numba is not installed")


@given(
    st.integers(0, 2**62),
    st.integers(1, 5),
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
    st.sampled_from([0.0, 2**-16, 0.1, 0.5, 0.9999]),
)
def test_equals_plain_mask(seed: int, images: int, shape: list[int], rate: float) -> None:
    keys, site = fold(seed, torch.arange(images)), name_seed(seed, "site")
    assert torch.equal(fused_keep_mask(keys, site, shape, rate), draw_mask(keys, site, shape, rate))


def test_operator_uses_compiled_loops_for_any_number_of_threads() -> None:
    keys, before = fold(1, torch.arange(7)), torch.get_num_threads()
    expected = draw_mask(keys, 5, (40, 33), 0.1)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(keep_mask(keys, 5, (40, 33), 0.1), expected)
    torch.set_num_threads(before)
