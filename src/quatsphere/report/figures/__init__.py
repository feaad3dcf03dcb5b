"""Figures from files: one function per figure, all in one style; `save` writes SVG, PDF or PNG."""

from quatsphere.report.figures.architecture import COSTS, kernel_comparison, qsv_in_one_view
from quatsphere.report.figures.bars import (
    Throughput,
    cost_shares,
    per_class_bars,
    scaling_plot,
    throughput_bars,
    transport_bars,
)
from quatsphere.report.figures.run import (
    coverage_map,
    inside_over_training,
    receptive_map,
    routing_histograms,
    training_curves,
)
from quatsphere.report.figures.study import (
    AblationRow,
    BetaCurve,
    LengthCurve,
    LengthPoint,
    Measured,
    ablation_bars,
    beta_curve,
    contrast_curves,
    merge_curves,
    temperature_probe,
)
from quatsphere.report.figures.style import FORMATS, save, to_bytes

__all__ = [
    "COSTS",
    "FORMATS",
    "AblationRow",
    "BetaCurve",
    "LengthCurve",
    "LengthPoint",
    "Measured",
    "Throughput",
    "ablation_bars",
    "beta_curve",
    "contrast_curves",
    "cost_shares",
    "coverage_map",
    "inside_over_training",
    "kernel_comparison",
    "merge_curves",
    "per_class_bars",
    "qsv_in_one_view",
    "receptive_map",
    "routing_histograms",
    "save",
    "scaling_plot",
    "temperature_probe",
    "throughput_bars",
    "to_bytes",
    "training_curves",
    "transport_bars",
]
