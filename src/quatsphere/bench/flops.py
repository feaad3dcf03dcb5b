"""How much arithmetic a model is: the floating-point operations of its matrix products, in closed form.

Counted are the products of the patch embedding, the linear layers, the Hamilton layers (as real matrices) and the
classifier, two operations per multiply-add; a training step is three forward passes (the backward pass multiplies
twice, once for the inputs, once for the weights). The first layer of the perturbation network is counted once per
source, since it commutes with interpolation. Sums over neighbours, the three outputs of the perturbation network and
elementwise work are not counted: a share of the GEMM peak then says what they cost. It is a count of the model, not of
an implementation: nothing that is computed twice counts twice.
"""

from __future__ import annotations

from itertools import pairwise

from quatsphere.config import AttentionConfig, QSVConfig
from quatsphere.errors import ConfigError
from quatsphere.geometry.sphere import shell_sizes
from quatsphere.models.attention_net import solve_width

STENCIL = 25
Step = tuple[int, int]


def steps_of(config: QSVConfig | AttentionConfig) -> list[Step]:
    """(sources, targets) of every step: within the first shell, from shell to shell, rounds on the last."""
    counts = shell_sizes(config.base_vertices, config.shells)
    return [(counts[0], counts[0]), *pairwise(counts), *[(counts[-1], counts[-1])] * config.rounds]


def qsv_flops(config: QSVConfig) -> dict[str, int]:
    """Forward pass of one image by part: perturbation networks 2 d² per source; Hamilton layers 18 d²/H per target."""
    dim, steps = config.dim, steps_of(config)
    return {
        "patch embedding": 2 * steps[0][0] * STENCIL * config.in_channels * dim,
        "perturbation": sum(2 * sources * dim * dim for sources, _ in steps),
        "Hamilton": sum(18 * targets * dim * dim // config.heads for _, targets in steps),
        "classifier": 2 * dim * config.num_classes,
    }


def attention_flops(config: AttentionConfig) -> dict[str, int]:
    """Forward pass of one image by part: queries and outputs 4 d² per target, keys and values 4 d² per source."""
    config = solve_width(config)
    assert config.dim is not None
    dim, steps = config.dim, steps_of(config)
    per_source = 4 if config.value == "projected" else 2
    return {
        "patch embedding": 2 * steps[0][0] * STENCIL * config.in_channels * dim,
        "projections": sum((4 * targets + per_source * sources) * dim * dim for sources, targets in steps),
        "feed-forward": sum(16 * targets * dim * dim for _, targets in steps),
        "classifier": 2 * dim * config.num_classes,
    }


def forward_flops(config: object) -> int:
    """Floating-point operations of the forward pass of one image."""
    if isinstance(config, QSVConfig):
        return sum(qsv_flops(config).values())
    if isinstance(config, AttentionConfig):
        return sum(attention_flops(config).values())
    raise ConfigError(f"no operation count for {type(config).__name__}; there is one for qsv and attention")


def training_flops(config: object) -> int:
    """Floating-point operations of a training step per image: forward, and twice as much backward."""
    return 3 * forward_flops(config)
