"""Shared fixtures: a launcher that trains in this process, and a switch for shape checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from quatsphere.errors import QuatsphereError
from quatsphere.study.runner import Outcome, StudyObserver
from quatsphere.study.worker import CellRequest, train_cell


class InProcessLauncher:
    """Trains cells one after the other in this process, with the worker's own function."""

    jobs = 1

    def __init__(self) -> None:
        self.trained: list[str] = []

    def run(self, requests: Sequence[CellRequest], observer: StudyObserver) -> Iterator[Outcome]:
        for request in requests:
            self.trained.append(request.id)
            observer.started(request.id)
            try:
                yield Outcome(request, train_cell(request))
            except QuatsphereError as error:
                yield Outcome(request, None, str(error))


@pytest.fixture
def in_process() -> InProcessLauncher:
    return InProcessLauncher()
