"""Figures from files: one function per figure, all in one style; `save` writes SVG, PDF or PNG."""

from quatsphere.report.figures.ablation import AblationRow, Measured, ablation_bars
from quatsphere.report.figures.architecture import COSTS, qsv_in_one_view
from quatsphere.report.figures.bars import cost_shares, per_class_bars, transport_bars
from quatsphere.report.figures.kernel import kernel_comparison
from quatsphere.report.figures.lengths import LengthCurve, LengthPoint, contrast_curves
from quatsphere.report.figures.maps import coverage_map, receptive_map
from quatsphere.report.figures.routing import routing_histograms
from quatsphere.report.figures.speed import Throughput, scaling_plot, throughput_bars
from quatsphere.report.figures.style import FORMATS, save, to_bytes
from quatsphere.report.figures.temperature import BetaCurve, beta_curve, merge_curves, temperature_probe
from quatsphere.report.figures.training import inside_over_training, training_curves

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
