"""`Ops` inside a Pallas kernel: a tile's arrays stay in registers, sums run on the tensor cores or in the order that they say.

A kernel may not index an array by a loop's counter, only memory. So a sum in ascending order writes its factors to scratch
buffers of its program and reads them back line by line. Needs 64-bit types enabled while it is traced.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import triton

from emu.accumulate import Accumulator, accumulate
from emu.gpu_convert import converted, multiplied
from emu.ops import Ops
from emu.rounding import Rounding
from emu.xla_ops import bits_of, guarded, number_of, rounded, xla_ops

UNROLL = 8  # additions in a turn of a loop: their factors are read ahead
TYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "tf32": jnp.float32}


def pallas_ops(zero: Array, scratch: Sequence[Any], on_gpu: bool) -> Ops:
    """The record of one program of a kernel.

    zero     an int64 0 that was read from memory: no compiler sees through it (`xla_ops`)
    scratch  two buffers of the program's own, for the two factors of a sum: binary64, a square as wide as the widest of them
    on_gpu   whether the kernel runs on a GPU, by its instructions and tensor cores; else it is interpreted, with models of them
    """
    round_one, multiply = (_converted, multiplied) if on_gpu else (_round, partial(guarded, zero))
    barrier = triton.debug_barrier if on_gpu else lambda: None
    fold = partial(_ascending, scratch, barrier, round_one, multiply)
    on_tensor_core = _on_tensor_core if on_gpu else partial(_modelled, zero)
    ops = Ops(
        xp=jnp,
        round=round_one,
        round_blocks=_refused("a block format"),
        transposed=partial(_transposed, scratch[0], barrier),
        multiply=multiply,
        bits=bits_of,
        from_bits=number_of,
        scan=_refused("a loop over an array"),
        when=_refused("a mask"),
        call=lambda function, x: function(ops, x),
        native=_refused("a native sum"),
        aligned=_refused("a sum of other factors"),
        ascending=_refused("a sum of other factors"),
        stats=_refused("a record"),
        own_sum=lambda acc, a, b, init: (fold if acc.alignment is None else on_tensor_core)(acc, a, b, init),
    )
    return ops


def _refused(what: str) -> Any:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{what} inside a kernel")

    return refuse


def _round(x: Array, r: Rounding, random: Array | None = None) -> Array:
    return x if r.is_identity else rounded(x, r, random)


def _converted(x: Array, r: Rounding, random: Array | None = None) -> Array:
    found = converted(x, r)
    return _round(x, r, random) if found is None else found


def _transposed(scratch: Any, barrier: Callable[[], Any], x: Array) -> Array:
    """By way of memory: XLA pushes a transposition up through all that made the array, and makes it anew for every use."""
    scratch[: x.shape[0], : x.shape[1]] = x
    barrier()
    found = scratch[: x.shape[0], : x.shape[1]].T
    barrier()
    return found


def _ascending(
    scratch: Sequence[Any], barrier: Callable[[], Any], round_one: Any, multiply: Any, acc: Accumulator, a: Array, b: Array, init: Array
) -> Array:
    """init + a @ b, ascending; a (T, K), b (K, N), K a multiple of UNROLL."""
    left, right = scratch
    left[: a.shape[0], : a.shape[1]], right[: b.shape[0], : b.shape[1]] = a, b
    barrier()  # every thread reads what others wrote

    def steps(n: Array, total: Array) -> Array:
        for k in range(UNROLL):
            x, y = left[: a.shape[0], n * UNROLL + k], right[n * UNROLL + k, : b.shape[1]]
            total = round_one(total + multiply(*jnp.broadcast_arrays(x[:, None], y[None, :])), acc.step)
        return total

    total: Array = lax.fori_loop(0, a.shape[1] // UNROLL, steps, init)
    barrier()  # before the buffers are written again
    return total


def _on_tensor_core(acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    """init + a @ b by the matrix unit. Triton makes init the first term of its sum, and leaves no other addition (TritonCombineOps)."""
    assert acc.alignment is not None
    own = TYPES[acc.alignment.operand.name]
    x, y = (v.astype(jnp.float32).astype(own) for v in (a, b))
    return (triton.dot(x, y) + init.astype(jnp.float32)).astype(jnp.float64)


def _modelled(zero: Array, acc: Accumulator, a: Array, b: Array, init: Array) -> Array:
    return accumulate(xla_ops(zero, wide=False), acc, a.T, b, init)
