"""quatsphere bench [kernel|step|inference|scaling|graphs|gpu]: measure speed, memory and scaling on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quatsphere.cli.parser import Parser, at_least
from quatsphere.errors import ConfigError

_EPILOG = """\
Candidates run interleaved in one process; warm-up rounds are not counted. Peak memory is what one
pass adds to a fresh process. graphs compares QuaternionConv with layers of PyTorch Geometric
(pip install 'quatsphere[graphs]'); on a busy machine use --threads 1 and its CPU times. gpu measures both
models on a CUDA or ROCm GPU, eager and compiled, and prints a summary to paste into an issue.
docs/performance.md has the method and the schema of the JSON."""
SUBJECTS = ("kernel", "step", "inference", "scaling")
ON_REQUEST = ("graphs", "gpu")
"""Subjects that run only when named: they need further packages or a GPU."""
GPU_JSON = "quatsphere-gpu.json"
"""Default file for the numbers of a GPU."""


def run(words: list[str]) -> int:
    """Measure, print, compare and save."""
    parser = Parser(prog="quatsphere bench", description=__doc__, epilog=_EPILOG)
    add = parser.add_argument
    add("subject", nargs="?", choices=SUBJECTS + ON_REQUEST, help="what to measure (default: all but graphs and gpu)")
    number = at_least(1)
    add("--json", metavar="FILE", help="save the numbers; 'quatsphere figures --bench FILE' draws them")
    add("--compare", metavar="FILE", help="compare with numbers saved by --json")
    add("--batch", type=number, metavar="N", help="images or feature sets per pass [16, 64, 1 and 256; 128 on a GPU]")
    add("--size", choices=("paper", "lite", "study"), default="paper", help="model size [paper]")
    add("--rounds", type=number, metavar="N", default=20, help="number of timed rounds [20]")
    add("--threads", type=number, metavar="N", help="threads of torch and the kernels [torch's choice]")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 adds autocast rows [fp32]")
    add("--compile", action="store_true", help="add torch.compile'd rows (needs a C++ compiler)")
    add("--no-memory", action="store_true", help="do not measure peak memory (faster)")
    add("--vertices", type=number, nargs="+", metavar="N", help="sizes for scaling [1,280 to 100,000]")
    add("--nodes", type=number, nargs="+", metavar="N", help="nodes for graphs [256 to 16,384]")
    add("--degree", type=number, nargs="+", metavar="N", help="degrees for graphs [4 to 64]")
    add("--dim", type=number, metavar="N", default=256, help="feature dimension for scaling [256]")
    add("--picture", metavar="FILE", help="draw the results of scaling (SVG, PDF or PNG)")
    args = parser.parse_args(words)
    if args.subject == "gpu":
        args.json = args.json or GPU_JSON
    for path in filter(None, (args.json, args.picture)):
        if not Path(path).parent.is_dir():
            raise ConfigError(f"no folder {str(Path(path).parent)!r} for {path}; create it or use another")
    before = _read(args.compare) if args.compare else None
    record = _measure(args)
    from quatsphere.bench.tables import print_comparison, print_record

    print_record(record)
    if before is not None:
        print_comparison(before, record)
    _save(record, args)
    return 0


def _read(path: str) -> dict[str, Any]:
    """Read a saved record."""
    from quatsphere.bench.measure import RECORD_SHAPE
    from quatsphere.report.run_files import read_json_object

    content = read_json_object(Path(path), RECORD_SHAPE)
    if content is None:
        raise ConfigError(f"no saved measurements in {path}; make them with 'quatsphere bench --json FILE'")
    return content


def _measure(args: Any) -> dict[str, Any]:
    """Measure the chosen subjects."""
    import torch

    from quatsphere.bench.measure import BenchSettings, bench
    from quatsphere.cli.console import note

    if args.threads:
        torch.set_num_threads(args.threads)
    settings = BenchSettings(
        batch=args.batch,
        rounds=args.rounds,
        compiled=args.compile,
        bf16=args.precision == "bf16",
        memory=not args.no_memory,
        dim=args.dim,
        nodes=args.nodes or (),
        degrees=args.degree or (),
        overrides={} if args.size == "paper" else {"size": args.size},
        **({"vertices": args.vertices} if args.vertices else {}),
    )
    return bench([args.subject] if args.subject else SUBJECTS, settings, note)


def _save(record: dict[str, Any], args: Any) -> None:
    """Write the JSON file and the picture."""
    if args.json:
        from quatsphere.storage.sealed_json import write_sealed

        write_sealed(Path(args.json), record)
        print(f"figures: {args.json}")
    if args.picture and record.get("scaling"):
        try:
            from quatsphere.report.figures import save, scaling_plot
        except ImportError as error:
            raise ConfigError("a picture needs matplotlib; pip install 'quatsphere[report]'") from error
        save(scaling_plot(record["scaling"]), Path(args.picture))
        print(f"picture: {args.picture}")
