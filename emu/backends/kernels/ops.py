"""`Ops` inside a Pallas kernel, where a tile's arrays stay in registers.

The arrays have the narrowest type that gives the right bits (`narrowing`). Sums run on the tensor
cores or in ascending order, and those of rows also by halves, in strided lanes or in octets. A
kernel can index memory by a loop's counter, but not an array. So an ascending sum writes its
factors to buffers of its program and reads them back, some lines at a time. 64-bit types must be
enabled while the kernel is traced.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from roundscope.emu.backends.kernels import convert as gpu_convert
from roundscope.emu.backends.kernels import marks, narrowing
from roundscope.emu.backends.kernels.exp import AT_ONCE, exp32, exp32_by_table
from roundscope.emu.backends.kernels.held import (
    FP32,
    FP64,
    Held,
    Machine,
    computed,
    held_as,
    in_binary64,
)
from roundscope.emu.backends.kernels.instructions import instructions
from roundscope.emu.backends.ops import Ops
from roundscope.emu.backends.xla.ops import bits_of, guarded, number_of, rounded, xla_ops
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BINARY32, Rounding, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate
from roundscope.emu.sums.odd import sum_to_round

UNROLL = 8  # the number of additions in a turn of a loop; their factors are read ahead
# the number of products that a multiprocessor's threads add to a sum in one turn of a loop; their
# factors fit into the threads' registers
DEPTH = 16
# the largest number of columns of a row that is added up in registers; each column adds traced
# instructions
COLUMNS = 32
TO_ODD = rounding("fp32", "to-odd")
TYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, FP32: jnp.float32, FP64: jnp.float64}
# two square buffers for each type of array, by the name of the format
Buffers = Mapping[str, tuple[Any, Any]]


def types(on_gpu: bool) -> dict[str, Any]:
    """Return the types of arrays, by format.

    On a CPU all are float64, since a CPU may flush the subnormal numbers of narrower types.
    """
    return TYPES if on_gpu else dict.fromkeys(TYPES, jnp.float64)


def kernel_ops(of_warpgroups: bool = False) -> Ops:
    """Return the `Ops` record for functions that `emu.backends.kernels.narrowing.narrowed` runs.

    of_warpgroups: whether the lanes of a row are threads, so that no array has an axis for them,
    and there is no binary64.
    """
    return Ops(
        xp=jnp,
        round=marks.round_event,
        round_blocks=_refused("a block format"),
        transposed=marks.transposed,
        odd_sum=marks.odd_sum,
        multiply=marks.product,
        hidden=lambda x: x,
        divide=_refused("a block format"),
        bits=bits_of,
        from_bits=number_of,
        scan=_refused("a loop over an array"),
        when=_refused("a mask"),
        call=marks.function,
        native=_refused("a native sum"),
        aligned=_refused("a sum of other factors"),
        ascending=_refused("a sum of other factors"),
        stats=_refused("events summarized together"),
        seen=marks.seen,
        own_sum=marks.total,
        in_lanes=marks.in_lanes if of_warpgroups else None,
        in_pairs=marks.in_pairs if of_warpgroups else None,
        absent=marks.absent if of_warpgroups else None,
    )


def _refused(what: str) -> Any:
    """Return a function that raises NotImplementedError for what a kernel cannot do."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{what} inside a kernel")

    return refuse


def kernel_machine(
    zero: Array,
    buffers: Buffers,
    on_gpu: bool,
    exps_at_once: int = AT_ONCE,
    exps: Array | None = None,
) -> Machine:
    """Return the machine that does the arithmetic of one program.

    zero          an int64 0 that was read from memory, so that no compiler sees through it
    buffers       memory of the program, for the types of arrays that sums write to memory
    on_gpu        whether the kernel uses a GPU's instructions and tensor cores, or, interpreted,
                  models
    exps_at_once  how many exps a thread computes at the same time: fewer where registers are short
    exps          the address of the table of `emu.backends.kernels.exp`, or None without a table
    """
    multiply = gpu_convert.multiplied if on_gpu else partial(guarded, zero)
    wide = replace(xla_ops(zero), multiply=multiply)

    def by_rule(x: Array, name: str) -> Array:
        return _round(exp64(wide, x), BINARY32)

    return Machine(
        types=types(on_gpu),
        combined=gpu_convert.combined if on_gpu else partial(_combined, multiply),
        fused=gpu_convert.fused if on_gpu else partial(_fused_by_rule, wide),
        combined16=gpu_convert.combined16 if on_gpu else partial(_combined16, multiply),
        scaled16=gpu_convert.scaled16 if on_gpu else partial(_combined16, multiply, "mul"),
        narrow=gpu_convert.narrowed_to if on_gpu else _round,
        narrow32=gpu_convert.narrowed32 if on_gpu else _round,
        exponential=exp64,
        exp=partial(_exp, zero, exps, exps_at_once) if on_gpu else by_rule,
        instructions=instructions(on_gpu),
        odd_sum=wide.odd_sum,
        round=_converted if on_gpu else _round,
        multiply=multiply,
        divide=gpu_convert.divided if on_gpu else jnp.divide,
        function=lambda f, x: f(wide, x),
        total=partial(_total, wide, buffers, on_gpu),
    )


def _round(x: Array, r: Rounding, random: Array | None = None) -> Array:
    return x if r.is_identity else rounded(x, r, random)


def _converted(x: Array, r: Rounding, random: Array | None = None) -> Array:
    result = gpu_convert.converted(x, r)
    return _round(x, r, random) if result is None else result


def _exp(zero: Array, exps: Array | None, at_once: int, x: Array, name: str) -> Array:
    if exps is not None and name == "bf16":
        return exp32_by_table(x, exps)
    return exp32(x, name, zero, at_once)


def _combined(multiply: Any, operation: str, a: Array, b: Array, to_odd: bool) -> Array:
    """Return what `convert.combined` returns, computed by the rule.

    binary64 holds every product of binary32 numbers exactly. A sum or a quotient may round to
    binary64 first, which does not change its rounding to binary32.
    """
    return _round(in_binary64(multiply, operation, a, b), TO_ODD if to_odd else BINARY32)


def _fused_by_rule(wide: Ops, a: Array, b: Array, c: Array) -> Array:
    """Return what `convert.fused` returns, computed by the rule."""
    return _round(wide.odd_sum(wide.multiply(a, b), c), BINARY32)


def _combined16(multiply: Any, operation: str, a: Array, b: Array, r: Rounding) -> Array:
    """Return what `convert.combined16` returns, computed by the rule."""
    return _round(in_binary64(multiply, operation, a, b), r)


def barrier(on_gpu: bool) -> None:
    """Make the threads of a program wait for each other, so that each sees what the others wrote.

    An interpreter has one thread.
    """
    if on_gpu:
        triton.debug_barrier()


def _total(
    wide: Ops,
    buffers: Buffers,
    on_gpu: bool,
    machine: Machine,
    acc: Accumulator,
    a: Held,
    b: Held,
    init: Held,
) -> Held:
    """Return init + a @ b, where a has the shape (T, K) and b the shape (K, N).

    In the orders HALVES and STRIDED, K must be a power of two and b must be a column of ones, so
    that the function returns row sums.
    """
    if _are_products(acc, a, b):
        return _row_sums_of_products(wide, on_gpu, machine, acc, a, init)
    a = computed(machine, a)
    if acc.order in (Order.HALVES, Order.STRIDED):
        return _by_halves(wide, on_gpu, machine, acc, a, computed(machine, init))
    is_row_sum = acc == Accumulator() and b.uniform == 1.0 and b.shape[1] == 1
    if is_row_sum and _is_binary32(a) and a.shape[1] <= COLUMNS:
        return _column_by_column(wide, on_gpu, machine, acc, a, init)
    init = computed(machine, init)
    if acc.alignment is None:
        return _ascending(wide, buffers, on_gpu, machine, acc, a, b, init)
    if on_gpu:
        return _on_tensor_core(machine, acc, a, b, init)
    factors = (held_as(machine, v, FP64) for v in (a, b, init))
    return Held(array=_modelled(wide, acc, *factors), format=FP32)


def _on_tensor_core(machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held) -> Held:
    """Return init + a @ b by the tensor cores, whatever JAX's default matmul precision is.

    Triton makes init the first term of its sum, so that no other addition remains (its pass is
    TritonCombineOps).
    """
    assert acc.alignment is not None
    name = acc.alignment.operand.name
    x, y = (held_as(machine, v, FP32 if name == "tf32" else name) for v in (a, b))
    product = triton.dot(x, y, precision=lax.Precision.DEFAULT)
    return Held(array=product + held_as(machine, init, FP32), format=FP32)


def _by_halves(
    wide: Ops, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held
) -> Held:
    """Return the sum of each row, by halves; the number of columns must be a power of two.

    In the order STRIDED columns that are `chunk` apart are added first, from the left to the right,
    and the first of them is rounded.
    """
    single = acc.step == BINARY32 and FP64 not in (a.format, init.format)
    x = held_as(machine, a, FP32 if single else FP64)
    if acc.order is Order.STRIDED:
        x, *others = _cut(on_gpu, x, acc.chunk)
        x = x if single else machine.round(x, acc.step, None)
        for y in others:
            if single:
                x = machine.combined("add", x, y, False)
            else:
                x = _added(wide, machine, acc.step, x, y)
    while x.shape[1] > 1:
        if single and on_gpu:
            x = x.reshape(-1, 2, x.shape[1] // 2).sum(axis=1)  # two numbers have only one order
        else:
            x = _added(wide, machine, acc.step, *_halves(on_gpu, x))
    if single:
        total = narrowing.promised(machine, "add", (init, Held(array=x, format=FP32)))
        return narrowing.rounded(machine, total, acc.step)
    return Held(array=_added(wide, machine, acc.step, held_as(machine, init, FP64), x), format=FP64)


def _halves(on_gpu: bool, x: Array) -> tuple[Array, Array]:
    """Return the left and the right half of each row.

    A kernel cannot slice an array, but it can add along an axis; and x + -0 is x for every x.
    """
    half = x.shape[1] // 2
    if not on_gpu:
        return x[:, :half], x[:, half:]
    pairs = x.reshape(-1, 2, half)
    is_left = lax.broadcasted_iota(jnp.int32, pairs.shape, 1) == 0
    return jnp.where(is_left, pairs, -0.0).sum(axis=1), jnp.where(is_left, -0.0, pairs).sum(axis=1)


def _are_products(acc: Accumulator, a: Held, b: Held) -> bool:
    """Return whether a sum adds up rows of products of binary32 numbers, in binary32."""
    return (
        acc.step == BINARY32
        and acc.order in (Order.ASCENDING, Order.OCTETS)
        and b.uniform == 1.0
        and a.made is not None
        and a.made[0] == "mul"
        and all(_is_binary32(x) for x in a.made[1])
    )


def _row_sums_of_products(
    wide: Ops, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held
) -> Held:
    """Return the sum of each row of products x y, one multiply-add after another.

    The number of columns is a power of two. In the order OCTETS, lane n adds up the columns 8 n to
    8 n + 7, then the eight columns that come 8 * lanes places later, and so on.
    """
    assert a.made is not None
    factors = [held_as(machine, v, FP32) for v in a.made[1]]
    if acc.order is Order.ASCENDING:
        pairs = zip(*(_cut(on_gpu, v, 1) for v in factors), strict=True)
        return _multiplied_up(machine, held_as(machine, init, FP32), pairs)
    lanes = min(acc.chunk, factors[0].shape[1] // 8)
    pairs = zip(*(_by_octets(on_gpu, v, lanes) for v in factors), strict=True)
    x, y = next(pairs)
    own = _multiplied_up(machine, machine.combined("mul", x, y, False), pairs)
    halves = replace(acc, order=Order.HALVES)
    return _by_halves(wide, on_gpu, machine, halves, own, computed(machine, init))


def _multiplied_up(machine: Machine, total: Array, pairs: Iterator[tuple[Array, Array]]) -> Held:
    """Return total plus the products of all pairs, by one multiply-add after another."""
    for x, y in pairs:
        total = machine.fused(x, y, total)
    return Held(array=total, format=FP32)


def _by_octets(on_gpu: bool, x: Array, lanes: int) -> list[Array]:
    """Return the numbers that each lane adds up, in order: arrays (rows, lanes)."""
    rows, width = x.shape
    columns = _cut(on_gpu, x.reshape(rows * width // 8, 8), 1)
    parts = [_cut(on_gpu, column.reshape(rows, width // 8), lanes) for column in columns]
    return [column for page in zip(*parts, strict=True) for column in page]


def _cut(on_gpu: bool, x: Array, columns: int) -> Iterator[Array]:
    """Yield x in parts of so many columns or fewer, from the left to the right.

    The number of columns is a power of two, and so is that of a part. A part is computed when its
    turn comes, so few of them need registers at once.
    """
    if x.shape[1] <= columns:
        yield x
    else:
        for half in _halves(on_gpu, x):
            yield from _cut(on_gpu, half, columns)


def _column_by_column(
    wide: Ops, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held
) -> Held:
    """Return the ascending sum of each row in registers; its length must be a power of two."""
    parts = list(_cut(on_gpu, held_as(machine, a, FP32), 1))
    if init.made is not None and init.made[0] == "mul":
        first, second = (held_as(machine, y, FP32) for y in init.made[1])
        total = machine.fused(first, second, parts[0])
    elif computed(machine, init).format == FP64:
        own, first = held_as(machine, init, FP64), parts[0].astype(machine.types[FP64])
        total = _added(wide, machine, acc.step, own, first).astype(machine.types[FP32])
    else:
        total = machine.combined("add", held_as(machine, init, FP32), parts[0], False)
    for x in parts[1:]:
        total = machine.combined("add", total, x, False)
    return Held(array=total, format=FP32)


def _ascending(
    wide: Ops,
    buffers: Buffers,
    on_gpu: bool,
    machine: Machine,
    acc: Accumulator,
    a: Held,
    b: Held,
    init: Held,
) -> Held:
    """Return init + a @ b in ascending order; the number of columns of a is a multiple of DEPTH.

    If the numbers and the steps are in binary32, fused multiply-adds compute the sum. They are
    Triton's product of float32 matrices at full precision, which adds to one sum in ascending
    order.
    """
    single = acc.step == BINARY32 and init.format != FP64 and _is_binary32(a) and _is_binary32(b)
    name, (rows, width), columns = FP32 if single else FP64, a.shape, b.shape[1]
    if single and width == DEPTH:
        factors = (held_as(machine, v, name) for v in (a, b, init))
        array = _fused(*factors) if on_gpu else _modelled(wide, acc, *factors)
        return Held(array=array, format=FP32)
    left, right = buffers[name]
    x, y = (held_as(machine, v, name) for v in (a, b))
    left[:rows, :width], right[:width, :columns] = x, y
    barrier(on_gpu)  # every thread reads what others wrote

    def fused(n: Array, total: Array) -> Array:
        at = pl.ds(n * DEPTH, DEPTH)
        return _fused(left[:rows, at], right[at, :columns], total)

    def steps(n: Array, total: Array) -> Array:
        for k in range(UNROLL):
            x, y = left[:rows, n * UNROLL + k], right[n * UNROLL + k, :columns]
            total = _added(wide, machine, acc.step, total, wide.multiply(x[:, None], y[None, :]))
        return total

    turn, depth = (fused, DEPTH) if single and on_gpu else (steps, UNROLL)
    total: Array = lax.fori_loop(0, width // depth, turn, held_as(machine, init, name))
    barrier(on_gpu)  # before the buffers are written again
    return Held(array=total, format=name)


def _fused(a: Array, b: Array, init: Array) -> Array:
    """Return init + a @ b of float32 arrays, by fused multiply-adds in ascending order.

    A `mov` instruction copies each factor first. Without it Triton reads factors from memory in a
    way that needs more registers than there are, which takes three times as long.
    """
    a, b = (gpu_convert.instruction("mov.f32 $0, $1;", jnp.float32, x) for x in (a, b))
    product: Array = triton.dot(a, b, precision=lax.Precision.HIGHEST)
    return product + init


def _modelled(wide: Ops, acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """Return init + a @ b by any accumulator, computed in binary64 in an interpreted kernel."""
    total: Array = accumulate(wide, acc, a.T, b, init)
    return total


def _is_binary32(x: Held) -> bool:
    """Return whether all the numbers are known to be binary32 numbers."""
    return x.format != FP64 or x.uniform == 1.0


def _added(wide: Ops, machine: Machine, step: Rounding, a: Array, b: Array) -> Array:
    """Return a + b, rounded as an accumulator's step says and computed in binary64."""
    return machine.round(sum_to_round(wide, step.format.precision, a, b), step, None)
