"""quatsphere: the reference implementation of Quat-Sphere-Vision."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quatsphere.kernels import quaternion_attention
    from quatsphere.models import QSV, AttentionNet, ResNet20, create_model
    from quatsphere.nn.extensions import register_routing, register_transport
    from quatsphere.nn.quaternion_attention import QuaternionAttention
    from quatsphere.train.load import TrainedModel, load
    from quatsphere.train.run import ResumeOptions, train

__version__ = "0.1.0"
__all__ = [
    "QSV",
    "AttentionNet",
    "QuaternionAttention",
    "ResNet20",
    "ResumeOptions",
    "TrainedModel",
    "__version__",
    "create_model",
    "load",
    "quaternion_attention",
    "register_routing",
    "register_transport",
    "train",
]

_HOME = {
    "AttentionNet": "quatsphere.models",
    "QSV": "quatsphere.models",
    "QuaternionAttention": "quatsphere.nn.quaternion_attention",
    "ResNet20": "quatsphere.models",
    "ResumeOptions": "quatsphere.train",
    "TrainedModel": "quatsphere.train.load",
    "create_model": "quatsphere.models",
    "load": "quatsphere.train.load",
    "quaternion_attention": "quatsphere.kernels",
    "register_routing": "quatsphere.nn.extensions",
    "register_transport": "quatsphere.nn.extensions",
    "train": "quatsphere.train",
}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `quatsphere --help` does not import torch."""
    if name in _HOME:
        home = import_module(_HOME[name])
        return globals().get(name) or getattr(home, name)  # importing `quatsphere.train` defines that name here
    raise AttributeError(f"module 'quatsphere' has no attribute {name!r}")
