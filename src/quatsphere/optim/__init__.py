"""Optimisation on S³ and the shells: Riemannian Adam, parameter groups, schedules, repulsion."""

from quatsphere.optim.optimisers import Optimisers, one_cycle, repel, repel_, repulsion_force
from quatsphere.optim.riemannian_adam import RenormalisedAdamW, RiemannianAdam

__all__ = ["Optimisers", "RenormalisedAdamW", "RiemannianAdam", "one_cycle", "repel", "repel_", "repulsion_force"]
