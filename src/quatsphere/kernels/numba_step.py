"""A whole step of QSV in one pass: fields of sources and targets, kernel, Hamilton block, residual.

After the first product of the perturbation network neither images nor heads have anything to do with each other until
the next step. So a share of the work is some images or, where there are few, some blocks of eight heads, from the first
loop to the last: one call, one parallel region, no thread waits for another. The loops are those of the parts, in the
same order within a result: the bits are the same.
"""

from typing import Any, NamedTuple

from quatsphere.kernels import numba_attention_parallel as attention
from quatsphere.kernels import numba_field as field
from quatsphere.kernels import numba_hamilton as hamilton
from quatsphere.kernels.numba_attention import Inputs, Sizes, attend_targets, lift_sources
from quatsphere.kernels.numba_field import FieldArrays, FieldSizes, perturb_part
from quatsphere.kernels.numba_hamilton import Matrices, Widths, feed_part, make_block
from quatsphere.kernels.numba_rows import Onto
from quatsphere.kernels.numba_threads import Part, Room, compiled, share_out, worthwhile
from quatsphere.kernels.numba_vector import LANES

WORK = 8
"""What a number of the result costs here, in numbers that other loops write: a step of one image is worth two threads."""


class Shell(NamedTuple):
    """The field of one end of a step; no vertices: a step within a shell has one end."""

    sizes: FieldSizes
    bound: float
    arrays: FieldArrays


class Post(NamedTuple):
    """The Hamilton block after the kernel, its dropout and its residual."""

    widths: Widths
    matrices: Matrices
    keep: Any
    onto: Onto


@compiled
def propagate(images, blocks, shells, inputs, sizes, post, room, aggregated, out):  # type: ignore[no-untyped-def]
    """The step for these images and blocks of heads; room = (field's, tables, kernel's, Hamilton block's)."""
    heads = blocks[0] * LANES, min(blocks[1] * LANES, sizes.heads)
    for shell in shells:
        tiles = 0, (shell.sizes.vertices + LANES - 1) // LANES
        perturb_part(tiles, images, blocks, shell.sizes, shell.bound, shell.arrays, room[0])
    for image in range(*images):
        for block in range(*blocks):
            item, zero = image * ((sizes.heads + LANES - 1) // LANES) + block, block - block
            lift_sources(inputs, sizes, item, zero, sizes.sources, room[1])
            attend_targets(inputs, sizes, item, zero, sizes.targets, room[1], room[2], aggregated)
    w, tokens = post.widths, (images[0] * sizes.targets, images[1] * sizes.targets)
    widths = Widths(tokens[1], w.heads, w.channels, w.narrow, w.wide, w.dropped, w.keep_scale)
    feed_part(tokens, heads, widths, post.matrices, room[3], aggregated, post.keep, post.onto, out)


def propagate_all(shells: tuple[Shell, Shell], inputs: Inputs, sizes: Sizes, post: Post, aggregated: Any, out: Any) -> None:
    """The step of all images, shared out whole; where that gives too few shares, part by part."""
    images, blocks = (0, sizes.images), (0, sizes.blocks)

    def some_images(part: Part, *room: Any) -> None:
        propagate(part, blocks, shells, inputs, sizes, post, room, aggregated, out)

    def some_heads(part: Part, *room: Any) -> None:
        propagate(images, part, shells, inputs, sizes, post, room, aggregated, out)

    room = Room(_make_room, (shells[0].sizes, sizes, post.widths, out.dtype))
    threads = worthwhile(out.size * WORK)
    if sizes.images >= threads:
        share_out(some_images, sizes.images, out.size * WORK, room=room)
    elif sizes.blocks >= threads:
        share_out(some_heads, sizes.blocks, out.size * WORK, room=room)
    else:
        for shell in shells:
            field.perturb_all(*shell)
        attention.attend(inputs, sizes, aggregated)
        hamilton.feed_forward_all(post.widths, post.matrices, aggregated, post.keep, post.onto, out)


def _make_room(source: FieldSizes, sizes: Sizes, widths: Widths, dtype: Any) -> tuple[Any, ...]:
    """What a share needs for itself."""
    kernel = attention.make_room(sizes, dtype, gradients=False)
    return *field.make_scratch(source, dtype), *kernel, *make_block(widths, dtype)
