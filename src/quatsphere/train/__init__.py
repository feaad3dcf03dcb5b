"""Training: losses by name, one loop, evaluation, runs that can be killed and resumed bit for bit.

The package is callable: `quatsphere.train(config, run_dir)` is `quatsphere.train.run.train`.
"""

import inspect
import sys
from types import ModuleType
from typing import Any

from quatsphere.train.evaluation import Evaluation, evaluate, predict_logits
from quatsphere.train.reporting import Progress, Reporter
from quatsphere.train.run import ResumeOptions, train

__all__ = ["Evaluation", "Progress", "Reporter", "ResumeOptions", "evaluate", "predict_logits", "train"]


class _CallablePackage(ModuleType):
    """The name `quatsphere.train` belongs to this package and to the public function."""

    __signature__ = inspect.signature(train)

    def __call__(self, *args: Any, **options: Any) -> dict[str, Any]:
        return train(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
