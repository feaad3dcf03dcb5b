"""Interpretations of the paper and controls: whole steps equal the formula written out here, values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere import create_model
from quatsphere.geometry.quaternion import conjugate, exp, multiply
from quatsphere.nn.shell_step import ShellState
from quatsphere.nn.trace import NoTrace

SMALL: dict[str, Any] = {"dim": 24, "heads": 3, "base_vertices": 8, "shells": 2, "rounds": 1, "image_size": 8}
READINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "network_per_shell": {"perturbation": "shell"},
    "network_per_shell_no_bound": {"perturbation": "shell", "bound": "none"},
    "inner_skip": {"inner_skip": "residual"},
    "self_excluded": {"self_neighbour": False},
    "transport_lift": {"transport": "lift"},
    "transport_lower": {"transport": "lower"},
    "uniform_lift": {"routing": "uniform", "transport": "lift"},
    "uniform_lower": {"routing": "uniform", "transport": "lower"},
    "head_mixing": {"head_mixing": "linear"},
    "both_off_mixed": {"routing": "uniform", "transport": "identity", "head_mixing": "linear"},
    "several": {"perturbation": "shell", "inner_skip": "residual", "transport": "lower", "head_mixing": "linear"},
}


def made(**changes: Any) -> Any:
    """A model in float64 with random values for all parameters, so that no part is the identity."""
    model: Any = create_model("qsv", **SMALL, **changes).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".base" not in name and ".positions" not in name:
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def hamilton(weight: Tensor, x: Tensor) -> Tensor:
    """y_ho = Σ_i W_hoi ⊗ x_hi for x (B, V, H, Q, 4)."""
    return multiply(weight, x.unsqueeze(3)).sum(4)


def tangents(network: Any, tokens: Tensor) -> Tensor:
    """φ_h(x) per head, (B, V, H, 3)."""
    hidden = F.gelu(network.inner(tokens)).unflatten(-1, network.outer_weight.shape[:2])
    return torch.einsum("bvhi,hio->bvho", hidden, network.outer_weight) + network.outer_bias


def field_of(config: Any, step: Any, shell: Any, tokens: Tensor) -> Tensor:
    """q_eff of the vertices of a shell, unit."""
    omega = tangents(shell.perturbation if config.perturbation == "shell" else step.perturbation, tokens)
    if config.bound == "learned":
        low, high = 0.01, math.pi / 4
        omega = (low + (high - low) * torch.sigmoid(shell.bound.logit)) * torch.tanh(omega)
    q = multiply(shell.base, exp(omega))
    return q / q.norm(dim=-1, keepdim=True)


def messages(config: Any, q_i: Tensor, q_j: Tensor, x: Tensor) -> Tensor:
    """m_ij from the quaternions of both ends (B, T, k, H, 1, 4) and x_j (B, T, k, H, Q, 4)."""
    turns = {"sandwich": multiply(conjugate(q_i), q_j), "lift": q_j, "lower": conjugate(q_i)}
    if config.transport == "identity":
        return x
    return multiply(multiply(turns[config.transport], x), conjugate(turns[config.transport]))


def literal(config: Any, step: Any, ends: tuple[Any, Any], graph: Any, tokens: Tensor, keys: Tensor) -> Tensor:
    """A step from its formulas, edge by edge."""
    heads, neighbours = config.heads, graph.neighbours
    moved = tokens
    if graph.mixing is not None:
        moved = (tokens[:, graph.mixing.indices] * graph.mixing.shares.double()[..., None]).sum(2)
    source, target = (field_of(config, step, shell, x) for shell, x in zip(ends, (tokens, moved), strict=True))
    sent = tokens @ step.head_mixing.weight.T if config.head_mixing == "linear" else tokens
    x = sent.unflatten(-1, (heads, -1, 4))[:, neighbours]
    q_i, q_j = target[:, :, None, :, None], source[:, neighbours].unsqueeze(4)
    scores = (q_i * q_j).sum((-1, -2)) if config.routing == "alignment" else x.new_zeros(*x.shape[:4])
    weights = (step.routing.beta * scores).softmax(2) * _survivors(step.attention_dropout, keys, scores)
    z = (weights[..., None, None] * messages(config, q_i, q_j, x)).sum(2)
    y = hamilton(step.post.weight, z)
    u = hamilton(step.ffn.down.weight, F.gelu(hamilton(step.ffn.up.weight, y)))
    u = (u + y if config.inner_skip == "residual" else u).flatten(2)
    gate = 1.0 if step.gate.value is None else step.gate.value
    return u * _survivors(step.output_dropout, keys, u) + gate * moved


def _survivors(dropout: Any, keys: Tensor, like: Tensor) -> Any:
    mask = dropout.mask(keys, tuple(like.shape[1:]))
    return 1.0 if mask is None else mask.double() * dropout.scale


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("reading", READINGS)
def test_a_step_is_its_formula(reading: str, training: bool) -> None:
    """Within a shell and between two, with and without dropout: values, and gradients of everything that has one."""
    model = made(**READINGS[reading]).train(training)
    torch.manual_seed(0)
    keys = torch.tensor([3, 7])
    first, last = model.fields
    within = (model.within, (first, first), model.layout.within, 8)
    cross = (model.cross[0], (first, last), model.layout.cross[0], 8)
    for step, ends, graph, count in (within, cross, (model.rounds[0], (last, last), model.layout.last, 12)):
        tokens = torch.randn(2, count, SMALL["dim"], dtype=torch.float64, requires_grad=True)
        source = ShellState(model.layout.shells[0], ends[0])
        target = source if ends[1] is ends[0] else ShellState(model.layout.shells[1], ends[1])
        ours = step(tokens, source, target, graph, keys, NoTrace())
        expected = literal(model.config, step, ends, graph, tokens, keys)
        assert torch.allclose(ours, expected, rtol=1e-11, atol=1e-12)
        leaves = [tokens, *dict.fromkeys([*step.parameters(), *ends[0].parameters(), *ends[1].parameters()])]
        probe = torch.randn_like(ours)
        found, wanted = (
            torch.autograd.grad((out * probe).sum(), leaves, allow_unused=True) for out in (ours, expected)
        )
        for leaf, a, b in zip(leaves, found, wanted, strict=True):
            blank = torch.zeros_like(leaf)
            a, b = (blank if g is None else g for g in (a, b))
            assert torch.allclose(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", "factored", "auto"])
@pytest.mark.parametrize("reading", READINGS)
def test_backends_and_traces_agree(reading: str, backend: str) -> None:
    """Every backend, and the pass that records a trace, give the same logits."""
    model = made(**READINGS[reading]).eval()
    other = made(**READINGS[reading], backend=backend).eval()
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    logits, trace = other(images, return_trace=True)
    assert torch.allclose(model(images), other(images), atol=1e-11)
    assert torch.allclose(logits, model(images), atol=1e-11)
    assert all(torch.allclose(weights.sum(2), torch.ones((), dtype=torch.float64)) for weights in trace["weights"])


def test_parameters_of_a_network_per_shell() -> None:
    """Five networks instead of seven at the paper's size, each named after its shell."""
    model = create_model("qsv", perturbation="shell")
    assert model.parameter_parts()["perturbation"] == 5 * 66_608
    assert sum(p.numel() for p in model.parameters()) == 639_187 - 2 * 66_608 == 505_971
    owners = {name.split(".perturbation.")[0] for name, _ in model.named_parameters() if ".perturbation." in name}
    assert owners == {f"fields.{shell}" for shell in range(5)}


def test_head_mixing_keeps_the_variance_at_the_start() -> None:
    weight = create_model("qsv", head_mixing="linear").within.head_mixing.weight
    assert float(weight.detach().std()) == pytest.approx(1 / math.sqrt(256), rel=0.02)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("value", ["projected", "identity"])
def test_uniform_attention_is_its_formula(value: str, training: bool) -> None:
    """Σ_j W_V norm(x_j) / k over the kept neighbours, then W_O, residuals and FFN; values and gradients."""
    torch.manual_seed(0)
    changes: dict[str, Any] = {"value": value, "attention_dropout": 0.3, "dim": 24, "heads": 3}
    small = {name: SMALL[name] for name in ("base_vertices", "shells", "image_size")}
    model: Any = create_model("attention", **small, **changes, routing="uniform").double().train(training)
    step, graph, keys = model.cross[0], model.layout.cross[0], torch.tensor([3, 7])
    tokens = torch.randn(2, 8, 24, dtype=torch.float64, requires_grad=True)
    moved = (tokens[:, graph.mixing.indices] * graph.mixing.shares.double()[..., None]).sum(2)
    values = step.attention.value(step.attention_norm(tokens)).unflatten(-1, (3, -1))[:, graph.neighbours]
    kept = _survivors(step.attention_dropout, keys, values[..., 0])
    weights = torch.full_like(values[..., 0], 1 / graph.k) * kept
    hidden = moved + step.attention.output((weights[..., None] * values).sum(2).flatten(2))
    expected = hidden + step.ffn(step.ffn_norm(hidden))
    ours = step(tokens, graph, keys, NoTrace())
    assert torch.allclose(ours, expected, rtol=1e-11, atol=1e-12)
    probe, leaves = torch.randn_like(ours), [tokens, *step.parameters()]
    found, wanted = (torch.autograd.grad((out * probe).sum(), leaves, allow_unused=True) for out in (ours, expected))
    assert [g is None for g in found] == [g is None for g in wanted]
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(found, wanted, strict=True) if a is not None)
    _, trace = model.eval()(torch.rand(1, 3, 8, 8, dtype=torch.float64), return_trace=True)
    assert all((w == 1 / w.shape[2]).all() for w in trace["weights"])


def test_uniform_attention_keeps_the_parameters() -> None:
    one, other = (create_model("attention", routing=routing) for routing in ("softmax", "uniform"))
    assert {n: p.shape for n, p in one.named_parameters()} == {n: p.shape for n, p in other.named_parameters()}


def test_readings_without_parameters_keep_names_and_shapes() -> None:
    full = {name: p.shape for name, p in create_model("qsv", **SMALL).named_parameters()}
    for changes in ({"inner_skip": "residual"}, {"pooling": "quaternion_per_head"}, {"self_neighbour": False}):
        assert {name: p.shape for name, p in create_model("qsv", **SMALL, **changes).named_parameters()} == full
