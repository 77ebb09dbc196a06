"""The machine of a warp group: the arithmetic of a kernel that Mosaic GPU compiles.

A tile has 64 rows. What the traced function sees as (64, 1), (64, 4) or (256, 1) is a vector here,
with a number for each row or for each lane of each row, and (256, n / 4) is the matrix (64, n)
itself. Factors of products are matrices in shared memory, so an array may also be a `Factor`.

A row is in four threads (`registers`), which are its lanes. A vector of row sums has the partial
sum of its own thread in each of them, until `across` adds them up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu

from roundscope.emu.backends.kernels import convert, narrowing
from roundscope.emu.backends.kernels.exp import AT_ONCE, exp32
from roundscope.emu.backends.kernels.held import (
    FP32,
    FP64,
    Held,
    Machine,
    NoSuchArithmetic,
    bind_again,
    computed,
    held_as,
)
from roundscope.emu.backends.kernels.instructions import instructions
from roundscope.emu.backends.kernels.ops import TYPES
from roundscope.emu.backends.kernels.warpgroups import ROWS
from roundscope.emu.backends.kernels.warpgroups.registers import (
    MATRIX,
    ROWWISE,
    Placement,
    assembled,
    extracted,
    instruction,
    length,
    together,
)
from roundscope.emu.functions import exp64
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.sums.accumulator import Accumulator, Order

FOUR = 4  # threads that have a row
ADD, FMA = "add.rn.f32", "fma.rn.f32"


def within_lanes(x: Array, *start: Array) -> Array:
    """Return, in each lane, start plus the lane's columns of x (64, n) in ascending order: (64,).

    start: a vector, or two, whose product the sum starts at, with one rounding for the product and
    the first addition. Without it the sum starts at the first column.
    """

    def run(matrix: np.ndarray, *vectors: np.ndarray) -> np.ndarray:
        sums = []
        for n, (first, *others) in enumerate(map(_columns, _rows(matrix))):
            given = [extracted(v.flat[n], 0) for v in vectors]
            total = instruction(FMA if len(given) == 2 else ADD, *given, first) if given else first
            for word in others:
                total = instruction(ADD, total, word)
            sums.append(total)
        return _vector(sums)

    return ROWWISE.inlined(run, x.shape[:1], jnp.float32, x, *start)


def by_halves(x: Array, lanes: int | None = None) -> Array:
    """Return the sum of each row of x (64, n), by halves: x_i + x_(i + n / 2) until one is left.

    lanes: the stride of the columns that are added first, from the left to the right, or None.
    """

    def run(matrix: np.ndarray) -> np.ndarray:
        sums = []
        for row in _rows(matrix):
            words = _columns(row)  # 8 j + 2 c and 8 j + 2 c + 1, for every j
            if lanes is not None:
                own, words = words, words[: lanes // FOUR]
                for first in range(len(words), len(own), len(words)):
                    more = own[first : first + len(words)]
                    words = [instruction(ADD, a, b) for a, b in zip(words, more, strict=True)]
            while len(words) > 2:
                half = len(words) // 2
                words = [
                    instruction(ADD, a, b) for a, b in zip(words[:half], words[half:], strict=True)
                ]
            for distance in (2, 1):
                words = [instruction(ADD, w, mgpu.utils.shfl_bfly(w, distance)) for w in words]
            sums.append(instruction(ADD, *words))
        return _vector(sums)

    return ROWWISE.inlined(run, x.shape[:1], jnp.float32, x)


def across(lanes: Array, is_crossed: bool) -> tuple[Array, Array]:
    """Return two vectors whose sum is that of a row's four lanes, each the sum of a pair.

    is_crossed: whether lanes 0 and 2, and 1 and 3 are pairs; else 0 and 1, and 2 and 3 are.
    """
    near, far = (2, 1) if is_crossed else (1, 2)

    def paired(vector: np.ndarray) -> np.ndarray:
        return _of_each(vector, lambda x: instruction(ADD, x, mgpu.utils.shfl_bfly(x, near)))

    def other(vector: np.ndarray) -> np.ndarray:
        return _of_each(vector, lambda x: mgpu.utils.shfl_bfly(x, far))

    pair = ROWWISE.inlined(paired, lanes.shape, jnp.float32, lanes)
    return pair, ROWWISE.inlined(other, lanes.shape, jnp.float32, pair)


def _of_each(vector: np.ndarray, f: Any) -> np.ndarray:
    return _vector([f(extracted(register, 0)) for register in vector.flat])


def _rows(matrix: np.ndarray) -> list[list[Any]]:
    """Return the registers of a thread's two rows, each from the left to the right."""
    of_both = matrix.reshape(-1, 2)
    return [list(of_both[:, row]) for row in range(2)]


def _vector(words: list[Any]) -> np.ndarray:
    """Return the registers of a vector (64,), of which a thread has two numbers."""
    found = np.empty(ROWWISE.vector.to_mgpu().registers_shape((64,)), object)
    for n, word in enumerate(words):
        found.flat[n] = together([word])
    return found


def _columns(row: list[Any]) -> list[Any]:
    """Return the numbers of a thread in a row, from the left to the right."""
    return [extracted(register, n) for register in row for n in range(length(register))]


MOVES = ("broadcast_in_dim", "reshape", "squeeze", "transpose", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A matrix in shared memory, a factor of products, and what surrounds its product.

    ref     the memory
    shape   the shape that the product reads: that of the memory, or its transpose
    before  what happens before the product, such as a wait for the memory
    issued  what happens while the tensor core is busy
    after   what happens once the product is there
    """

    ref: Any
    shape: tuple[int, int]
    before: Callable[[], None] = lambda: None
    issued: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    @property
    def dtype(self) -> Any:
        """The type of its numbers."""
        return self.ref.dtype

    @property
    def transposed(self) -> "Factor":
        """The factor whose memory is read by columns."""
        return replace(self, ref=self.ref.transpose((1, 0)), shape=self.shape[::-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """An array that is made again for each operation on it, since the registers are few.

    made   () -> the array
    shape  its shape
    dtype  its type
    """

    made: Callable[[], Array]
    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


def _made(x: Any) -> Any:
    return x.made() if isinstance(x, Later) else x


def warpgroup_machine(place: Placement, zero: Array, exps_at_once: int = AT_ONCE) -> Machine:
    """Return the machine of a warp group, whose vectors lie in the registers as `place` says.

    zero: an int32 0 whose value no compiler knows; exps_at_once: of a thread.
    """
    matched = partial(_matched, place)

    def by(*text: Any) -> Array:
        return assembled(place, *map(_made, text))

    def combined(name: str, a: Array, b: Array, to_odd: bool) -> Array:
        a, b = matched(a, b)
        return convert.combined(name, a, b, to_odd, by)

    def fused(a: Array, b: Array, c: Array) -> Array:
        a, b, c = matched(a, b, c)
        return convert.fused(a, b, c, by)

    def combined16(name: str, a: Array, b: Array, r: Rounding) -> Array:
        a, b = map(_matrix, matched(a, b))
        return convert.combined16(name, a, b, r, by)

    def scaled16(a: Array, b: Array, r: Rounding) -> Array:
        a, b = map(_matrix, matched(a, b))
        return convert.scaled16(a, b, r, by)

    def toward_zero(name: str, a: Array, b: Array) -> Array:
        a, b = matched(a, b)
        return convert.toward_zero(name, a, b, by)

    return Machine(
        types={name: dtype for name, dtype in TYPES.items() if name != FP64},
        combined=combined,
        fused=fused,
        combined16=combined16,
        scaled16=scaled16,
        narrow=lambda x, r: convert.narrowed_to(_matrix(x), r, by),
        narrow32=lambda x, r: convert.narrowed32(_made(x), r, by),
        exponential=exp64,
        exp=lambda x, name: exp32(_made(x), name, zero, exps_at_once, by),
        instructions=instructions(True, by),
        odd_sum=_refused,
        round=_refused,
        multiply=_refused,
        divide=_refused,
        function=_refused,
        total=partial(_total, place),
        bound=partial(_bound, place),
        toward_zero=toward_zero,
        pairs=across,
    )


def _matrix(x: Array) -> Array:
    """Return a matrix, or one number; of a vector no two 16-bit numbers share a register."""
    if jnp.ndim(x) == 1:
        raise NoSuchArithmetic("a vector of 16-bit numbers in a warp group")
    return x


def _refused(*_: Any) -> Any:
    raise NoSuchArithmetic("binary64 in a warp group")


def _total(
    place: Placement, machine: Machine, acc: Accumulator, a: Held, b: Held, init: Held
) -> Held:
    """Return init + a @ b: a row sum if b is a column of ones, else a product on tensor cores."""
    if b.uniform == 1.0:
        return _row_sum(machine, acc, held_as(machine, a, FP32), init)
    assert acc.alignment is not None
    a = computed(machine, a)
    start = None if init.uniform == 0.0 else held_as(machine, init, FP32)
    left = a.array if isinstance(a.array, Factor) else held_as(machine, a, a.format)
    return Held(array=_product(place, left, b.array, start), format=FP32)


def _row_sum(machine: Machine, acc: Accumulator, x: Array, init: Held) -> Held:
    if acc.order in (Order.HALVES, Order.STRIDED):
        lanes = acc.chunk if acc.order is Order.STRIDED else None
        parts = computed(machine, init), Held(array=by_halves(x, lanes), format=FP32)
        return narrowing.rounded(machine, narrowing.promised(machine, "add", parts), acc.step)
    if init.made is not None and init.made[0] == "mul":
        start = tuple(held_as(machine, y, FP32) for y in init.made[1])
    else:
        start = () if init.uniform == 0.0 else (held_as(machine, init, FP32),)
    return Held(array=within_lanes(x, *start), format=FP32)


def _product(place: Placement, a: Any, b: Factor, start: Array | None) -> Array:
    """Return start + a b on the tensor core; a is a factor or in registers."""
    left = a.ref if isinstance(a, Factor) else place.placed(a)
    if start is not None and isinstance(a, Factor):
        start = place.placed(start)
    elif start is not None:
        left, start = lax.optimization_barrier((left, place.placed(start)))  # no work is put off
    b.before()

    def multiply(total: Any) -> None:
        plgpu.wgmma(total, left, b.ref)
        b.issued()

    def multiplied(total: Any) -> Any:
        multiply(total)
        return total[...]

    result: Array
    if start is None:
        like = plgpu.WGMMAAccumulatorRef((ROWS, b.shape[1]), jnp.float32)
        result = pl.run_scoped(multiplied, like)
    else:
        result = pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(start))
    b.after()
    return result


def _bound(place: Placement, eqn: Any, arrays: list[Any]) -> list[Any]:
    """Return the results of a traced operation on vectors and matrices in registers."""
    name, (x, *_) = eqn.primitive.name, arrays
    if isinstance(x, Factor):
        assert name == "transpose"
        return [x.transposed]
    if name in MOVES:
        shape = _held_shape(eqn.outvars[0].aval.shape, x)
        if x.ndim in (0, len(shape)):
            return [x]
        return [_repeated(_made(x), shape, _axis(eqn))]
    arrays = _matched(place, *(jnp.asarray(_made(y)) for y in arrays))
    shape = max((y.shape for y in arrays), key=len)
    return bind_again(eqn, [jnp.broadcast_to(y, shape) for y in arrays])


def _matched(place: Placement, *arrays: Any) -> list[Any]:
    """Return arrays in the shape of the largest one; vectors are repeated along a matrix."""
    arrays = tuple(map(_made, arrays))
    shape = max((jnp.shape(x) for x in arrays), key=len)
    return [_repeated(x, shape, place.axis) if 0 < jnp.ndim(x) < len(shape) else x for x in arrays]


def _axis(eqn: Any) -> int:
    """Return the axis of a matrix along which an operation lays a vector."""
    shape = eqn.invars[0].aval.shape
    return int(eqn.params["broadcast_dimensions"][0]) if len(shape) == 1 else int(shape[1] != 1)


def _repeated(x: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return a matrix with the same vector in all its columns (axis 0) or rows (axis 1)."""
    lying = plgpu.layout_cast(x, MATRIX.reduce(1 - axis))
    array: Array = lax.broadcast_in_dim(lying, shape, (axis,))
    return array


def _held_shape(shape: tuple[int, ...], x: Any) -> tuple[int, ...]:
    """Return the shape in registers of what a traced function sees with another shape."""
    if len(shape) < 2 or (len(shape) == 2 and min(shape) in (1, 4)):
        return (max(shape, default=1),)
    return shape if x.ndim < 2 else x.shape
