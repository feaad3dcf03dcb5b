"""Functions that draw a figure and return it; `save` writes it as SVG, PDF or PNG.

Each takes plain data (its docstring says which) and returns a matplotlib figure that a notebook displays.
"""

from quatsphere.report.figures.architecture import COSTS, kernel_comparison, qsv_in_one_view
from quatsphere.report.figures.model import (
    cost_bars,
    coverage_map,
    receptive_map,
    routing_histograms,
    sampling_preview,
    shell_values,
    transport_bars,
)
from quatsphere.report.figures.study import (
    AblationRow,
    BetaCurve,
    ablation_bars,
    beta_curve,
    contrast_curves,
    merge_curves,
    temperature_probe,
)
from quatsphere.report.figures.style import phone_layout, save, to_bytes
from quatsphere.report.figures.training import (
    confusion_matrix,
    inside_over_training,
    per_class_bars,
    scaling_plot,
    throughput_bars,
    training_curves,
)

__all__ = [
    "COSTS",
    "AblationRow",
    "BetaCurve",
    "ablation_bars",
    "beta_curve",
    "confusion_matrix",
    "contrast_curves",
    "cost_bars",
    "coverage_map",
    "inside_over_training",
    "kernel_comparison",
    "merge_curves",
    "per_class_bars",
    "phone_layout",
    "qsv_in_one_view",
    "receptive_map",
    "routing_histograms",
    "sampling_preview",
    "save",
    "scaling_plot",
    "shell_values",
    "temperature_probe",
    "throughput_bars",
    "to_bytes",
    "training_curves",
    "transport_bars",
]
