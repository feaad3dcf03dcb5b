"""Speed of the attention kernel over a real graph against a regular graph with as many edges, interleaved.

The nodes of the graph are the modules of the installed Python packages, its edges their imports, read from the source.
Its degrees are very uneven: most modules import a few others, and some are imported by hundreds. Targets receive from
the modules they import and from themselves; with `--reverse` from the modules that import them.

    python benchmarks/ragged_graphs.py                      # forward and backward, best of 15 rounds
    python benchmarks/ragged_graphs.py --reverse --batch 4
    python benchmarks/ragged_graphs.py --rotations          # with a unit quaternion per edge
    python benchmarks/ragged_graphs.py --threads 1          # CPU time, for a machine with other load

Rows: `real` is the graph as CSR; `regular` has the same number of nodes and k = edges / nodes neighbours each (rounded
up), drawn as in the real graph; `padded` is the real graph as a table with -1; `linear` doubles the edges of `real`.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from quatsphere import quaternion_attention, to_csr
from quatsphere.geometry.quaternion import random_unit


def import_graph(folder: Path, packages: tuple[str, ...]) -> Tensor:
    """Edges (2, E) imported module -> importing module, and every module -> itself."""
    files = {_module_name(folder, path): path for name in packages for path in sorted((folder / name).rglob("*.py"))}
    number = {name: index for index, name in enumerate(files)}
    edges = {(index, index) for index in number.values()}
    for name, path in files.items():
        for imported in _imports(name, path):
            if imported in number:
                edges.add((number[imported], number[name]))
    return torch.tensor(sorted(edges)).t().contiguous()


def _module_name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(name: str, path: Path) -> set[str]:
    """Names of modules, or of things in modules, that a file imports."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return set()
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found |= {start} | {f"{start}.{alias.name}" for alias in node.names}
    return found


def contenders(edges: Tensor, asked: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """One forward and backward pass per name."""
    generator = torch.Generator().manual_seed(0)
    nodes = int(edges.max()) + 1
    rows, source, _ = to_csr(edges, nodes)
    degrees = rows[1:] - rows[:-1]
    k = -(-len(source) // nodes)
    draw = torch.randint(0, len(source), (nodes, k), generator=generator)
    table = torch.full((nodes, int(degrees.max())), -1)
    target = torch.arange(nodes).repeat_interleave(degrees)
    table[target, torch.arange(len(source)) - rows[target]] = source
    twice = rows * 2, source.repeat_interleave(2)
    graphs = {"real": (rows, source), "regular": source[draw], "padded": table, "linear": twice}
    shape, Q = (asked.batch, nodes, asked.heads), asked.channels // 4
    field = random_unit(*shape, generator=generator).requires_grad_()
    features = torch.randn(*shape, Q, 4, generator=generator).requires_grad_()
    beta = torch.ones(asked.heads).requires_grad_()

    def one(graph: Tensor | tuple[Tensor, Tensor]) -> Callable[[], None]:
        shape = graph[1].shape if isinstance(graph, tuple) else graph.shape
        u = random_unit(*shape, generator=generator) if asked.rotations else None

        def run() -> None:
            out = quaternion_attention(field, field, features, graph, beta, edge_rotation=u)
            if asked.backward:
                torch.autograd.grad(out, (field, features, beta), out)

        return run

    return {name: one(graph) for name, graph in graphs.items()}


def main() -> None:
    """Print times and their ratios to `regular`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", default="torch,scipy", help="whose modules are nodes")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--channels", type=int, default=16, help="per head, a multiple of 4")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reverse", action="store_true")
    parser.add_argument("--rotations", action="store_true")
    parser.add_argument("--forward", dest="backward", action="store_false", help="no backward pass")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    folder = Path(torch.__file__).parents[1]
    packages = tuple(name for name in asked.packages.split(",") if (folder / name).is_dir())
    print(f"reading imports of {', '.join(packages)} ...", file=sys.stderr, flush=True)
    edges = import_graph(folder, packages)
    edges = edges.flip(0) if asked.reverse else edges
    runs = contenders(edges, asked)
    best = {name: [float("inf"), float("inf")] for name in runs}
    for turn in range(asked.rounds + 2):
        for name, run in runs.items():
            start, cpu = time.perf_counter(), time.process_time()
            run()
            taken = time.perf_counter() - start, time.process_time() - cpu
            if turn >= 2:  # the first two rounds compile and warm up
                best[name] = [min(pair) for pair in zip(best[name], taken, strict=True)]
    degrees = torch.bincount(edges[1])
    spread = f"degrees {int(degrees.min())}..{int(degrees.max())}, median {int(degrees.median())}"
    facts = {
        "nodes": len(degrees),
        "edges": edges.shape[1],
        "degrees": spread,
        "threads": asked.threads,
        "milliseconds": {name: round(1e3 * wall, 3) for name, (wall, _) in best.items()},
        "cpu_milliseconds": {name: round(1e3 * cpu, 3) for name, (_, cpu) in best.items()},
        "times_regular": {name: round(wall / best["regular"][0], 3) for name, (wall, _) in best.items()},
        "times_regular_cpu": {name: round(cpu / best["regular"][1], 3) for name, (_, cpu) in best.items()},
    }
    if asked.json:
        print(json.dumps(facts))
        return
    print(
        f"{facts['nodes']:,} nodes, {facts['edges']:,} edges, {spread}; {asked.threads} threads, best of {asked.rounds}"
    )
    for name, (wall, cpu) in best.items():
        ratios = f"{wall / best['regular'][0]:.2f} x regular by the clock, {cpu / best['regular'][1]:.2f} x by CPU time"
        print(f"{name:8} {1e3 * wall:8.2f} ms {1e3 * cpu:8.2f} CPU ms   {ratios}")


if __name__ == "__main__":
    main()
