"""Image -> logits: QSV, the matched attention baseline, ResNet-20, softmax regression, and `create_model`."""

from quatsphere.models.attention_net import AttentionNet
from quatsphere.models.linear import LinearModel
from quatsphere.models.qsv import QSV
from quatsphere.models.registry import MODELS, Model, build_model, create_model, model_config
from quatsphere.models.resnet20 import ResNet20

__all__ = [
    "MODELS",
    "QSV",
    "AttentionNet",
    "LinearModel",
    "Model",
    "ResNet20",
    "build_model",
    "create_model",
    "model_config",
]
