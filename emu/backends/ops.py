"""`Ops`: what an algorithm needs from an array library, so that it is written once.

Four records exist: `numpy_ops()` (NumPy with Numba kernels), `xla_ops(zero)` (JAX), `kernel_ops()`
(in Pallas kernels) and `graph_ops(graph)` (the nodes of a program, `emu.backends.fused`).

Every value is in binary64, the carrier. A product of two numbers of up to 26 bits is exact in
binary64. A sum, product, quotient or root of numbers of p <= 24 bits, computed in binary64 and then
rounded to nearest to p bits, is correctly rounded (53 >= 2p + 2, Figueroa 1995). In other modes the
result is the rounding of the binary64 number, which has been rounded to nearest before: 1 - 2^-60
toward zero is 1.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """The operations of an array library that algorithms use.

    Attributes:
        xp: the namespace, numpy or jax.numpy.
        round: (x, rounding, random) -> x rounded once; `random` is int32 in [0, 2^31), or None.
        round_blocks: (x, block format, axis, random) -> x rounded in blocks along an axis, and the
            scale of each number (`emu.blocks.layout`).
        transposed: the transpose of a matrix, (T, K) -> (K, T).
        odd_sum: a + b in binary64, rounded to odd (`emu.sums.odd`). A constant a must be `hidden`
            first, since XLA simplifies (b + 1) - 1 to b.
        multiply: a * b, which no compiler fuses with a following addition.
        hidden: the same array, whose numbers the compiler cannot know. XLA simplifies 0 + x to x,
            which is wrong if x is -0.
        divide: a / b of arrays of the same shape, which no compiler replaces by a multiplication by
            1 / b.
        bits: float64 -> its int64 bits.
        from_bits: int64 bits -> the float64 number.
        scan: (body, carry, xs) -> (carry, ys), where body(carry, k, x) -> (carry, y) for each
            leading slice x of the arrays in xs, a tuple or named tuple, in which None stands for no
            array. y is a structure of arrays (`mapped`), which are stacked in ys.
        when: (active, compute, state) -> compute(), which returns (new state, y), if active is
            true; otherwise the state and zeros (or None).
        call: (f, x) -> f(these ops, x), an array like x; it is traced once, and computed once for
            all its uses.
        native: (a, b) -> a @ b of float32 arrays, in the device's own order.
        aligned: (a, b, init, accumulator) -> the sum of `emu.sums.aligned`; a and b are pairs of
            numbers and their binades.
        ascending: (a, b, init, rounding, product bits) -> init + the sum of a_k b_k for ascending
            k, with each addition rounded once; `emu.sums.accumulator` explains the product bits.
        stats: events [(before, after, format, valid)] -> the counts, sums, peak, place and row sums
            of each event (`emu.stats`).
        own_sum: (accumulator, a, b, init) -> init + a @ b with shapes (T, K) and (K, N), if the
            library has its own sums; None if `emu.sums` computes them.
        in_lanes: x (rows, n) -> (4 rows, n / 4), a row for each of the four lanes of a row
            (`attention.softmax.row_sums`); None if arrays can be reshaped.
        in_pairs: (lanes (rows, 4), whether they are crossed, rounding) -> their sum (rows,), in
            which the sum of a pair is rounded; None if arrays can be reshaped.
        absent: x -> x at entries where an event does not exist, which are only multiplied by 0
            later. So a library may round them toward zero, which makes none infinite; None if it
            keeps them as they are.
        seen: (name, event) -> what stands for a summary of an event that is summarized where it
            happens; None if `stats` summarizes the events of a tile together.
        programs: (step, ...) -> the results of a step that runs as one compiled program, or None
            if it has none; None if the library has no such programs.
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
    in_lanes: Callable[[Array], Array] | None = None
    in_pairs: Callable[[Array, bool, Rounding], Array] | None = None
    absent: Callable[[Array], Array] | None = None
    seen: Callable[[str, Event], Array] | None = None
    programs: Callable[..., Any] | None = None


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """Return a structure of what a function returns for the arrays of structures of one form.

    A structure consists of dicts, tuples, named tuples and lists, as a tree of JAX does. None
    stands for an array too, or for all arrays of a structure; the function gets it in their place.

    Example:
        >>> mapped(lambda x, y: (x or 0) + y, {"a": (1, 2)}, {"a": (3, 4)}), mapped(str, (1, [2]))
        ({'a': (4, 6)}, ('1', ['2']))
    """
    like = next((tree for tree in trees if tree is not None), None)
    if isinstance(like, dict):
        return {name: mapped(function, *_each_at(trees, name)) for name in like}
    if isinstance(like, tuple | list):
        return rebuilt(like, (mapped(function, *_each_at(trees, n)) for n in range(len(like))))
    return function(*trees)


def _each_at(trees: Sequence[Any], place: Any) -> Iterator[Any]:
    return (None if tree is None else tree[place] for tree in trees)


def rebuilt(like: Any, parts: Iterable[Any]) -> Any:
    """Return a list, tuple or named tuple of the type of another one, with other parts."""
    return like._make(parts) if hasattr(like, "_make") else type(like)(parts)
