"""quatsphere: the reference implementation of Quat-Sphere-Vision."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quatsphere.kernels import quaternion_attention
    from quatsphere.models import QSV, AttentionNet, ResNet20, create_model
    from quatsphere.nn.extensions import register_routing, register_transport
    from quatsphere.nn.quaternion_attention import QuaternionAttention

__version__ = "0.1.0"
__all__ = [
    "QSV",
    "AttentionNet",
    "QuaternionAttention",
    "ResNet20",
    "__version__",
    "create_model",
    "quaternion_attention",
    "register_routing",
    "register_transport",
]

_HOME = dict.fromkeys(("QSV", "AttentionNet", "ResNet20", "create_model"), "quatsphere.models")
_HOME["quaternion_attention"] = "quatsphere.kernels"
_HOME["QuaternionAttention"] = "quatsphere.nn.quaternion_attention"
_HOME["register_routing"] = _HOME["register_transport"] = "quatsphere.nn.extensions"


def __getattr__(name: str) -> Any:
    """Import torch when it is first needed: `quatsphere --help` and the file rooms answer at once."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'quatsphere' has no attribute {name!r}")
