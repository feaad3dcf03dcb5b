"""Draws the training curve of a run: python docs/pictures/curve.py RUN docs/pictures/lite_curve.png."""

from __future__ import annotations

import sys
from pathlib import Path

from quatsphere.files.run_folder import RunFolder
from quatsphere.report.pictures import curves, to_png

run, target = RunFolder(sys.argv[1]), Path(sys.argv[2])
target.write_bytes(to_png(curves(run.read_metrics())))
print(target)
