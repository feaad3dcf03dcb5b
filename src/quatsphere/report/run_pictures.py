"""What pictures of a model need: where its vertices are and what they sample; drawn by the report room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quatsphere.errors import ConfigError
from quatsphere.nn.patch_embedding import sample_image


def need_report() -> Any:
    """The picture functions, or a line that says what to install."""
    try:
        from quatsphere.report import (
            page,  # noqa: F401
            pictures,
        )
    except ImportError as error:
        raise ConfigError("pictures and pages need matplotlib and jinja2; pip install 'quatsphere[report]'") from error
    return pictures


def page_path(asked: str | None, default: Path) -> Path:
    """Where a page goes; a folder that is not there is said before anything is computed."""
    page = default if asked is None else Path(asked)
    if not page.absolute().parent.is_dir():
        raise ConfigError(f"no folder {page.parent} (for {page.name}); create it or use another -o")
    return page


def sampled(model: Any, image: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(places (V, S, 2), samples (V, S, C)) of one image (C, H, W) in [0, 1], exactly as the model reads it."""
    with torch.no_grad():
        places = model.layout.image_coords().unsqueeze(1) + model.embed.stencil
        samples = sample_image(image.unsqueeze(0), places, model.embed.wrap)[0]
    return places.numpy(), samples.numpy()


def shell_positions(model: Any) -> list[np.ndarray[Any, Any]]:
    """Positions of every shell as arrays."""
    return [shell.positions.detach().numpy() for shell in model.layout.shells]
