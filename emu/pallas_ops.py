"""`Ops` inside a Pallas kernel: a tile's arrays stay in registers, in the narrowest type that gives the bits (`emu.narrowing`).

Sums run on the tensor cores, by halves, or in ascending order. A kernel may not index an array by a loop's counter, only memory: so an
ascending sum writes its factors to buffers of its program and reads them back line by line. Needs 64-bit types enabled while traced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from emu import gpu_convert, marks, narrowing
from emu.accumulate import Accumulator, Order, accumulate
from emu.functions import exp64
from emu.gpu_exp import exp32
from emu.held import FP32, FP64, Held, Machine, held_as
from emu.ops import Event, Ops
from emu.rounding import BINARY32, Rounding, rounding
from emu.xla_ops import bits_of, guarded, number_of, rounded, xla_ops

UNROLL = 8  # additions in a turn of a loop: their factors are read ahead
TO_ODD = rounding("fp32", "to-odd")
PRECISION = {"bf16": 8, "fp16": 11, FP32: 24}
TYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, FP32: jnp.float32, FP64: jnp.float64}
Buffers = Mapping[str, tuple[Any, Any]]  # by the name of the format that an array of this type holds: two, a square each


def types(on_gpu: bool) -> dict[str, Any]:
    """Of arrays, by format. A CPU may flush subnormal numbers of anything narrower than binary64."""
    return TYPES if on_gpu else dict.fromkeys(TYPES, jnp.float64)


def kernel_ops() -> Ops:
    """The record for what `emu.narrowing.narrowed` runs."""
    return Ops(
        xp=jnp,
        round=marks.round_event,
        round_blocks=_refused("a block format"),
        transposed=marks.transposed,
        multiply=marks.product,
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
    """Events as they are, before and after, and how many of each row exist, the first ones: a kernel has no other masks."""
    return [(before, after, valid.sum(axis=1).astype(jnp.int32)) for before, after, _, valid in events]


def _refused(what: str) -> Any:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{what} inside a kernel")

    return refuse


def kernel_machine(zero: Array, buffers: Buffers, on_gpu: bool) -> Machine:
    """What does the arithmetic of one program.

    zero     an int64 0 that was read from memory: no compiler sees through it (`xla_ops`)
    buffers  of the program's own, for the types that it passes through memory
    on_gpu   whether the kernel runs on a GPU, by its instructions and tensor cores; else it is interpreted, with models of them
    """
    multiply = gpu_convert.multiplied if on_gpu else partial(guarded, zero)
    wide = replace(xla_ops(zero, wide=True), multiply=multiply)
    return Machine(
        types=types(on_gpu),
        combined=gpu_convert.combined if on_gpu else partial(_combined, multiply),
        narrow=gpu_convert.narrowed_to if on_gpu else _round,
        narrow32=gpu_convert.narrowed32 if on_gpu else _round,
        exponential=exp64,
        exp=partial(exp32, zero=zero) if on_gpu else lambda x, _: _round(exp64(wide, x), BINARY32),
        round=_converted if on_gpu else _round,
        multiply=multiply,
        divide=gpu_convert.divided if on_gpu else jnp.divide,
        function=lambda f, x: f(wide, x),
        total=partial(_total, zero, buffers, on_gpu),
        transposed=partial(_transposed, buffers, on_gpu),
    )


def _round(x: Array, r: Rounding, random: Array | None = None) -> Array:
    return x if r.is_identity else rounded(x, r, random)


def _converted(x: Array, r: Rounding, random: Array | None = None) -> Array:
    found = gpu_convert.converted(x, r)
    return _round(x, r, random) if found is None else found


def _combined(multiply: Any, operation: str, a: Array, b: Array, to_odd: bool) -> Array:
    """What `gpu_convert.combined` does, by the rule: binary64 holds every product, and a sum rounds to binary32 as if it held that."""
    made = {"add": jnp.add, "sub": jnp.subtract, "mul": multiply}[operation](a, b)
    return _round(made, TO_ODD if to_odd else BINARY32)


def barrier(on_gpu: bool) -> None:
    """The threads of a program wait for each other, and see what others wrote; an interpreter has one."""
    if on_gpu:
        triton.debug_barrier()


def _transposed(buffers: Buffers, on_gpu: bool, machine: Machine, x: Held) -> Array:
    """By way of memory: XLA pushes a transposition up through all that made the array, and makes it anew for every use."""
    if not on_gpu:
        return held_as(machine, x, FP64).T
    name = x.format if x.format in buffers else FP64
    buffer = buffers[name][0]
    buffer[: x.shape[0], : x.shape[1]] = held_as(machine, x, name)
    barrier(on_gpu)
    found: Array = buffer[: x.shape[0], : x.shape[1]].T
    barrier(on_gpu)
    return found


def _total(zero: Array, buffers: Buffers, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held) -> Held:
    """init + a @ b; a (T, K), b (K, N). By halves: K a power of two, and b ones, a row sum."""
    if acc.order is Order.HALVES:
        return _by_halves(on_gpu, machine, acc, a, init)
    if acc.alignment is None:
        return _ascending(buffers, on_gpu, machine, acc, a, b, init)
    if on_gpu:
        return _on_tensor_core(machine, acc, a, b, init)
    x, y, start = (held_as(machine, v, FP64) for v in (a, b, init))
    return Held(array=accumulate(xla_ops(zero, wide=False), acc, x.T, y, start), format=FP32)


def _on_tensor_core(machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held) -> Held:
    """By the matrix unit, whatever precision a user asks of JAX's products. Triton makes init the first term of its sum, and leaves no
    other addition (TritonCombineOps).
    """
    assert acc.alignment is not None
    name = acc.alignment.operand.name
    x, y = (held_as(machine, v, FP32 if name == "tf32" else name) for v in (a, b))
    return Held(array=triton.dot(x, y, precision=lax.Precision.DEFAULT) + held_as(machine, init, FP32), format=FP32)


def _by_halves(on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, init: Held) -> Held:
    """The sum of the numbers of each row, K a power of two."""
    single = acc.step == BINARY32 and a.format != FP64
    x = held_as(machine, a, FP32 if single else FP64)
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        # a kernel has no slices, but sums over an axis; of two numbers there is one sum
        x = x.reshape(-1, 2, half).sum(axis=1) if on_gpu else x[:, :half] + x[:, half:]
        x = x if single and on_gpu else machine.round(x, acc.step, None)
    total = Held(array=x, format=FP32 if single else FP64)
    return narrowing.rounded(machine, narrowing.promised(machine, "add", (init, total)), acc.step)


def _ascending(buffers: Buffers, on_gpu: bool, machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held) -> Held:
    """Ascending; K a multiple of UNROLL."""
    single = acc.step == BINARY32 and init.format != FP64 and _product_bits(a) + _product_bits(b) <= PRECISION[FP32]
    name, (rows, width), columns = FP32 if single else FP64, a.shape, b.shape[1]
    add: Callable[..., Array] = _fused if single and on_gpu else partial(_added, machine, acc.step)
    left, right = buffers[name]
    left[:rows, :width], right[:width, :columns] = held_as(machine, a, name), held_as(machine, b, name)
    barrier(on_gpu)  # every thread reads what others wrote

    def steps(n: Array, total: Array) -> Array:
        for k in range(UNROLL):
            x, y = left[:rows, n * UNROLL + k], right[n * UNROLL + k, :columns]
            total = add(*jnp.broadcast_arrays(x[:, None], y[None, :]), total)
        return total

    total: Array = lax.fori_loop(0, width // UNROLL, steps, held_as(machine, init, name))
    barrier(on_gpu)  # before the buffers are written again
    return Held(array=total, format=name)


def _product_bits(x: Held) -> int:
    """Of a factor: those that it adds to a product's."""
    if x.uniform == 1.0:
        return 0
    return PRECISION.get(x.format, 53)


def _fused(x: Array, y: Array, total: Array) -> Array:
    """`_added` to binary32, of a product of at most 24 bits: rounded once it is the sum in binary64, rounded. Where that is inexact, one
    term is so much smaller than the other, a binary32 number, that neither sum is near a boundary.
    """
    return gpu_convert.multiplied_and_added(x, y, total)


def _added(machine: Machine, step: Rounding, x: Array, y: Array, total: Array) -> Array:
    return machine.round(total + machine.multiply(x, y), step, None)
