"""The installed Chromium, and flags that keep it from making requests of its own."""

from __future__ import annotations

import shutil

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium_program() -> str | None:
    """Path of the installed browser."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)
