"""One operation, several backends: the coupled quaternion kernel, and the dot-product kernel beside it."""

from quatsphere.kernels.attention import (
    BACKENDS,
    choose_backend,
    dot_product_attention,
    dot_product_weights,
    explain_backend,
    quaternion_attention,
    routing_weights,
)
from quatsphere.kernels.cpu.masks import register_masks
from quatsphere.kernels.per_token import (
    Mixing,
    Network,
    add_resampled,
    feed_forward,
    perturb,
    perturb_by,
    resample_vertices,
    tangent,
)
from quatsphere.kernels.problem import TRANSPORTS, Problem
from quatsphere.kernels.step import Ends, Kept, runs_whole, whole_step
from quatsphere.kernels.transforms import differentiated_again, outside_transforms, transformed

__all__ = [
    "BACKENDS",
    "TRANSPORTS",
    "Ends",
    "Kept",
    "Mixing",
    "Network",
    "Problem",
    "add_resampled",
    "choose_backend",
    "differentiated_again",
    "dot_product_attention",
    "dot_product_weights",
    "explain_backend",
    "feed_forward",
    "outside_transforms",
    "perturb",
    "perturb_by",
    "quaternion_attention",
    "resample_vertices",
    "routing_weights",
    "runs_whole",
    "tangent",
    "transformed",
    "whole_step",
]

register_masks()
