"""Sums of the rows of a matrix that lies in the registers of a warp group.

A row is in four threads (`registers`), which are its lanes. A vector of row sums has the partial
sum of its own thread in each of them, until `across` adds them up.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.mosaic import gpu as mgpu

from roundscope.emu.backends.kernels.warpgroups.registers import (
    ROWWISE,
    extracted,
    instruction,
    length,
    together,
)

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
