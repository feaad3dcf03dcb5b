"""Time training passes of models with few heads, with and without packing several images into a vector.

Usage: python benchmarks/lanes.py   (CPU milliseconds of one thread: best and median of 24 passes each, batch 32)
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from quatsphere.config import QSVConfig
from quatsphere.kernels.cpu import attention, field
from quatsphere.models import build_model

SIZES: dict[str, dict[str, Any]] = {
    "study": {"base_vertices": 48, "shells": 3, "plane_rows": 6},
    "demo": {"base_vertices": 32, "shells": 3, "plane_rows": 8, "image_size": 8, "in_channels": 1},
}
PACKED = attention._packed_images, field._packed_rows
SINGLE = (lambda images, heads: 1), (lambda source, target: 1)

torch.set_num_threads(1)
for name, changes in SIZES.items():
    config = QSVConfig(dim=64, heads=4, attention_dropout=0.0, output_dropout=0.0, **changes)
    model, times = build_model(config).train(), {PACKED: [], SINGLE: []}
    images = torch.randn(32, config.in_channels, config.image_size, config.image_size)
    for _ in range(26):
        for rules, found in times.items():
            attention._packed_images, field._packed_rows = rules
            start = time.thread_time()
            model(images).square().sum().backward()
            found.append(1000 * (time.thread_time() - start))
    packed, single = (sorted(found[2:]) for found in times.values())
    for label, pick in (("best", min), ("median", statistics.median)):
        print(
            f"{name} {label}: {pick(single):.1f} ms, packed {pick(packed):.1f} ms, {pick(single) / pick(packed):.2f} x"
        )
