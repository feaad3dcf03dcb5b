"""ResNet-20 for small images (He et al. 2016, section 4.2): three stages of three blocks, option A shortcuts."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import ResNet20Config
from quatsphere.models.lattice import ImageModel
from quatsphere.nn.trace import Trace


class Convolution(nn.Conv2d):
    """3x3 without bias, started as in He et al. 2015: normal with variance 2 / fan-in."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, 3, stride, padding=1, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights."""
        nn.init.kaiming_normal_(self.weight)


class Shortcut(nn.Module):
    """Option A: subsample, then fill the new channels with zeros; no parameters."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b out y2 x2"]:
        """x[::stride], zeros on both sides of the channel axis."""
        before = self.extra // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before))


class BasicBlock(nn.Module):
    """conv-norm-relu-conv-norm plus shortcut, then relu."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Convolution(channels_in, channels, stride)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = Convolution(channels, channels)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = Shortcut(stride, channels - channels_in)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b out y2 x2"]:
        """The residual block of figure 2 in He et al."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


class ResNet20(ImageModel):
    """ResNet-20 under the same pipeline: images (B, C, Y, X) -> logits (B, classes).

    269,722 parameters at width 16 and 10 classes: stem 464, stages 14,016 + 51,072 + 203,520, classifier 650."""

    PARTS = (
        ("stem", "stem"),
        ("stage 1", "stages.0."),
        ("stage 2", "stages.1."),
        ("stage 3", "stages.2."),
        ("classifier", "classifier."),
    )

    def __init__(self, config: ResNet20Config | None = None) -> None:
        super().__init__()
        self.config = config = config or ResNet20Config()
        width = config.width
        self.stem = Convolution(config.in_channels, width)
        self.stem_norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    BasicBlock(max(width, out // 2), out, 1 if out == width else 2),
                    BasicBlock(out, out, 1),
                    BasicBlock(out, out, 1),
                )
                for out in (width, 2 * width, 4 * width)
            )
        )
        self.classifier = nn.Linear(4 * width, config.num_classes)

    def logits(
        self, images: Float[Tensor, "b c y x"], keys: Int[Tensor, "b"] | None, trace: Trace
    ) -> Float[Tensor, "b classes"]:
        """Stem, stages, mean and classifier; there is no dropout, so the keys are not used."""
        tokens = F.relu(self.stem_norm(self.stem(images)))
        hidden = self.stages(tokens)
        pooled = hidden.mean(dim=(2, 3))
        trace.note(lambda: {"tokens": tokens, "hidden": hidden, "pooled": pooled})
        logits: Tensor = self.classifier(pooled)
        return logits
