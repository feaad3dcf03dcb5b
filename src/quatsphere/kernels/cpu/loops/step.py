"""A whole QSV step in one pass: fields of sources and targets, attention, Hamilton feed-forward block, residual.

After the first product of the perturbation network, images and heads are independent until the next step. A task is
therefore a few images, or one block of eight heads if there are few images, and runs all loops of the step: one call,
one parallel region, no barrier. The loops and their order are those of the separate operators, so results are
bit-identical.
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels.cpu.loops import LANES, attention, feed_forward, field
from quatsphere.kernels.cpu.loops.attention import AttentionArrays, AttentionSizes, attend_targets, lift_sources
from quatsphere.kernels.cpu.loops.feed_forward import FeedForwardSizes, feed_forward_range
from quatsphere.kernels.cpu.loops.field import FieldArrays, FieldSizes, perturb_range
from quatsphere.kernels.cpu.loops.jit import compiled, inlined, not_inlined
from quatsphere.kernels.cpu.loops.neighbour_sums import ResidualInput
from quatsphere.kernels.cpu.loops.paired_feed_forward import PairedWeights
from quatsphere.kernels.cpu.loops.simd import pointers
from quatsphere.kernels.cpu.loops.threads import (
    ScratchSpec,
    fetch_add,
    openmp_address,
    parallel_region,
    scratch_for,
    thread_count,
    thread_slice,
)

WORK_PER_ELEMENT = 8
"""Cost of an output element of the step relative to the other loops; with it, one image is worth two threads."""
IMAGES_PER_TASK = 3
"""Images that stay in a thread's cache; their tokens fill whole blocks if the number of vertices is a multiple of 8."""


class ShellArguments(NamedTuple):
    """Perturbation arguments of one shell; a step within a shell has a second shell without vertices."""

    sizes: FieldSizes
    bound: float
    arrays: FieldArrays

    def with_arrays(self, hidden: Any, out: Any) -> "ShellArguments":
        """The same shell with other hidden rows and output."""
        return self._replace(arrays=self.arrays._replace(hidden=hidden, out=out))


class PostBlock(NamedTuple):
    """The Hamilton block after the attention (`PackedWeights` or `PairedWeights`), its dropout mask, the residual."""

    sizes: FeedForwardSizes
    weights: Any
    keep: Any
    residual: ResidualInput


class StepArguments(NamedTuple):
    """All inputs of a step."""

    shells: tuple[ShellArguments, ShellArguments]
    inputs: AttentionArrays
    sizes: AttentionSizes
    post: PostBlock


@not_inlined
def perturb_images(images, blocks, shell, scratch):
    """Field of one shell."""
    tiles = 0, (shell.sizes.vertices + LANES - 1) // LANES
    perturb_range(tiles, images, blocks, shell.sizes, shell.bound, shell.arrays, scratch)


@not_inlined
def attend_images(images, blocks, inputs, sizes, tables, scratch, out):
    """Attention for a range of images and blocks of heads."""
    all_blocks = (sizes.heads + LANES - 1) // LANES
    for group in range(images[0] // sizes.packed, (images[1] + sizes.packed - 1) // sizes.packed):
        for block in range(*blocks):
            item, zero = group * all_blocks + block, block - block
            lift_sources(inputs, sizes, item, zero, sizes.sources, tables)
            attend_targets(inputs, sizes, item, zero, sizes.targets, tables, scratch, out)


@not_inlined
def feed_forward_images(images, heads, sizes, post, block, x, out):
    """Hamilton block and residual for a range of images and heads; the last block of tokens ends with the images."""
    s, tokens = post.sizes, (images[0] * sizes.targets, images[1] * sizes.targets)
    limited = FeedForwardSizes(tokens[1], s.chunk, s.heads, s.channels, s.narrow, s.wide, s.dropped, s.keep_scale)
    feed_forward_range(tokens, heads, limited, post.weights, block, x, post.keep, post.residual, out)


@inlined
def step_range(images, blocks, arguments, scratch, aggregated, out):
    """The step for a range of images and blocks of heads; scratch = (field, tables, attention, feed-forward)."""
    shells, inputs, sizes, post = arguments
    perturb_images(images, blocks, shells[0], scratch[0])
    perturb_images(images, blocks, shells[1], scratch[0])
    attend_images(images, blocks, inputs, sizes, scratch[1], scratch[2], aggregated)
    heads = blocks[0] * LANES, min(blocks[1] * LANES, sizes.heads)
    feed_forward_images(images, heads, sizes, post, scratch[3], aggregated, out)


@inlined
def step_tasks(context):
    """One thread's work: tasks of `task_images` images (0: one block of heads), taken from a shared counter."""
    counters, threads, task_images, arguments, scratch, aggregated, out = context
    sizes = arguments.sizes
    images, blocks = sizes.images, (sizes.heads + LANES - 1) // LANES
    tasks = (images + task_images - 1) // task_images if task_images > 0 else blocks
    zero, own = images - images, pointers(thread_slice(scratch, fetch_add(counters, 1), threads))
    task = fetch_add(counters, 0)
    while task < tasks:
        some_images, some_blocks = (zero, images), (zero, blocks)
        if task_images > 0:
            some_images = task * task_images, min((task + 1) * task_images, images)
        else:
            some_blocks = task, task + 1
        step_range(some_images, some_blocks, arguments, own, aggregated, out)
        task = fetch_add(counters, 0)


@compiled
def step_parallel(openmp, threads, counters, task_images, arguments, scratch, aggregated, out):
    """The step on a team of torch's threads."""
    context = counters, threads, task_images, pointers(arguments), scratch, pointers(aggregated), pointers(out)
    parallel_region(openmp, threads, step_tasks, context)


def run_step(arguments: StepArguments, aggregated: Any, out: Any) -> None:
    """Run a step in one parallel region or, if it has fewer tasks than threads, as separate loops."""
    shells, inputs, sizes, post = arguments
    threads, openmp = thread_count(out.size * WORK_PER_ELEMENT), openmp_address()
    if openmp and max(sizes.images, sizes.blocks) >= threads:
        paired = isinstance(post.weights, PairedWeights)
        scratch = scratch_for(
            0, ScratchSpec(_allocate, (shells[0].sizes, sizes, post.sizes, paired, out.dtype, threads))
        )
        task_images = 0 if sizes.images < threads else min(IMAGES_PER_TASK, -(-sizes.images // threads))
        task_images += -task_images % sizes.packed  # whole items
        step_parallel(openmp, threads, np.zeros(2, np.int64), task_images, arguments, scratch, aggregated, out)
        return
    for shell in shells:
        field.run_perturb(*shell)
    attention.run_attention(inputs, sizes, aggregated)
    feed_forward.run_feed_forward(post.sizes, post.weights, aggregated, post.keep, post.residual, out)


def _allocate(
    source: FieldSizes, sizes: AttentionSizes, post: FeedForwardSizes, paired: bool, dtype: Any, threads: int
) -> tuple[Any, ...]:
    return (
        *field.allocate_field_scratch(source, dtype, threads),
        *attention.allocate_attention(sizes, dtype, False, threads),
        *feed_forward.allocate_block(post, dtype, paired, threads),
    )
