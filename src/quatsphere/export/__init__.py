"""Trained models as inference modules in plain torch, the basis of exported files."""
