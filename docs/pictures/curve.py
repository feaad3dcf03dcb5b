"""Draw the training curve of a run: python docs/pictures/curve.py RUN docs/pictures/lite_curve.png."""

from __future__ import annotations

import sys
from pathlib import Path

from quatsphere.report.figures import save, training_curves
from quatsphere.report.run_files import read_run_files

run, target = read_run_files(sys.argv[1]), Path(sys.argv[2])
save(training_curves({run.name: run.metrics}), target)
print(target)
