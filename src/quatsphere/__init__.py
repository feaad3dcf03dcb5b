"""quatsphere: the reference implementation of Quat-Sphere-Vision.

The names in `__all__` are the public interface; everything else may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quatsphere.config import RunConfig
    from quatsphere.config.presets import load_preset
    from quatsphere.data import register_dataset
    from quatsphere.geometry.frames import frame_transport, local_frames
    from quatsphere.geometry.neighbours import knn
    from quatsphere.kernels import quaternion_attention, to_csr
    from quatsphere.models import QSV, AttentionNet, LinearModel, ResNet20, create_model
    from quatsphere.nn.extensions import register_routing, register_transport
    from quatsphere.nn.quaternion_attention import QuaternionAttention
    from quatsphere.nn.quaternion_conv import QuaternionConv
    from quatsphere.optim import RiemannianAdam
    from quatsphere.train.load import TrainedModel, load
    from quatsphere.train.run import ResumeOptions, train

__version__ = "0.1.0"
__all__ = [
    "QSV",
    "AttentionNet",
    "LinearModel",
    "QuaternionAttention",
    "QuaternionConv",
    "ResNet20",
    "ResumeOptions",
    "RiemannianAdam",
    "RunConfig",
    "TrainedModel",
    "__version__",
    "create_model",
    "frame_transport",
    "knn",
    "load",
    "load_preset",
    "local_frames",
    "quaternion_attention",
    "register_dataset",
    "register_routing",
    "register_transport",
    "to_csr",
    "train",
]

_HOME = {
    "AttentionNet": "quatsphere.models",
    "LinearModel": "quatsphere.models",
    "QSV": "quatsphere.models",
    "QuaternionAttention": "quatsphere.nn.quaternion_attention",
    "QuaternionConv": "quatsphere.nn.quaternion_conv",
    "ResNet20": "quatsphere.models",
    "RiemannianAdam": "quatsphere.optim",
    "ResumeOptions": "quatsphere.train",
    "RunConfig": "quatsphere.config",
    "TrainedModel": "quatsphere.train.load",
    "create_model": "quatsphere.models",
    "frame_transport": "quatsphere.geometry.frames",
    "knn": "quatsphere.geometry.neighbours",
    "load": "quatsphere.train.load",
    "load_preset": "quatsphere.config.presets",
    "local_frames": "quatsphere.geometry.frames",
    "quaternion_attention": "quatsphere.kernels",
    "register_dataset": "quatsphere.data",
    "register_routing": "quatsphere.nn.extensions",
    "register_transport": "quatsphere.nn.extensions",
    "to_csr": "quatsphere.kernels",
    "train": "quatsphere.train",
}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `quatsphere --help` does not import torch."""
    if name in _HOME:
        home = import_module(_HOME[name])
        return globals().get(name) or getattr(home, name)  # importing `quatsphere.train` defines that name here
    raise AttributeError(f"module 'quatsphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
