"""Numbers about the inside of a trained model: `diagnose(model, dataset)`."""

from quatsphere.diagnostics.diagnose import PAPER, SCHEMA, diagnose

__all__ = ["PAPER", "SCHEMA", "diagnose"]
