"""Where a study stands: for every plan that was started, which cells are finished, begun or missing."""

from __future__ import annotations

from typing import Any

from quatsphere.study.results import Results


def status(results: Results) -> dict[str, Any]:
    """Plain lists of cell ids; `begun` with the epochs trained so far."""
    results.require()
    state = {record["cell"]: record["status"] for record in results.finished()}
    asked = results.asked()
    cells = list(dict.fromkeys(cell for ids in asked.values() for cell in ids))
    begun = {
        cell: len(results.run(cell).read_metrics())
        for cell in cells
        if cell not in state and results.run(cell).config.is_file()
    }
    plans = {
        plan: {
            "cells": ids,
            "finished": [cell for cell in ids if state.get(cell) == "finished"],
            "diverged": [cell for cell in ids if state.get(cell) == "diverged"],
            "begun": [cell for cell in ids if cell in begun],
            "missing": [cell for cell in ids if cell not in state and cell not in begun],
        }
        for plan, ids in asked.items()
    }
    return {"plans": plans, "begun": begun, "cells": len(state)}
