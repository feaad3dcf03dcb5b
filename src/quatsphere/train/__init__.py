"""Training: losses by name, one loop, evaluation, runs that can be killed and resumed bit for bit."""

from quatsphere.train.evaluation import Evaluation, evaluate, predict_logits
from quatsphere.train.reporting import Progress, Reporter
from quatsphere.train.run import Choices, train

__all__ = ["Choices", "Evaluation", "Progress", "Reporter", "evaluate", "predict_logits", "train"]
