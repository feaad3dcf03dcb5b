"""The reference: eq:rel-quat and eq:attn-weight literally, edge by edge. Slow, and never simplified."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quatsphere.geometry.quaternion import multiply, relative, rotate, sandwich
from quatsphere.kernels.inputs import AttentionInputs, gather

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
