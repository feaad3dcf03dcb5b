"""The coupled quaternion kernel and the operations around it, each with several backends."""

from quatsphere.kernels.api import (
    add_resampled,
    attention_weights,
    dot_product_attention,
    dot_product_weights,
    feed_forward,
    perturb,
    quaternion_attention,
    resample_vertices,
)
from quatsphere.kernels.backends import backends_on, choose_backend, explain_backend, select_backend
from quatsphere.kernels.cpu.masks import register_masks
from quatsphere.kernels.graphs import Graph, to_csr
from quatsphere.kernels.inputs import (
    TRANSPORTS,
    AttentionInputs,
    DropoutMasks,
    FusedStepInputs,
    Mixing,
    Network,
    Rule,
    ShellPair,
)

__all__ = [
    "TRANSPORTS",
    "AttentionInputs",
    "DropoutMasks",
    "FusedStepInputs",
    "Graph",
    "Mixing",
    "Network",
    "Rule",
    "ShellPair",
    "add_resampled",
    "attention_weights",
    "backends_on",
    "choose_backend",
    "dot_product_attention",
    "dot_product_weights",
    "explain_backend",
    "feed_forward",
    "perturb",
    "quaternion_attention",
    "resample_vertices",
    "select_backend",
    "to_csr",
]

register_masks()
