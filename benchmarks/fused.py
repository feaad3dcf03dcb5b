"""The fused CPU operators against plain torch: forward + backward, interleaved rounds, best and median, ratios.

Sizes are those of the largest cross-shell step (320 -> 384 vertices, k = 16, 16 heads, 4 quaternion channels). Every
round runs every contender once, so that whatever else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quatsphere.geometry import quaternion, sphere
from quatsphere.geometry.neighbours import nearest_neighbours
from quatsphere.kernels import dot_product_attention, quaternion_attention
from quatsphere.kernels.numba_cpu_field import perturb
from quatsphere.kernels.numba_cpu_hamilton import feed_forward

SOURCES, TARGETS, K, HEADS, CHANNELS = 320, 384, 16, 16, 4
BASELINE_HEADS = 6
Contender = Callable[[], Tensor]
SLOW = {"reference"}


def graph() -> Tensor:
    """The neighbours of the largest cross-shell step."""
    return nearest_neighbours(sphere.fibonacci_sphere(TARGETS, 0.4), sphere.fibonacci_sphere(SOURCES, 0.55), K)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def quaternion_kernel(batch: int) -> tuple[dict[str, Contender], list[Tensor]]:
    """Backends, and torch's dense masked attention with as many numbers (head dimension 16)."""
    neighbours, beta = graph(), torch.ones(HEADS, requires_grad=True)
    target = quaternion.random_unit(batch, TARGETS, HEADS).requires_grad_()
    source = quaternion.random_unit(batch, SOURCES, HEADS).requires_grad_()
    features = leaf(batch, SOURCES, HEADS, CHANNELS, 4)
    dense, dense_leaves = dense_attention(batch, HEADS, neighbours)

    def kernel(backend: str) -> Contender:
        return lambda: quaternion_attention(target, source, features, neighbours, beta, backend=backend)

    backends = {name: kernel(name) for name in ("reference", "factored", "numba_cpu")}
    return {**backends, "sdpa, dense mask": dense}, [target, source, features, beta, *dense_leaves]


def dense_attention(batch: int, heads: int, neighbours: Tensor) -> tuple[Contender, list[Tensor]]:
    """torch's scaled_dot_product_attention with the graph as a dense mask."""
    mask = torch.zeros(TARGETS, SOURCES, dtype=torch.bool).scatter_(1, neighbours, True)
    leaves = [leaf(batch, heads, vertices, 16) for vertices in (TARGETS, SOURCES, SOURCES)]
    return lambda: F.scaled_dot_product_attention(*leaves, attn_mask=mask), leaves


def dot_product_kernel(batch: int) -> tuple[dict[str, Contender], list[Tensor]]:
    """The matched baseline's kernel, 6 heads of 16 channels."""
    neighbours = graph()
    leaves = [leaf(batch, vertices, BASELINE_HEADS, 16) for vertices in (TARGETS, SOURCES, SOURCES)]
    dense, dense_leaves = dense_attention(batch, BASELINE_HEADS, neighbours)

    def kernel(backend: str) -> Contender:
        return lambda: dot_product_attention(*leaves, neighbours, backend=backend)

    return {"factored": kernel("factored"), "numba_cpu": kernel("numba_cpu"), "sdpa, dense mask": dense}, [
        *leaves,
        *dense_leaves,
    ]


def field(batch: int) -> tuple[dict[str, Contender], list[Tensor]]:
    """tanh, exponential, product, normalisation of (B, V, H) quaternions."""
    raw, bound = leaf(batch, TARGETS, HEADS, 3), torch.tensor(0.4, requires_grad=True)
    base = quaternion.random_unit(TARGETS, HEADS).requires_grad_()

    def plain() -> Tensor:
        turned = quaternion.multiply(base, quaternion.exp(bound * torch.tanh(raw)))
        return quaternion.normalize(turned, check=False)

    return {"plain": plain, "numba_cpu": lambda: perturb(raw, bound, base)}, [raw, bound, base]


def hamilton(batch: int) -> tuple[dict[str, Contender], list[Tensor]]:
    """Up projection, GELU, down projection per head: token-major einsum, head-major batched products, fused."""
    width = 4 * CHANNELS
    x, up, down = leaf(batch, TARGETS, HEADS, width), leaf(HEADS, 4 * width, width), leaf(HEADS, width, 4 * width)
    head_major = leaf(HEADS, batch * TARGETS, width)

    def plain() -> Tensor:
        hidden = F.gelu(torch.einsum("bvhc,hmc->bvhm", x, up))
        return torch.einsum("bvhm,hcm->bvhc", hidden, down)

    def batched() -> Tensor:
        return F.gelu(head_major @ up.transpose(1, 2)) @ down.transpose(1, 2)

    contenders = {"einsum": plain, "bmm, head-major": batched, "numba_cpu": lambda: feed_forward(x, up, down)}
    return contenders, [x, up, down, head_major]


SUBJECTS = {
    "quaternion kernel": quaternion_kernel,
    "dot-product kernel": dot_product_kernel,
    "field": field,
    "Hamilton FFN": hamilton,
}


def lap(contender: Contender, leaves: list[Tensor]) -> float:
    """Milliseconds of one forward and backward pass."""
    start = time.perf_counter()
    out = contender()
    torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
    return 1000 * (time.perf_counter() - start)


def measure(subject: str, batch: int, rounds: int) -> list[dict[str, object]]:
    """One row per contender; two warm-up rounds; slow ones take part in a quarter of the rounds."""
    contenders, leaves = SUBJECTS[subject](batch)
    laps: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, contender in contenders.items():
            if name in SLOW and number % 4 != 2:
                continue
            laps[name].append(lap(contender, leaves))
    kept = {name: times if name in SLOW else times[2:] for name, times in laps.items()}
    best = {name: min(times) for name, times in kept.items()}
    return [
        {
            "subject": subject,
            "contender": name,
            "best_ms": best[name],
            "median_ms": statistics.median(times),
            "times_fused": best[name] / best["numba_cpu"],
        }
        for name, times in kept.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="images per batch")
    parser.add_argument("--rounds", type=int, default=20, help="interleaved rounds after the warm-up")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch and the kernels")
    parser.add_argument("--only", choices=list(SUBJECTS), help="one subject instead of all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    subjects = [arguments.only] if arguments.only else list(SUBJECTS)
    rows = [row for subject in subjects for row in measure(subject, arguments.batch, arguments.rounds)]
    if arguments.json:
        print(json.dumps({"batch": arguments.batch, "threads": arguments.threads, "rows": rows}))
        return
    print(f"batch {arguments.batch}, {arguments.threads} threads, float32, forward + backward, milliseconds")
    for row in rows:
        print(
            f"{row['subject']:<20}{row['contender']:<18}{row['best_ms']:>9.2f} best{row['median_ms']:>10.2f} median"
            f"{row['times_fused']:>9.1f}x the fused time"
        )


if __name__ == "__main__":
    main()
