"""scikit-learn's 1,797 handwritten digits (UCI, Alpaydin and Kaynak 1998): real data that needs no download."""

from __future__ import annotations

import numpy as np

from quatsphere.data.contents import Contents, part_of
from quatsphere.errors import DataError


def read_digits() -> Contents:
    """One pool of 8 x 8 greys; the source counts 0..16, we scale to 0..255 and round."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("data set 'digits' needs scikit-learn; pip install quatsphere[demo]") from error
    source = load_digits()
    images = np.rint(source.images * (255 / 16)).astype(np.uint8)[:, None]
    return Contents(tuple(map(str, range(10))), part_of(images, source.target), None)
