"""quatsphere info: this machine, the kernel that runs and why, and a model's parameters and memory."""

from __future__ import annotations

import argparse
import json

from rich.console import Console


def run(words: list[str]) -> int:
    """Say what would run here."""
    parser = argparse.ArgumentParser(
        prog="quatsphere info", description=__doc__, epilog="any --model.FIELD VALUE changes the model"
    )
    parser.add_argument("--preset", default=None, help="model of a preset (default: the paper's QSV)")
    parser.add_argument("--batch", type=int, default=128, help="batch size of the memory estimate (default 128)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    asked, rest = parser.parse_known_args(words)
    import torch

    from quatsphere.cli.console import parameter_table
    from quatsphere.cli.settings import resolve
    from quatsphere.kernels.attention import explain_backend
    from quatsphere.models import build_model
    from quatsphere.train.identity import commit, processor, versions
    from quatsphere.train.memory import estimate_bytes
    from quatsphere.train.parallel import Team
    from quatsphere.train.run import pick_device

    config = resolve("info", [*(["--preset", asked.preset] if asked.preset else []), *rest]).config
    model = build_model(config.model)
    device = pick_device("auto", Team())
    backend, reason = explain_backend(getattr(config.model, "backend", "auto"), device.type)
    facts = {
        "device": str(device),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "commit": commit(),
        "backend": backend,
        "backend_reason": reason,
        "model": config.model.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "parts": model.parameter_parts(),
        "roles": {r: sum(model.get_parameter(n).numel() for n in ns) for r, ns in model.parameter_roles().items()},
        "memory_bytes": estimate_bytes(model, asked.batch),
    }
    if asked.json:
        print(json.dumps(facts))
        return 0
    print(f"device     {facts['device']} ({facts['processor']}, {facts['threads']} threads)")
    print("versions   " + ", ".join(f"{name} {version}" for name, version in versions().items()))
    print(f"kernel     {backend}: {facts['backend_reason']}")
    print(f"memory     about {facts['memory_bytes'] / 2**30:.2f} GiB to train at batch {asked.batch}")
    Console().print(parameter_table(model.parameter_parts(), f"{config.model.name}: parameters by part"))
    Console().print(
        parameter_table({r: n for r, n in facts["roles"].items() if n}, "by role, as the optimisers see them")
    )
    return 0
