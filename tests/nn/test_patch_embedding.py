"""Sampling: linear in the image, border and wrap at the seam, differentiable in the positions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from quatsphere import create_model
from quatsphere.geometry import sphere
from quatsphere.nn.patch_embedding import PatchEmbedding, make_stencil, sample_image


def test_stencil_is_the_spacing_of_the_vertices() -> None:
    stencil = make_stencil(128)
    assert stencil.shape == (25, 2)
    assert stencil.abs().max() == pytest.approx(2 / math.sqrt(128))
    assert torch.equal(stencil[12], torch.zeros(2))
    assert stencil[1, 0] > stencil[0, 0]  # along a row the first coordinate, u, changes


def test_stencil_by_pitch() -> None:
    """Neighbouring samples lie 2/√V apart, in the module that a model builds too."""
    line = [column * 2 / math.sqrt(128) for column in range(-2, 3)]
    expected = torch.tensor([[u, v] for v in line for u in line])
    assert torch.allclose(make_stencil(128, reading="pitch"), expected, atol=1e-7)
    for name in ("qsv", "attention"):
        assert torch.allclose(create_model(name, stencil="pitch").embed.stencil, expected, atol=1e-7)


def test_pitch_samples_where_the_formula_says() -> None:
    """Values and gradients of the whole embedding against bilinear samples at u + 2a/√V, v + 2b/√V."""
    torch.manual_seed(0)
    embed = PatchEmbedding(3, 8, 16, stencil="pitch").double()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    coords = (torch.rand(16, 2, dtype=torch.float64) * 2 - 1).requires_grad_()
    places = [coords + torch.tensor([a, b], dtype=torch.float64) / 2 for b in range(-2, 3) for a in range(-2, 3)]
    grid = torch.stack(places, dim=1).expand(2, -1, -1, -1)
    samples = F.grid_sample(images, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1)
    literal = embed.norm(embed.projection(samples.flatten(2)))
    probe = torch.randn_like(literal)
    ours = embed(images, coords)
    assert torch.allclose(ours, literal, atol=1e-12)
    gradients = [torch.autograd.grad((out * probe).sum(), coords)[0] for out in (ours, literal)]
    assert torch.allclose(*gradients, atol=1e-10)


def test_stencil_follows_the_precision() -> None:
    embed, exact = PatchEmbedding(3, 8, 48), make_stencil(48, dtype=torch.float64)
    assert torch.equal(embed.stencil, exact.float())
    assert torch.equal(embed.bfloat16().stencil, exact.bfloat16())
    assert torch.equal(embed.double().stencil, exact)
    assert torch.equal(embed.float().stencil, exact.float())
    assert "stencil" not in embed.state_dict()


def test_pixel_centres_return_the_pixels() -> None:
    images = torch.rand(2, 3, 4, 4)
    centres = (2 * torch.arange(4) + 1) / 4 - 1
    grid_v, grid_u = torch.meshgrid(centres, centres, indexing="ij")
    coords = torch.stack((grid_u, grid_v), dim=-1)
    for wrap in (False, True):
        samples = sample_image(images, coords, wrap)  # (b, row, column, c)
        assert torch.allclose(samples, images.permute(0, 2, 3, 1), atol=1e-6)


def test_border_repeats_and_wrap_continues() -> None:
    images = torch.arange(4.0).reshape(1, 1, 1, 4).expand(1, 1, 4, 4)
    beyond = torch.tensor([[[1.25, 0.0], [-1.25, 0.0], [1.0, 0.0]]])
    assert sample_image(images, beyond, wrap=False).flatten().tolist() == pytest.approx([3.0, 0.0, 3.0])
    assert sample_image(images, beyond, wrap=True).flatten().tolist() == pytest.approx([0.0, 3.0, 1.5])


def test_wrap_is_periodic() -> None:
    images, coords = torch.rand(1, 3, 8, 8, dtype=torch.float64), torch.rand(5, 25, 2, dtype=torch.float64) * 2 - 1
    shifted = coords + torch.tensor([2.0, 0.0], dtype=torch.float64)
    assert torch.allclose(sample_image(images, coords, True), sample_image(images, shifted, True))


@pytest.mark.parametrize("wrap", [False, True])
def test_sampling_is_linear_in_the_image(wrap: bool) -> None:
    """For fixed positions the embedding is one (sparse) matrix."""
    a, b = torch.randn(2, 1, 3, 8, 8, dtype=torch.float64).unbind(0)
    coords = sphere.lambert_uv(sphere.fibonacci_sphere(16, dtype=torch.float64))[:, None] + make_stencil(16)
    mixed = sample_image(2 * a - 3 * b, coords, wrap)
    assert torch.allclose(mixed, 2 * sample_image(a, coords, wrap) - 3 * sample_image(b, coords, wrap))


def test_gradient_reaches_the_positions() -> None:
    torch.manual_seed(0)
    embed = PatchEmbedding(3, 8, 16).double()
    images = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    jitter = 0.01 * torch.randn(16, 3, dtype=torch.float64)  # bilinear samples have kinks at pixel centres
    positions = (sphere.fibonacci_sphere(16, dtype=torch.float64) + jitter).requires_grad_()
    probe = torch.randn(1, 16, 8, dtype=torch.float64)  # a layer norm's plain sum has no gradient
    (gradient,) = torch.autograd.grad((embed(images, sphere.lambert_uv(positions)) * probe).sum(), positions)
    assert torch.isfinite(gradient).all()
    assert (gradient.norm(dim=-1) > 0).all()
    assert gradcheck(lambda p: sample_image(images, sphere.lambert_uv(p)[:, None], False), (positions,))
