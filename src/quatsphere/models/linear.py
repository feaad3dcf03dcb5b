"""Softmax regression on the same image samples as the lattice models: a lower bound on useful accuracy."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from quatsphere.config import LinearConfig
from quatsphere.models.lattice import ImageModel, build_layout
from quatsphere.nn.patch_embedding import make_stencil, sample_image
from quatsphere.nn.trace import Trace


class LinearModel(ImageModel):
    """Linear(V_1 * 25 * C, classes): 96,010 parameters at the paper's size."""

    PARTS = (("classifier", "classifier."),)
    coords: Tensor

    def __init__(self, config: LinearConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or LinearConfig()
        centres = build_layout(config).image_coords()
        coords = centres.unsqueeze(1) + make_stencil(len(centres))
        self.register_buffer("coords", coords, persistent=False)
        self.classifier = nn.Linear(coords.shape[0] * coords.shape[1] * config.in_channels, config.num_classes)

    def logits(
        self, images: Float[Tensor, "b c y x"], keys: Int[Tensor, "b"] | None, trace: Trace
    ) -> Float[Tensor, "b classes"]:
        """Sample the image and classify; there is no dropout, so the keys are not used."""
        samples = sample_image(images, self.coords, self.config.wrap_longitude)
        trace.note(lambda: {"samples": samples})
        logits: Tensor = self.classifier(samples.flatten(1))
        return logits
