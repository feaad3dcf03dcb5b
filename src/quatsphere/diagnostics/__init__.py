"""What a trained model looks like inside, as plain numbers: `diagnose(model, dataset)`."""

from quatsphere.diagnostics.diagnose import PAPER, SCHEMA, diagnose

__all__ = ["PAPER", "SCHEMA", "diagnose"]
