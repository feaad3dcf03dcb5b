"""The reference: eq:rel-quat and eq:attn-weight literally, edge by edge. Slow, and never simplified."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import conjugate, multiply, relative, rotate, sandwich
from quatsphere.kernels.inputs import AttentionInputs, gather
from quatsphere.kernels.ragged import RaggedInputs

MESSAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sandwich": sandwich,
    "identity": lambda relative_quaternion, features: features,
    "one_sided": multiply,
}
"""m_ij from r_ij (B, T, k, H, 1, 4) and x_j (B, T, k, H, Q, 4)."""


def alignment_logits(inputs: AttentionInputs) -> Tensor:
    """Re(r_ij), (B, T, k, H)."""
    return _relative(inputs)[..., 0]


def absolute_logits(inputs: AttentionInputs) -> Tensor:
    """|Re(r_ij)|: antipodal quaternions count as one."""
    return _relative(inputs)[..., 0].abs()


def uniform_logits(inputs: AttentionInputs) -> Tensor:
    """Zero on every edge: softmax gives 1/k."""
    return torch.zeros_like(_relative(inputs)[..., 0])


def geometric_logits(inputs: AttentionInputs) -> Tensor:
    """-‖p_i - q_i p_j q_i*‖² with unit directions p: the neighbour's direction turned by the target's quaternion."""
    assert inputs.target_directions is not None
    assert inputs.source_directions is not None
    neighbour = inputs.source_directions[inputs.neighbours][None, :, :, None, :]
    turned = rotate(inputs.target_field[:, :, None], neighbour)
    return -((inputs.target_directions[None, :, None, None, :] - turned) ** 2).sum(-1)


LOGITS: dict[str, Callable[[AttentionInputs], Tensor]] = {
    "alignment": alignment_logits,
    "absolute": absolute_logits,
    "uniform": uniform_logits,
    "geometric": geometric_logits,
}


def quaternion_attention(inputs: AttentionInputs) -> Tensor:
    """C_ij = softmax_j(β_h logit_ij), m_ij = r_ij ⊗ x_j ⊗ r_ij*, z_i = Σ_j C_ij m_ij -> (B, T, H, Q, 4)."""
    routing, transport = inputs.routing, inputs.transport
    if isinstance(routing, str):
        weights = torch.softmax(inputs.beta * LOGITS[routing](inputs), dim=2)
    else:
        weights = inputs.edge_weights(routing)
    if isinstance(transport, str):
        messages = MESSAGES[transport](_relative(inputs)[..., None, :], gather(inputs.features, inputs.neighbours))
    else:
        messages = inputs.edge_messages(transport)
    return (inputs.drop(weights)[..., None, None] * messages).sum(dim=2)


def _relative(inputs: AttentionInputs) -> Tensor:
    """r_ij = q_i* ⊗ q_j on every edge, (B, T, k, H, 4)."""
    return relative(inputs.target_field[:, :, None], gather(inputs.source_field, inputs.neighbours))


def ragged_attention(inputs: RaggedInputs) -> Tensor:
    """The same with r_ij = q_i* ⊗ u_ij ⊗ q_j, one target after the other, each with its own number of neighbours."""
    rows = inputs.graph.rows.tolist()
    targets = [_attend_one(inputs, i, slice(*rows[i : i + 2])) for i in range(len(rows) - 1)]
    return torch.stack(targets, dim=1) if targets else inputs.features[:, :0]


def _attend_one(inputs: RaggedInputs, i: int, edges: slice) -> Tensor:
    """z_i (B, H, Q, 4) of one target; zero without edges."""
    j = inputs.graph.source[edges]
    q_i, q_j, x_j = inputs.target_field[:, i, None], inputs.source_field[:, j], inputs.features[:, j]
    u = q_j.new_tensor([1.0, 0.0, 0.0, 0.0]) if inputs.edge_rotation is None else inputs.edge_rotation[edges]
    r = multiply(conjugate(q_i), multiply(u, q_j))
    if inputs.routing == "geometric":
        assert inputs.target_directions is not None
        assert inputs.source_directions is not None
        turned = rotate(q_i, inputs.source_directions[j, None])
        logits = -((inputs.target_directions[i] - turned) ** 2).sum(-1)
    else:
        rules = {"alignment": r[..., 0], "absolute": r[..., 0].abs(), "uniform": torch.zeros_like(r[..., 0])}
        logits = rules[str(inputs.routing)]
    weights = torch.softmax(inputs.beta * logits, dim=1)
    if inputs.keep is not None:
        weights = weights * (inputs.keep[:, edges].to(weights.dtype) * inputs.keep_scale)
    if isinstance(inputs.transport, str):
        by = {
            "lift": multiply(u, q_j),
            "lower": multiply(conjugate(q_i), u.expand_as(q_j)),
        }.get(inputs.transport, r)
        messages = (MESSAGES | {"lift": sandwich, "lower": sandwich})[inputs.transport](by[..., None, :], x_j)
    else:
        messages = inputs.messages()[:, edges]
    return (weights[..., None, None] * messages).sum(dim=1)
