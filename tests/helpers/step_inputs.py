"""Random whole steps of QSV: their parts one after the other, and the gradients of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quatsphere.geometry import quaternion as Q
from quatsphere.geometry.neighbours import index_resampling
from quatsphere.kernels import (
    DropoutMasks,
    FusedStepInputs,
    Mixing,
    Network,
    ShellPair,
    add_resampled,
    feed_forward,
    perturb,
    quaternion_attention,
)

Sizes = tuple[int, int, int, int, int]


def make(seed: int, sizes: Sizes, cross: bool, dropped: bool) -> dict[str, Any]:
    """A step of B images, S sources, H heads of Q channels with k neighbours; across shells or within one."""
    B, S, H, channels, k = sizes
    T, d = (S + S // 2 + 1, 4 * H * channels) if cross else (S, 4 * H * channels)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def mask(*shape: int) -> Tensor | None:
        return torch.rand(*shape, generator=generator) > 0.2 if dropped else None

    return {
        "tokens": normal(B, S, d),
        "first": normal(d, d) / d**0.5,
        "network": [normal(d), 0.3 * normal(H, 4 * channels, 3), 0.1 * normal(H, 3)],
        "bounds": torch.tensor([0.4, 0.7][: 1 + cross], dtype=torch.float64),
        "bases": [1.01 * Q.normalize(normal(count, H, 4)) for count in ((S, T) if cross else (S,))],
        "beta": 0.5 + normal(H).abs(),
        "post": [normal(H, 4 * channels, channels, 4) / 4, normal(H, channels, 4 * channels, 4) / 8],
        "gate": [torch.tensor(0.6, dtype=torch.float64)] if cross else [],
        "neighbours": torch.randint(S, (T, min(k, S)), generator=generator),
        "mixing": Mixing(*index_resampling(S, T)) if cross else None,
        "kept": DropoutMasks(mask(B, T, min(k, S), H), mask(B, T, d), 1.25, 1.25),
    }


def fused_inputs(step: dict[str, Any], rules: tuple[str, str]) -> FusedStepInputs:
    """The step as the input of a backend."""
    source, *target = step["bases"]
    shells = ShellPair(step["bounds"], source, target[0] if target else None)
    gate = step["gate"][0] if target else None
    rest = (step["neighbours"], step["beta"], *step["post"], gate, step["mixing"], step["kept"], *rules)
    return FusedStepInputs(step["tokens"], step["first"], Network(*step["network"]), shells, *rest)


def parts(step: dict[str, Any], rules: tuple[str, str], backend: str) -> Tensor:
    tokens, kept, heads = step["tokens"], step["kept"], len(step["beta"])
    hidden = tokens @ step["first"].T
    ends = (step["bounds"], *step["bases"], *([None] if len(step["bases"]) == 1 else []))
    source, target = perturb(hidden, Network(*step["network"]), *ends, step["mixing"], backend=backend)
    features = tokens.unflatten(2, (heads, -1, 4))
    aggregated = quaternion_attention(
        target, source, features, step["neighbours"], step["beta"], routing=rules[0], transport=rules[1],
        keep=kept.edges, keep_scale=kept.edge_scale, backend=backend,
    ).flatten(3)  # fmt: skip
    keep = None if kept.update is None else kept.update.view(aggregated.shape)
    update = feed_forward(aggregated, *step["post"], keep=keep, keep_scale=kept.update_scale, backend=backend)
    if step["mixing"] is None:
        return update.flatten(2) + tokens
    return add_resampled(update.flatten(2), step["gate"][0], tokens, *step["mixing"], backend=backend)


LEAVES = ("tokens", "first", "network", "bounds", "bases", "beta", "post", "gate")


def run(function: Any, step: dict[str, Any], dtype: torch.dtype, *arguments: Any) -> list[Tensor]:
    """The result and the gradients of a fixed scalar of it."""
    given_ = {
        name: [x.to(dtype).requires_grad_() for x in value] if isinstance(value, list) else value
        for name, value in step.items()
    }
    for name in ("tokens", "first", "bounds", "beta"):
        given_[name] = step[name].to(dtype).requires_grad_()
    if step["mixing"] is not None:
        given_["mixing"] = Mixing(step["mixing"].indices, step["mixing"].shares.to(dtype))
    out = function(given_, *arguments)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    leaves = [leaf for name in LEAVES for leaf in (given_[name] if isinstance(given_[name], list) else [given_[name]])]
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves, allow_unused=True, materialize_grads=True)]
