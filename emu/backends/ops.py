"""`Ops`: what an algorithm needs from an array library, so that it is written once.

Three records exist: `numpy_ops()` (NumPy with Numba kernels), `xla_ops(zero)` (JAX) and
`kernel_ops()` (in Pallas kernels). Every value is binary64, the carrier: a product of two numbers
of up to 26 bits is exact in it, and rounding such a sum, product, quotient or root once to nearest,
in p <= 24 bits, gives the correctly rounded result (53 >= 2p + 2, Figueroa 1995). Other modes round
what binary64 has rounded to nearest: toward zero, 1 - 2^-60 is 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from roundscope.emu.blocks.format import BlockFormat
from roundscope.emu.roundings.modes import Rounding

Array = Any  # numpy.ndarray or jax.Array, float64 unless said otherwise
ANY_PRODUCT = 106  # significand bits of a product of two binary64 numbers
EXACT_PRODUCT = 53  # significand bits of a product that binary64 holds
Event = tuple[Array, Array, Any, Array]  # before, after, format, valid; of shape (rows, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """An array library as an algorithm sees it.

    Attributes:
        xp: the namespace, numpy or jax.numpy.
        round: (x, rounding, random) -> x rounded once; `random` is int32 in [0, 2^31), or None.
        round_blocks: (x, block format, axis, random) -> x in blocks along an axis, and the scale T
            X of each number (`emu.blocks.ops`).
        transposed: (T, K) -> (K, T).
        odd_sum: a + b in binary64, rounded to odd (`emu.sums.odd`). A constant a must be `hidden`
            first: XLA makes (b + 1) - 1 b.
        multiply: a * b, which no compiler fuses with a following addition.
        hidden: the array, with its numbers unknown to the compiler: XLA takes 0 + x for x, even
            where x is -0.
        divide: a / b of arrays of one shape, which no compiler makes a multiplication with 1 / b.
        bits: float64 -> its int64 bits.
        from_bits: int64 bits -> the float64 number.
        scan: (body, carry, xs) -> (carry, ys), where body(carry, k, x) -> (carry, y) for each
            leading slice x of the tuple xs. y is None, an array, or tuples and dicts of them, which
            are stacked in ys.
        when: (active, compute, state) -> compute() = (new state, y), or the state and zeros
            where not active.
        call: (f, x) -> f(these ops, x), an array like x; traced once, and computed once for all
            that use it.
        native: (a, b) -> a @ b of float32 arrays, in the device's own order.
        aligned: (a, b, init, accumulator) -> the sum of `emu.sums.aligned`; a and b are numbers and
            their binades.
        ascending: (a, b, init, rounding, product bits) -> the fold of a_k b_k, k ascending, each
            step rounded once; the product bits are those of `emu.sums.accumulator`.
        stats: events [(before, after, format, valid)] -> for each its counts, sums, peak, place and
            row sums (`emu.stats`).
        own_sum: (accumulator, a, b, init) -> init + a @ b, a (T, K), b (K, N), of a library that
            adds in its own way; None where `emu.sums` adds.
    """

    xp: Any
    round: Callable[[Array, Rounding, Array | None], Array]
    round_blocks: Callable[[Array, BlockFormat, int, Array | None], tuple[Array, Array]]
    transposed: Callable[[Array], Array]
    odd_sum: Callable[[Array, Array], Array]
    multiply: Callable[[Array, Array], Array]
    hidden: Callable[[Array], Array]
    divide: Callable[[Array, Array], Array]
    bits: Callable[[Array], Array]
    from_bits: Callable[[Array], Array]
    scan: Callable[..., Any]
    when: Callable[..., Any]
    call: Callable[[Callable[..., Array], Array], Array]
    native: Callable[[Array, Array], Array]
    aligned: Callable[..., Array]
    ascending: Callable[[Array, Array, Array, Rounding, int], Array]
    stats: Callable[[Sequence[Event]], list[Any]]
    own_sum: Callable[..., Array] | None = None
