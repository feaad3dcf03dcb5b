"""quatsphere info: this machine, the kernel that runs and why, and a model's parameters and memory."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from quatsphere.cli.parser import SettingsParser, add_json, at_least


def run(words: list[str]) -> int:
    """Describe the machine, the kernel and the model."""
    parser = SettingsParser(
        prog="quatsphere info",
        usage="quatsphere info [--preset NAME] [-c FILE] [--batch N] [--GROUP.FIELD X]",
        description=__doc__,
        epilog="Any --model.FIELD VALUE changes the model.",
    )
    parser.add_argument(
        "--batch", type=at_least(1), metavar="N", default=128, help="batch size of the memory estimate (default 128)"
    )
    add_json(parser)
    args = parser.parse_config(words)
    facts = describe(args.config, args.batch)
    if args.json:
        print(json.dumps(facts))
    else:
        print_description(facts)
    return 0


def describe(config: Any, batch: int) -> dict[str, Any]:
    """Machine, kernel, parameters and memory as plain values."""
    from quatsphere.bench.timing import machine
    from quatsphere.models import build_model
    from quatsphere.train.distributed import Team
    from quatsphere.train.resources import estimate_bytes
    from quatsphere.train.run import pick_device, precision_warning

    model = build_model(config.model)
    device = pick_device(config.train.device, Team())
    return {
        "device": str(device),
        **machine(getattr(config.model, "backend", "auto"), device.type),
        "precision": config.train.precision,
        "precision_warning": precision_warning(config.train.precision, device),
        "model": config.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parts": model.parameter_parts(),
        "roles": {r: sum(model.get_parameter(n).numel() for n in ns) for r, ns in model.parameter_roles().items()},
        "batch": batch,
        "memory_bytes": estimate_bytes(model, batch),
    }


def print_description(facts: dict[str, Any]) -> None:
    """Print the facts as text and tables."""
    from quatsphere.cli.console import counted, parameter_table

    print(f"device     {facts['device']} ({facts['processor']}, {counted(facts['threads'], 'thread')})")
    print("versions   " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    print(f"kernel     {facts['backend']}: {facts['backend_reason']}")
    if facts["precision_warning"]:
        print(f"precision  {facts['precision_warning']}")
    print(f"memory     about {facts['memory_bytes'] / 2**30:.2f} GiB to train at batch {facts['batch']}")
    Console().print(parameter_table(facts["parts"], f"{facts['model']}: parameters by part"))
    roles = {role: count for role, count in facts["roles"].items() if count}
    Console().print(parameter_table(roles, "as the optimisers see it", "role"))
