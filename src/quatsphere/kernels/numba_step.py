"""A whole step of QSV in one pass: fields of sources and targets, kernel, Hamilton block, residual.

After the first product of the perturbation network neither images nor heads have anything to do with each other until
the next step. So a share of the work is some images or, where there are few, some blocks of eight heads, from the first
loop to the last: one call, one parallel region, no thread waits for another. The loops are those of the parts, in the
same order within a result: the bits are the same.
"""

from typing import Any, NamedTuple

import numpy as np

from quatsphere.kernels import numba_attention_parallel as attention
from quatsphere.kernels import numba_field as field
from quatsphere.kernels import numba_hamilton as hamilton
from quatsphere.kernels.numba_attention import Inputs, Sizes, attend_targets, lift_sources
from quatsphere.kernels.numba_field import FieldArrays, FieldSizes, perturb_part
from quatsphere.kernels.numba_hamilton import Matrices, Widths, feed_part
from quatsphere.kernels.numba_rows import Onto
from quatsphere.kernels.numba_team import part_of, run_team, take_number
from quatsphere.kernels.numba_threads import Room, compiled, openmp_address, room_of, worthwhile
from quatsphere.kernels.numba_vector import LANES, inner, separate

WORK = 8
"""What a number of the result costs, in numbers that other loops write: a step of one image is worth two threads."""


IMAGES = 3
"""Images that a thread takes through the step together, while they are in its cache: with whole blocks of tokens, if
their vertices come in eights."""


class Shell(NamedTuple):
    """The field of one end of a step; no vertices: a step within a shell has one end."""

    sizes: FieldSizes
    bound: float
    arrays: FieldArrays

    def of(self, hidden: Any, out: Any) -> "Shell":
        """The same shell for other rows of hidden."""
        return self._replace(arrays=self.arrays._replace(hidden=hidden, out=out))


class Post(NamedTuple):
    """The Hamilton block after the kernel, its dropout and its residual."""

    widths: Widths
    matrices: Matrices
    keep: Any
    onto: Onto


class StepProblem(NamedTuple):
    """Everything a step reads."""

    shells: tuple[Shell, Shell]
    inputs: Inputs
    sizes: Sizes
    post: Post


@separate
def make_field(images, blocks, shell, scratch):  # type: ignore[no-untyped-def]
    """The field of one end."""
    tiles = 0, (shell.sizes.vertices + LANES - 1) // LANES
    perturb_part(tiles, images, blocks, shell.sizes, shell.bound, shell.arrays, scratch)


@separate
def attend_part(images, blocks, inputs, sizes, tables, scratch, out):  # type: ignore[no-untyped-def]
    """The kernel for these images and blocks of heads."""
    every = (sizes.heads + LANES - 1) // LANES
    for image in range(*images):
        for block in range(*blocks):
            item, zero = image * every + block, block - block
            lift_sources(inputs, sizes, item, zero, sizes.sources, tables)
            attend_targets(inputs, sizes, item, zero, sizes.targets, tables, scratch, out)


@separate
def feed_images(images, heads, sizes, post, block, x, out):  # type: ignore[no-untyped-def]
    """Hamilton block and residual of these images and heads; blocks of tokens end with the images."""
    w, tokens = post.widths, (images[0] * sizes.targets, images[1] * sizes.targets)
    widths = Widths(tokens[1], w.chunk, w.heads, w.channels, w.narrow, w.wide, w.dropped, w.keep_scale)
    feed_part(tokens, heads, widths, post.matrices, block, x, post.keep, post.onto, out)


@inner
def propagate(images, blocks, problem, room, aggregated, out):  # type: ignore[no-untyped-def]
    """The step for these images and blocks of heads; room = (field's, tables, kernel's, Hamilton block's)."""
    shells, inputs, sizes, post = problem
    make_field(images, blocks, shells[0], room[0])
    make_field(images, blocks, shells[1], room[0])
    attend_part(images, blocks, inputs, sizes, room[1], room[2], aggregated)
    heads = blocks[0] * LANES, min(blocks[1] * LANES, sizes.heads)
    feed_images(images, heads, sizes, post, room[3], aggregated, out)


@inner
def propagate_shares(arguments):  # type: ignore[no-untyped-def]
    """The shares that this thread gets: `some` images, or without images to share out a block of heads."""
    counters, threads, some, problem, room, aggregated, out = arguments
    sizes = problem.sizes
    images, blocks = sizes.images, (sizes.heads + LANES - 1) // LANES
    shares = (images + some - 1) // some if some > 0 else blocks
    zero, own = images - images, part_of(room, take_number(counters, 1), threads)
    share = take_number(counters, 0)
    while share < shares:
        some_images, some_blocks = (zero, images), (zero, blocks)
        if some > 0:
            some_images = share * some, min((share + 1) * some, images)
        else:
            some_blocks = share, share + 1
        propagate(some_images, some_blocks, problem, own, aggregated, out)
        share = take_number(counters, 0)


@compiled
def propagate_by_team(openmp, threads, counters, some, problem, room, aggregated, out):  # type: ignore[no-untyped-def]
    """The step shared out over torch's threads."""
    run_team(openmp, threads, propagate_shares, (counters, threads, some, problem, room, aggregated, out))


def propagate_all(problem: StepProblem, aggregated: Any, out: Any) -> None:
    """The step of all images, shared out whole; where that gives too few shares, part by part."""
    sizes, post = problem.sizes, problem.post
    threads, openmp = worthwhile(out.size * WORK), openmp_address()
    if openmp and max(sizes.images, sizes.blocks) >= threads:
        room = room_of(0, Room(_make_room, (problem.shells[0].sizes, sizes, post.widths, out.dtype, threads)))
        some = 0 if sizes.images < threads else min(IMAGES, -(-sizes.images // threads))
        propagate_by_team(openmp, threads, np.zeros(2, np.int64), some, problem, room, aggregated, out)
        return
    for shell in problem.shells:
        field.perturb_all(*shell)
    attention.attend(problem.inputs, sizes, aggregated)
    hamilton.feed_forward_all(post.widths, post.matrices, aggregated, post.keep, post.onto, out)


def _make_room(source: FieldSizes, sizes: Sizes, widths: Widths, dtype: Any, shares: int) -> tuple[Any, ...]:
    """What the shares need for themselves, side by side in each array."""
    kernel = attention.make_room(sizes, dtype, False, shares)
    return *field.make_scratch(source, dtype, shares), *kernel, *hamilton.make_block(widths, dtype, shares)
