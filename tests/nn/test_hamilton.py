"""Hamilton layers: the literal sum, what they commute with, their scale at the start."""

import torch

from quatsphere.geometry import quaternion as Q
from quatsphere.nn.hamilton import HamiltonFFN, HamiltonLinear


def test_is_the_sum_of_hamilton_products() -> None:
    layer = HamiltonLinear(3, 4, 5).double()
    x = torch.randn(2, 7, 3, 4, 4, dtype=torch.float64)
    literal = Q.multiply(layer.weight[None, None], x.unsqueeze(-3)).sum(-2)
    assert torch.allclose(layer(x), literal)


def test_hamilton_commutes_with_right_multiplication() -> None:
    layer = HamiltonLinear(3, 4, 5).double()
    x = torch.randn(2, 7, 3, 4, 4, dtype=torch.float64)
    p = Q.random_unit(dtype=torch.float64)
    assert torch.allclose(layer(Q.multiply(x, p)), Q.multiply(layer(x), p))


def test_post_layer_multiplies_into_the_block() -> None:
    """FFN(post(x)), values and gradients: the literal order and the merged matrices."""
    torch.manual_seed(0)
    for backend in ("factored", "auto"):
        post, ffn = HamiltonLinear(3, 2, 2).double(), HamiltonFFN(3, 2, backend=backend).double()
        x = torch.randn(2, 7, 3, 2, 4, dtype=torch.float64, requires_grad=True)
        literal = ffn.down(torch.nn.functional.gelu(ffn.up(post(x))))
        merged = ffn(x, post)
        assert torch.allclose(merged, literal, rtol=1e-10, atol=1e-12)
        leaves, probe = [x, *post.parameters(), *ffn.parameters()], torch.randn_like(literal)
        for a, b in zip(
            torch.autograd.grad((merged * probe).sum(), leaves),
            torch.autograd.grad((literal * probe).sum(), leaves),
            strict=True,
        ):
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_parameters_of_the_paper() -> None:
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(HamiltonLinear(16, 4, 4)) == 1_024
    assert count(HamiltonFFN(16, 4)) == 8_192


def test_variance_is_kept_and_the_ffn_starts_small() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 32, 16, 4, 4)
    assert abs(HamiltonLinear(16, 4, 16)(x).std() - 1) < 0.05
    assert HamiltonFFN(16, 4)(x).std() < 0.1


def test_weights_without_gradients_follow_the_layers() -> None:
    """Cached between calls; recomputed after a step, a load, a change through `.data` or a change of dtype."""
    ffn, post, other = HamiltonFFN(2, 3), HamiltonLinear(2, 3, 3), HamiltonFFN(2, 3)

    def kept_and_fresh() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            kept = ffn.weights(post)
            assert ffn.weights(post) is kept
        return torch.cat([m.flatten() for m in kept]), torch.cat([m.flatten() for m in ffn.weights(post)])

    assert torch.equal(*kept_and_fresh())
    for weight in (ffn.up.weight, ffn.down.weight, post.weight):
        with torch.no_grad():
            weight.add_(1.0)
        assert torch.equal(*kept_and_fresh())
    ffn.load_state_dict(other.state_dict())
    assert torch.equal(*kept_and_fresh())
    ffn.up.weight.data.mul_(2.0)
    assert torch.equal(*kept_and_fresh())
    optimiser = torch.optim.AdamW(ffn.parameters(), fused=True)
    sum(weight.square().sum() for weight in ffn.parameters()).backward()
    optimiser.step()
    assert torch.equal(*kept_and_fresh())
    for _ in range(2):
        ffn.load_state_dict({name: value.clone() for name, value in other.state_dict().items()}, assign=True)
    assert torch.equal(*kept_and_fresh())
    ffn, post = ffn.double(), post.double()
    assert torch.equal(*kept_and_fresh())
