"""Losses: cross-entropy with label smoothing and the three auxiliary terms of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import TrainConfig
from quatsphere.nn.trace import head_overlap


def smooth_targets(labels: Int[Tensor, "b"], classes: int, smoothing: float) -> Float[Tensor, "b classes"]:
    """One-hot rows mixed with the uniform distribution: (1 - s) one_hot + s / classes."""
    return F.one_hot(labels, classes).float() * (1 - smoothing) + smoothing / classes


def cross_entropy(
    logits: Float[Tensor, "b classes"], targets: Float[Tensor, "b classes"], batch: int
) -> Float[Tensor, ""]:
    """-Σ targets log softmax(logits), over the images of all processes (`batch` of them), in float32 or better."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    return (targets * torch.log_softmax(logits, dim=-1, dtype=exact)).sum() / -batch


def smoothness(fields: Sequence[Tensor], previous: Sequence[Tensor]) -> Float[Tensor, ""]:
    """2 (1 - |⟨q_t, q_{t-1}⟩|), q_{t-1} from the end of the previous epoch; mean over heads, vertices and shells."""
    moved = 2 * (1 - (torch.cat(list(fields)) * torch.cat(list(previous))).sum(-1).abs())
    return _mean_of_means(moved.mean(-1), fields)


def head_diversity(fields: Sequence[Tensor], pairs: str = "sum") -> Float[Tensor, ""]:
    """Σ_{h≠h'} ⟨q^h, q^h'⟩² over ordered pairs of heads, or their mean; mean over vertices and shells.

    For Haar-random heads the sum is H(H-1)/4 on average (60 for 16 heads) and at least H²/4 - H (48).
    """
    heads = fields[0].shape[-2]
    count = heads * (heads - 1) if pairs == "mean" else 1
    return _mean_of_means(head_overlap(torch.cat(list(fields))), fields) / count


def _mean_of_means(values: Float[Tensor, "v"], fields: Sequence[Tensor]) -> Float[Tensor, ""]:
    """Mean over shells of the mean over each shell's vertices; `values` has the vertices of all shells in turn."""
    return torch.stack([shell.mean() for shell in values.split([len(q) for q in fields])]).mean()


def beta_penalty(logits: Sequence[Tensor]) -> Float[Tensor, ""]:
    """Σ β̂² over all steps and heads; its fixed point is β = softplus(0) + 0.1 = 0.793."""
    return torch.stack([logit.square().sum() for logit in logits]).sum()


class AuxiliaryLosses:
    """Auxiliary losses of a model, chosen by the roles of its parameters; some models have none."""

    def __init__(self, model: nn.Module, roles: dict[str, list[str]], config: TrainConfig) -> None:
        parameters = dict(model.named_parameters())
        self.fields: list[Tensor] = [parameters[name] for name in roles["quaternions"]]
        self.betas: list[Tensor] = [parameters[name] for name in roles["betas"]]
        self.config = config
        self.previous: list[Tensor] | None = None
        self._shares: Tensor = torch.empty(0)
        self._joined: tuple[list[Tensor], Tensor] | None = None

    def store_fields(self) -> None:
        """Store the base quaternions for the smoothness loss; called at the end of an epoch."""
        self.previous = [q.detach().clone() for q in self.fields]

    def terms(self) -> dict[str, Tensor]:
        """Name -> coefficient times loss, each a scalar; smoothness is absent in the first epoch."""
        tensors = self.fields or self.betas
        if tensors and not tensors[0].is_cpu:
            return self._terms_in_few_launches()
        terms: dict[str, Tensor] = {}
        if self.fields and self.previous is not None:
            terms["smoothness"] = self.config.smoothness * smoothness(self.fields, self.previous)
        if self.fields and self.fields[0].shape[-2] > 1:
            overlap = head_diversity(self.fields, self.config.head_diversity_pairs)
            terms["head_diversity"] = self.config.head_diversity * overlap
        if self.betas:
            terms["beta_penalty"] = self.config.beta_penalty * beta_penalty(self.betas)
        return terms

    def _terms_in_few_launches(self) -> dict[str, Tensor]:
        """The same terms for accelerators: shells are concatenated once and weighted instead of averaged in turn."""
        terms: dict[str, Tensor] = {}
        if self.fields:
            base, config = torch.cat(self.fields), self.config
            heads = base.shape[-2]
            if not len(self._shares):  # of a vertex in the mean over shells of the mean over vertices
                shares = [1 / (len(self.fields) * len(q)) for q in self.fields for _ in range(len(q))]
                count = heads * (heads - 1) if config.head_diversity_pairs == "mean" else 1
                factors = (2 * config.smoothness / heads, config.head_diversity / max(1, count))
                table = [[factor * share for share in shares] for factor in factors]
                self._shares = torch.tensor(table, dtype=base.dtype, device=base.device)
            if self.previous is not None:
                if self._joined is None or self._joined[0] is not self.previous:
                    self._joined = (self.previous, torch.cat(self.previous))
                moved = (1 - (base * self._joined[1]).sum(-1).abs()).sum(-1)
                terms["smoothness"] = torch.dot(moved, self._shares[0])
            if heads > 1:
                terms["head_diversity"] = torch.dot(head_overlap(base), self._shares[1])
        if self.betas:
            terms["beta_penalty"] = self.config.beta_penalty * torch.cat(self.betas).square().sum()
        return terms
