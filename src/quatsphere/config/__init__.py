"""Configuration of a run: dataclasses, their checks, named presets."""

from quatsphere.config.schema import (
    AttentionConfig,
    DataConfig,
    LatticeConfig,
    LinearConfig,
    ModelConfig,
    OptimConfig,
    QSVConfig,
    ResNet20Config,
    RunConfig,
    TrainConfig,
)

__all__ = [
    "AttentionConfig",
    "DataConfig",
    "LatticeConfig",
    "LinearConfig",
    "ModelConfig",
    "OptimConfig",
    "QSVConfig",
    "ResNet20Config",
    "RunConfig",
    "TrainConfig",
]
