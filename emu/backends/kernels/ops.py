"""`Ops` inside a Pallas kernel, where a tile's arrays stay in registers.

They have the narrowest type that gives the bits (`narrowing`). Sums run on the tensor cores, by
halves, or in ascending order. A kernel may not index an array by a loop's counter, only memory: so
an ascending sum writes its factors to buffers of its program and reads them back, some lines at a
time. 64-bit types must be enabled while it is traced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from roundscope.emu.backends.kernels import convert as gpu_convert
from roundscope.emu.backends.kernels import marks, narrowing
from roundscope.emu.backends.kernels.exp import AT_ONCE, exp32
from roundscope.emu.backends.kernels.exp_table import exp32_by_table
from roundscope.emu.backends.kernels.held import FP32, FP64, Held, Machine, held_as, in_binary64
from roundscope.emu.backends.kernels.instructions import instructions
from roundscope.emu.backends.ops import Event, Ops
from roundscope.emu.backends.xla.ops import bits_of, guarded, number_of, rounded, xla_ops
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import BINARY32, Rounding, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order, accumulate
from roundscope.emu.sums.odd import sum_to_round

UNROLL = 8  # additions in a turn of a loop: their factors are read ahead
# products of a sum that a multiprocessor's threads add up in a turn: their factors fit into the
# threads' registers
DEPTH = 16
# the most columns of a row that is added up in registers: each takes instructions to be traced
COLUMNS = 32
TO_ODD = rounding("fp32", "to-odd")
TYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, FP32: jnp.float32, FP64: jnp.float64}
# two square buffers for each type, by the name of the format that an array of it holds
Buffers = Mapping[str, tuple[Any, Any]]


def types(on_gpu: bool) -> dict[str, Any]:
    """Return the types of arrays, by format.

    A CPU may flush subnormal numbers of anything narrower than binary64, so there all are float64.
    """
    return TYPES if on_gpu else dict.fromkeys(TYPES, jnp.float64)


def kernel_ops() -> Ops:
    """Return the record for what `emu.backends.kernels.narrowing.narrowed` runs."""
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
        stats=_events,
        own_sum=marks.total,
    )


def _events(events: Sequence[Event]) -> list[tuple[Array, Array, Array]]:
    """Return events as they are, before and after, and how many of each row exist.

    Those are the first ones of the row: a kernel has no other masks.
    """
    return [
        (before, after, valid.sum(axis=1).astype(jnp.int32)) for before, after, _, valid in events
    ]


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
    """Return what does the arithmetic of one program.

    Args:
        zero: an int64 0 that was read from memory, so that no compiler sees through it (`xla_ops`).
        buffers: memory of the program's own, for the types that it passes through memory.
        on_gpu: whether the kernel runs on a GPU, by its instructions and tensor cores; else it is
            interpreted, with models of them.
        exps_at_once: exps of a thread that are under way together; fewer of them where registers
            are wanted for more than one sum.
        exps: the place of the table of `emu.backends.kernels.exp_table`, if there is one.
    """
    multiply = gpu_convert.multiplied if on_gpu else partial(guarded, zero)
    wide = replace(xla_ops(zero), multiply=multiply)
    return Machine(
        types=types(on_gpu),
        combined=gpu_convert.combined if on_gpu else partial(_combined, multiply),
        fused=gpu_convert.fused if on_gpu else partial(_fused_by_rule, wide),
        combined16=gpu_convert.combined16 if on_gpu else partial(_combined16, multiply),
        scaled16=gpu_convert.scaled16 if on_gpu else partial(_combined16, multiply, "mul"),
        narrow=gpu_convert.narrowed_to if on_gpu else _round,
        narrow32=gpu_convert.narrowed32 if on_gpu else _round,
        exponential=exp64,
        exp=(
            partial(_exp, zero, exps, exps_at_once)
            if on_gpu
            else lambda x, _: _round(exp64(wide, x), BINARY32)
        ),
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
    """Return what `convert.combined` returns, by the rule.

    binary64 holds every product, and a sum rounds to binary32 as if it did.
    """
    return _round(in_binary64(multiply, operation, a, b), TO_ODD if to_odd else BINARY32)


def _fused_by_rule(wide: Ops, a: Array, b: Array, c: Array) -> Array:
    """Return what `convert.fused` returns, by the rule."""
    return _round(wide.odd_sum(wide.multiply(a, b), c), BINARY32)


def _combined16(multiply: Any, operation: str, a: Array, b: Array, r: Rounding) -> Array:
    """Return what `convert.combined16` returns, by the rule."""
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
    """Return init + a @ b; a is (T, K), b (K, N).

    By halves, K is a power of two and b is ones: it is a row sum.
    """
    if acc.order is Order.HALVES:
        return _by_halves(wide, on_gpu, machine, acc, a, init)
    if (
        acc == Accumulator()
        and b.uniform == 1.0
        and b.shape[1] == 1
        and _is_binary32(a)
        and a.shape[1] <= COLUMNS
    ):
        return _column_by_column(wide, on_gpu, machine, acc, a, init)
    if acc.alignment is None:
        return _ascending(wide, buffers, on_gpu, machine, acc, a, b, init)
    if on_gpu:
        return _on_tensor_core(machine, acc, a, b, init)
    return Held(
        array=_modelled(wide, acc, *(held_as(machine, v, FP64) for v in (a, b, init))), format=FP32
    )


def _on_tensor_core(machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held) -> Held:
    """Return init + a @ b by the matrix unit, whatever precision a user asks of JAX's products.

    Triton makes init the first term of its sum, and leaves no other addition (TritonCombineOps).
    """
    assert acc.alignment is not None
    name = acc.alignment.operand.name
    x, y = (held_as(machine, v, FP32 if name == "tf32" else name) for v in (a, b))
    return Held(
        array=triton.dot(x, y, precision=lax.Precision.DEFAULT) + held_as(machine, init, FP32),
        format=FP32,
    )


def _by_halves(
    wide: Ops, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held
) -> Held:
    """Return the sum of the numbers of each row, by halves; K is a power of two."""
    single = acc.step == BINARY32 and FP64 not in (a.format, init.format)
    x = held_as(machine, a, FP32 if single else FP64)
    while x.shape[1] > 1:
        if single and on_gpu:
            x = x.reshape(-1, 2, x.shape[1] // 2).sum(axis=1)  # of two numbers there is one sum
        else:
            x = _added(wide, machine, acc.step, *_halves(on_gpu, x))
    if single:
        total = Held(array=x, format=FP32)
        return narrowing.rounded(
            machine, narrowing.promised(machine, "add", (init, total)), acc.step
        )
    return Held(array=_added(wide, machine, acc.step, held_as(machine, init, FP64), x), format=FP64)


def _halves(on_gpu: bool, x: Array) -> tuple[Array, Array]:
    """Return the left and the right half of a row.

    A kernel has no slices, but it has sums over an axis, and x + -0 is x.
    """
    half = x.shape[1] // 2
    if not on_gpu:
        return x[:, :half], x[:, half:]
    pairs = x.reshape(-1, 2, half)
    is_left = lax.broadcasted_iota(jnp.int32, pairs.shape, 1) == 0
    return jnp.where(is_left, pairs, -0.0).sum(axis=1), jnp.where(is_left, -0.0, pairs).sum(axis=1)


def _column_by_column(
    wide: Ops, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held
) -> Held:
    """Return the ascending sum of each row of a power of two of numbers, in registers.

    A row is cut into halves until columns are left.
    """
    parts = [held_as(machine, a, FP32)]
    while parts[0].shape[1] > 1:
        parts = [half for x in parts for half in _halves(on_gpu, x)]
    if init.format == FP64:
        first = _added(
            wide,
            machine,
            acc.step,
            held_as(machine, init, FP64),
            parts[0].astype(machine.types[FP64]),
        )
        total = first.astype(machine.types[FP32])
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
    """Return the sum in ascending order; K is a multiple of DEPTH.

    Binary32 numbers with binary32 steps are added by fused multiply-adds: Triton's product of
    float32 matrices at full precision, which adds to one sum in ascending order.
    """
    single = acc.step == BINARY32 and init.format != FP64 and _is_binary32(a) and _is_binary32(b)
    name, (rows, width), columns = FP32 if single else FP64, a.shape, b.shape[1]
    if single and width == DEPTH:
        factors = (held_as(machine, v, name) for v in (a, b, init))
        return Held(
            array=_fused(*factors) if on_gpu else _modelled(wide, acc, *factors), format=FP32
        )
    left, right = buffers[name]
    left[:rows, :width], right[:width, :columns] = (
        held_as(machine, a, name),
        held_as(machine, b, name),
    )
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

    Triton reads a factor that comes straight from memory in a way for which registers do not
    suffice, in three times the time: so each is moved once.
    """
    a, b = (gpu_convert.instruction("mov.f32 $0, $1;", jnp.float32, x) for x in (a, b))
    product: Array = triton.dot(a, b, precision=lax.Precision.HIGHEST)
    return product + init


def _modelled(wide: Ops, acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """Return the sum by any accumulator, in binary64, as an interpreter runs it."""
    total: Array = accumulate(wide, acc, a.T, b, init)
    return total


def _is_binary32(x: Held) -> bool:
    """Return whether the numbers are binary32 ones."""
    return x.format != FP64 or x.uniform == 1.0


def _added(wide: Ops, machine: Machine, step: Rounding, a: Array, b: Array) -> Array:
    """Return a step of an accumulator, in binary64."""
    return machine.round(sum_to_round(wide, step.format.precision, a, b), step, None)
