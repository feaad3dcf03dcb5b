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
    from quatsphere.nn import QuaternionAttention, QuaternionConv
    from quatsphere.nn.extensions import register_routing, register_transport
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

_MODULES = {
    "config": ("RunConfig",),
    "config.presets": ("load_preset",),
    "data": ("register_dataset",),
    "geometry.frames": ("frame_transport", "local_frames"),
    "geometry.neighbours": ("knn",),
    "kernels": ("quaternion_attention", "to_csr"),
    "models": ("QSV", "AttentionNet", "LinearModel", "ResNet20", "create_model"),
    "nn": ("QuaternionAttention", "QuaternionConv"),
    "nn.extensions": ("register_routing", "register_transport"),
    "optim": ("RiemannianAdam",),
    "train": ("ResumeOptions", "train"),
    "train.load": ("TrainedModel", "load"),
}
_HOME = {name: f"quatsphere.{module}" for module, names in _MODULES.items() for name in names}
"""Public name -> module that defines it."""


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that `quatsphere --help` does not import torch."""
    if name in _HOME:
        home = import_module(_HOME[name])
        return globals().get(name) or getattr(home, name)  # importing `quatsphere.train` defines that name here
    raise AttributeError(f"module 'quatsphere' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
