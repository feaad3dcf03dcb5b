"""What the tests of the study share: a launcher without processes, and one real smoke study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jaxtyping
import pytest

from quatsphere.errors import QuatsphereError
from quatsphere.study.launch import Outcome, Watcher
from quatsphere.study.worker import Request, make_cell


class Here:
    """Trains cells one after the other in this process: the worker's own function, no start of Python per cell."""

    jobs = 1

    def __init__(self) -> None:
        self.trained: list[str] = []

    def run(self, requests: Sequence[Request], watcher: Watcher) -> Iterator[Outcome]:
        for request in requests:
            self.trained.append(request.id)
            watcher.started(request.id)
            try:
                yield Outcome(request, make_cell(request))
            except QuatsphereError as error:
                yield Outcome(request, None, str(error))


@pytest.fixture
def here() -> Here:
    return Here()


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Without the check of shapes, which doubles the time of a run; other tests have it on."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
