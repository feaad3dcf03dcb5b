"""The command `quatsphere`: one file per verb."""

from quatsphere.cli.main import main

__all__ = ["main"]
