"""quatsphere bench [kernel|step|inference|scaling]: speed, memory, arithmetic and how they grow, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, at_least
from quatsphere.errors import ConfigError

EPILOG = """\
Contenders run in turn, round after round, in one process; best and median count, the warm-up does not. Peak memory is
what one pass adds to a process of its own. docs/performance.md says more, and what the JSON holds."""
SUBJECTS = ("kernel", "step", "inference", "scaling")


def run(words: list[str]) -> int:
    """Measure, print, save, compare."""
    parser = Parser(prog="quatsphere bench", description=__doc__, epilog=EPILOG)
    parser.add_argument("subject", nargs="?", choices=SUBJECTS, help="one of them alone (default: all four)")
    number = at_least(1)
    parser.add_argument("--json", metavar="FILE", help="save the figures; 'quatsphere figures --bench FILE' draws them")
    parser.add_argument("--compare", metavar="FILE", help="show this run beside saved figures")
    parser.add_argument("--batch", type=number, metavar="N", help="images per pass [16, 64, 1 and 256]")
    parser.add_argument("--rounds", type=number, metavar="N", default=20, help="interleaved rounds that count [20]")
    parser.add_argument("--threads", type=number, metavar="N", help="threads of torch and the kernels [torch's choice]")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 adds autocast rows [fp32]")
    parser.add_argument("--compile", action="store_true", help="add torch.compile'd rows (needs a C++ compiler)")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory, which takes processes")
    parser.add_argument("--vertices", type=number, nargs="+", metavar="N", help="sizes of scaling [1,280 to 100,000]")
    parser.add_argument("--dim", type=number, metavar="N", default=256, help="feature dimension of scaling [256]")
    parser.add_argument("--picture", metavar="FILE", help="draw the scaling (SVG, PDF or PNG)")
    asked = parser.parse_args(words)
    for path in filter(None, (asked.json, asked.picture)):
        if not Path(path).parent.is_dir():
            raise ConfigError(f"no folder {str(Path(path).parent)!r} for {path}; make it or use another")
    before = read(asked.compare) if asked.compare else None
    record = measure(asked)
    from quatsphere.bench.tables import show, show_comparison

    show(record)
    if before is not None:
        show_comparison(before, record)
    save(record, asked)
    return 0


def read(path: str) -> dict[str, Any]:
    """A saved record, before anything is measured."""
    from quatsphere.report.run_files import read_object

    content = read_object(Path(path))
    if content is None:
        raise ConfigError(f"no saved figures in {path}; make them with 'quatsphere bench --json FILE'")
    return content


def measure(asked: Any) -> dict[str, Any]:
    """The figures asked for, with the goals they meet or miss."""
    import torch

    from quatsphere.bench.goals import goals
    from quatsphere.bench.measure import Settings, bench
    from quatsphere.cli.console import note

    if asked.threads:
        torch.set_num_threads(asked.threads)
    settings = Settings(
        batch=asked.batch,
        rounds=asked.rounds,
        compiled=asked.compile,
        bf16=asked.precision == "bf16",
        memory=not asked.no_memory,
        dim=asked.dim,
        **({"vertices": asked.vertices} if asked.vertices else {}),
    )
    record = bench([asked.subject] if asked.subject else SUBJECTS, settings, note)
    return {**record, "goals": goals(record)}


def save(record: dict[str, Any], asked: Any) -> None:
    """The files asked for."""
    if asked.json:
        from quatsphere.storage.atomic import write_json

        write_json(Path(asked.json), record)
        print(f"figures: {asked.json}")
    if asked.picture and record.get("scaling"):
        try:
            from quatsphere.report.figures import save, scaling_plot
        except ImportError as error:
            raise ConfigError("a picture needs matplotlib; pip install 'quatsphere[report]'") from error
        save(scaling_plot(record["scaling"]), Path(asked.picture))
        print(f"picture: {asked.picture}")
