"""Compiled code that calls a team of torch's OpenMP threads by itself: no thread needs Python to begin.

`share_out` (`numba_threads`) enters Python in every thread, and one waits there for the lock while the other gets
ready: a tenth of a millisecond, which is much where a whole step of one image takes half of one. Here the arguments are
taken apart once; the threads take shares by a counter until none is left. Who computes a share never changes a result.
"""

from typing import Any

from numba import types
from numba.core import cgutils

from quatsphere.kernels.numba_vector import address_of, instruction, ir


@instruction
def run_team(typingctx: Any, openmp: Any, threads: Any, function: Any, arguments: Any) -> Any:
    """function(arguments) in so many threads; `openmp` is the address of GOMP_parallel."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        inner_sig = function.get_call_type(context.typing_context, (arguments,), {})
        result = function.dispatcher.get_compile_result(inner_sig)
        context.add_linking_libs([result.library])
        target = context.declare_function(builder.module, result.fndesc)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte])
        body = ir.Function(builder.module, kind, name=builder.module.get_unique_name("team"))
        body.linkage = "internal"
        inside = ir.IRBuilder(body.append_basic_block("entry"))
        packed = inside.load(inside.bitcast(body.args[0], args[3].type.as_pointer()))
        context.call_conv.call_function(inside, target, inner_sig.return_type, inner_sig.args, [packed])
        inside.ret_void()
        call = ir.FunctionType(ir.VoidType(), [kind.as_pointer(), byte, number, number]).as_pointer()
        slot = builder.bitcast(cgutils.alloca_once_value(builder, args[3]), byte)
        team = builder.trunc(args[1], number)
        builder.call(builder.inttoptr(args[0], call), [body, slot, team, number(0)])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, function, arguments), code


def _part_of(context: Any, builder: Any, kind: Any, value: Any, share: Any, shares: Any) -> Any:
    """The share's part of an array, or of every array of a tuple."""
    if isinstance(kind, types.BaseTuple):
        values = cgutils.unpack_tuple(builder, value)
        parts = [_part_of(context, builder, kind[n], each, share, shares) for n, each in enumerate(values)]  # type: ignore[index]
        return context.make_tuple(builder, kind, parts)
    array = cgutils.create_struct_proxy(kind)(context, builder, value=value)
    count = builder.sdiv(array.nitems, shares)
    array.data = builder.gep(array.data, [builder.mul(share, count)])
    array.nitems, array.shape = count, cgutils.pack_array(builder, [count])
    return array._getvalue()


@instruction
def part_of(typingctx: Any, room: Any, share: Any, shares: Any) -> Any:
    """What of every flat array of a tuple belongs to one of so many shares."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _part_of(context, builder, room, *args)

    return room(room, types.intp, types.intp), code


@instruction
def take_number(typingctx: Any, counters: Any, index: Any) -> Any:
    """counters[index], one more for the next: each number goes to one thread only."""

    def code(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address_of(context, builder, counters, args[0], args[1])
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(counters, types.intp), code
