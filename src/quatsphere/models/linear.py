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

    def forward(
        self,
        images: Float[Tensor, "b c y x"],
        *,
        sample_keys: Int[Tensor, "b"] | None = None,
        return_trace: bool = False,
    ) -> Float[Tensor, "b classes"] | tuple[Float[Tensor, "b classes"], Trace]:
        """Return logits; `sample_keys` is accepted and unused: there is no dropout."""
        samples = sample_image(images, self.coords, self.config.wrap_longitude)
        logits = self.classifier(samples.flatten(1))
        return (logits, Trace(samples=samples, logits=logits)) if return_trace else logits
