"""Measurements of the internals of a trained model: `diagnose(model, dataset)`."""

from quatsphere.diagnostics.diagnose import PAPER_VALUES, SCHEMA, diagnose

__all__ = ["PAPER_VALUES", "SCHEMA", "diagnose"]
