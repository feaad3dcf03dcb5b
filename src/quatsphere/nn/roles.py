"""Roles of parameters: modules declare those of their own parameters in `roles`; all others are weights."""

from __future__ import annotations

from torch import nn

ROLES = ("quaternions", "positions", "bounds", "betas", "gates", "weights")


def parameter_roles(model: nn.Module) -> dict[str, list[str]]:
    """role -> parameter names; every parameter of the model has exactly one role."""
    roles: dict[str, list[str]] = {role: [] for role in ROLES}
    for prefix, module in model.named_modules():
        declared: dict[str, str] = getattr(module, "roles", {})
        for name, _ in module.named_parameters(recurse=False):
            roles[declared.get(name, "weights")].append(f"{prefix}.{name}" if prefix else name)
    return roles
