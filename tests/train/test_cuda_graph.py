"""Steps that are recorded and replayed, with a stand-in for CUDA graphs, equal those that run eagerly, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from quatsphere.config import OptimConfig, TrainConfig
from quatsphere.models import build_model, model_config
from quatsphere.train.batches import Batch
from quatsphere.train.cuda_graph import WARM_UP
from quatsphere.train.losses import smooth_targets
from quatsphere.train.step import OptimisationStep

SIZES = {"dim": 8, "heads": 2, "base_vertices": 16, "shells": 2, "neighbours": 4, "backend": "factored"}
EPOCHS = ([4] * 6 + [2], [4] * 5 + [2] + [4])
"""Sizes of the batches of two epochs; the last batch of the first one is smaller."""


class StandIn:
    """Records by running and then erasing the results, as a CUDA graph computes nothing while it is recorded."""

    def __init__(self, step: OptimisationStep) -> None:
        self.parameters, self.recorded, self.replayed = list(step.parameters.values()), 0, 0

    def warm_up_context(self) -> Any:
        return nullcontext()

    def record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        results = run()
        own = [*results[0].values(), results[1], *(p.grad for p in self.parameters if p.grad is not None)]
        for tensor in own:
            tensor.fill_(torch.nan)

        def replay() -> None:
            self.replayed += 1
            for parameter in self.parameters:
                parameter.grad = None
            losses, logits = run()
            new = [*losses.values(), logits, *(p.grad for p in self.parameters if p.grad is not None)]
            for tensor, value in zip(own, new, strict=True):
                tensor.copy_(value)

        return replay, results


def make_step(**train: Any) -> OptimisationStep:
    model = build_model(model_config("qsv", **SIZES), seed=0).train()
    return OptimisationStep(model, TrainConfig(**train), OptimConfig(repulsion_every=3), 20)


def make_batch(seed: int, size: int) -> Batch:
    labels, keys = torch.arange(size) % 10, torch.arange(size) + 100 * seed
    images = torch.randn(size, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return Batch(images, smooth_targets(labels, 10, 0.1), labels, keys, keys)


def run_epochs(step: OptimisationStep) -> list[Any]:
    """Outputs of all steps and the parameters after them."""
    outputs: list[Any] = []
    for sizes in EPOCHS:
        outputs += [step(make_batch(len(outputs) + i, size), size, len(outputs) + i) for i, size in enumerate(sizes)]
        step.auxiliary.store_fields()
    return [*outputs, *(p.detach().clone() for p in step.parameters.values())]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs


def test_recorded_steps_equal_eager_ones() -> None:
    """Also with a smaller batch in between, which runs eagerly, and in a new epoch, which is recorded again."""
    eager, recorded = make_step(), make_step()
    stand_in = StandIn(recorded)
    recorded.record(stand_in)
    assert_same(run_epochs(recorded), run_epochs(eager))
    assert stand_in.recorded == 2
    assert stand_in.replayed == sum(len(sizes) - sizes.count(2) - WARM_UP for sizes in EPOCHS)


def test_recording_reads_inputs_and_leaves_gradients_where_they_were() -> None:
    step, places = make_step(), []
    step.record(StandIn(step))
    recorded: Any = step.propagate
    compute = recorded.compute

    def noted(*inputs: Any) -> Any:
        places.append([x.data_ptr() for x in inputs[:3]])
        return compute(*inputs)

    recorded.compute = noted
    gradients = []
    for number in range(WARM_UP + 4):
        step(make_batch(number, 4), 4, number)
        gradients.append([p.grad.data_ptr() for p in step.parameters.values() if p.grad is not None])
    assert places[WARM_UP:] == [places[WARM_UP]] * 5  # a recording and four replays
    assert gradients[WARM_UP:] == [gradients[WARM_UP]] * 4


def test_recording_of_the_last_epoch_is_freed_at_once() -> None:
    """Its memory is not held while the first steps of a new epoch run eagerly; a smaller batch frees nothing."""
    step = make_step()
    step.record(StandIn(step))
    recorded: Any = step.propagate
    for number in range(WARM_UP + 1):
        step(make_batch(number, 4), 4, number)
    step(make_batch(WARM_UP + 1, 2), 2, WARM_UP + 1)
    assert recorded.recording is not None
    step.auxiliary.store_fields()
    step(make_batch(WARM_UP + 2, 4), 4, WARM_UP + 2)
    assert recorded.recording is None


def test_failed_recording_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    class Refused(StandIn):
        def record(self, run: Callable[[], Any]) -> Any:
            run()
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    eager, refused = make_step(), make_step()
    refused.record(Refused(refused))
    assert_same(run_epochs(refused), run_epochs(eager))
    warning = "no CUDA graph was recorded (operation not permitted when stream is capturing); steps run eagerly"
    assert [warning in record.getMessage() for record in caplog.records] == [True]


def test_other_devices_run_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    step = make_step(cuda_graph=True)
    assert step.propagate == step._propagate
    assert "train.cuda_graph needs a CUDA device" in caplog.text
