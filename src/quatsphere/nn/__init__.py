"""Layers and the parts they are made of."""

from quatsphere.nn.quaternion_attention import QuaternionAttention
from quatsphere.nn.quaternion_conv import QuaternionConv

__all__ = ["QuaternionAttention", "QuaternionConv"]
