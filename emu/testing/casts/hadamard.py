"""A Hadamard transform in front of a quantizer to blocks, with its own roundings.

With n for the size of the transform, H for the n x n matrix of 1 and -1 of Sylvester's construction
and D for signs, every n neighbors x of a row become x D H / sqrt(n), which is what is quantized::

    x_i    rounded to the format in which the transform reads,
    sum_i  D_i x_i H_ij, and once more rounded after the product with binary32(1 / sqrt(n)).

A quantizer is asked about the numbers that reach it, so it is given inputs whose transform is known
to the bit: their significands are so short that float32 holds every partial sum, in whatever order
it is added. Half of the inputs are such that the numbers meant to be asked about (ties, thresholds)
come out of the transform exactly, where 1 / sqrt(n) is a power of two and float32 is read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.errors import Problem
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.roundings.modes import BINARY32, Rounding
from roundscope.emu.shown import shown
from roundscope.emu.testing.casts.records import Function, Numbers

F32 = np.float32
LARGEST = 1024
BITS = 23  # of a partial sum, one less than float32 holds
FORMATS = ("fp32", "bf16", "fp16")
UNNORMALIZED, STEPWISE = "unnormalized", "stepwise"
SUCH = "give SIZE[:FORMAT[:FORMAT OF RESULTS]][:unnormalized][:stepwise], as 16 or 16:bf16"
SINGLE = BINARY32.format


@dataclass(frozen=True, slots=True, kw_only=True)
class Hadamard:
    """A Hadamard transform of every `size` neighbors of a row, as it is computed.

    Args:
        size: how many numbers are transformed together, a power of two from 2 to 1024.
        signs: what each of them is multiplied by before, `size` numbers that are 1 or -1; () for 1.
        reads: the format to which the numbers are rounded before: fp32, bf16 or fp16.
        result: the format to which a result is rounded: fp32, bf16 or fp16.
        is_normalized: whether the sums are multiplied by 1 / sqrt(size).
        is_stepwise: whether the results of each of the log2(size) additions of pairs are rounded to
            `result`; otherwise a sum is rounded once.
        divides: whether the sums are divided by binary32(sqrt(size)), in place of the product.
        factor: the format in which 1 / sqrt(size) is held.
        is_before: whether the signs come before the transform.

    Example:
        >>> import numpy as np
        >>> Hadamard(size=4)(np.array([[1, 2, 3, 5]], np.float32)).tolist()
        [[5.5, -1.5, -2.5, 0.5]]
        >>> str(hadamard("16:bf16", [1, -1] * 8))
        'Hadamard 16 in bf16 with signs'
    """

    size: int
    signs: tuple[int, ...] = ()
    reads: Format = SINGLE
    result: Format = SINGLE
    is_normalized: bool = True
    is_stepwise: bool = False
    divides: bool = False
    factor: Format = SINGLE
    is_before: bool = True

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the transform of a float32 array (rows, K), K a multiple of the size; float32."""
        lines = x.reshape(-1, self.size).astype(np.float64)
        lines = round_to(lines, Rounding(format=self.reads))
        lines = lines * self._signs if self.is_before else lines
        y = self._steps(lines) if self.is_stepwise else lines @ matrix(self.size)
        y = round_to(self._scaled(y), Rounding(format=self.result))
        y = y if self.is_before else y * self._signs
        return np.asarray(y, F32).reshape(x.shape)

    def inputs(self, y: np.ndarray) -> np.ndarray:
        """Return a float32 array whose transform is near y, and known to the bit.

        y: a float32 array whose size is a multiple of the transform's; the result has its shape, or
        rows of whole transforms.
        """
        k = math.lcm(y.shape[1], self.size)
        lines = y.reshape(-1, self.size).astype(np.float64)
        log2 = self.size.bit_length() - 1
        limit = 2.0 ** (126 - 2 * log2)  # no partial sum leaves float32
        lines = np.clip(lines, -limit, limit)
        lines[::2] = on_grid(lines[::2], max(BITS - 1 - 2 * log2, 6))
        root = math.sqrt(self.size)
        x = lines @ matrix(self.size) / (root if self.is_normalized else self.size)
        x = round_to(on_grid(x * self._signs, BITS - 1 - log2), Rounding(format=self.reads))
        array: np.ndarray = np.ascontiguousarray(np.asarray(x, F32).reshape(-1, k))
        return array

    def __str__(self) -> str:
        """Return "Hadamard 16 in bf16 to fp32 with signs, unnormalized", as far as it is so."""
        words = f"Hadamard {self.size}"
        words += "" if self.reads == SINGLE else f" in {self.reads.name}"
        words += "" if self.result == self.reads else f" to {self.result.name}"
        words += " with signs" if self.signs else ""
        words += "" if self.is_normalized else f", {UNNORMALIZED}"
        return words + (f", {STEPWISE}" if self.is_stepwise else "")

    @property
    def _signs(self) -> Numbers:
        return np.array(self.signs or (1,), np.float64)

    def _steps(self, x: Numbers) -> Numbers:
        """Return the sums, each addition of a pair rounded to the format of results."""
        y, n, r = x, 1, Rounding(format=self.result)
        while n < self.size:
            pairs = y.reshape(len(x), -1, 2, n)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            y = np.asarray(round_to(np.stack([a + b, a - b], axis=2).reshape(x.shape), r))
            n *= 2
        return y

    def _scaled(self, sums: Numbers) -> Numbers:
        if not self.is_normalized:
            return sums
        if self.divides:
            quotients: Numbers = round_to(sums / float(F32(math.sqrt(self.size))), BINARY32)
            return quotients
        held = float(round_to(np.array(1 / math.sqrt(self.size)), Rounding(format=self.factor)))
        return sums * held


@dataclass(frozen=True, slots=True)
class Fronted:
    """A quantizer that transforms what it is given before it quantizes."""

    function: Function
    front: Hadamard

    def __call__(self, x: np.ndarray) -> Any:
        """Return what the quantizer returns for an array (rows, K)."""
        return self.function(x)


def inputs_of(function: Function, y: np.ndarray) -> np.ndarray:
    """Return what a function is given so that y, or what is near it, is quantized."""
    return function.front.inputs(y) if isinstance(function, Fronted) else y


def seen_by(function: Function, x: np.ndarray) -> np.ndarray:
    """Return the numbers that are quantized where a function is given x."""
    return function.front(x) if isinstance(function, Fronted) else x


def hadamard(words: str | Hadamard, signs: Any = None) -> Hadamard:
    """Return a transform by its words: SIZE[:FORMAT[:FORMAT OF RESULTS]][:unnormalized][:stepwise].

    signs: 1 or -1 for each number, or None.

    Raises ValueError for other words or signs.
    """
    if isinstance(words, Hadamard):
        if signs is not None:
            raise Problem("signs", None, "the transform has its own; give one of the two")
        return words
    size, *more = str(words).split(":")
    formats = [word for word in more if word in FORMATS]
    others = [word for word in more if word not in FORMATS]
    if len(formats) > 2 or set(others) - {UNNORMALIZED, STEPWISE} or len(set(others)) < len(others):
        raise Problem("hadamard", shown(words), SUCH)
    if not size.isdecimal() or not 2 <= int(size) <= LARGEST or int(size) & (int(size) - 1):
        raise Problem("hadamard", shown(words), f"SIZE is a power of two from 2 to 1024; {SUCH}")
    formats = formats or ["fp32"]
    return Hadamard(
        size=int(size),
        signs=_of_signs(signs, int(size)),
        reads=format_named(formats[0]),
        result=format_named(formats[-1]),
        is_normalized=UNNORMALIZED not in others,
        is_stepwise=STEPWISE in others,
    )


def _of_signs(signs: Any, size: int) -> tuple[int, ...]:
    if signs is None:
        return ()
    found = np.asarray(signs)
    if found.shape != (size,) or found.dtype.kind not in "iuf" or not (np.abs(found) == 1).all():
        given = shown(signs) if found.ndim == 0 else f"an array of shape {found.shape}"
        raise Problem("signs", given, f"give {size} numbers that are 1 or -1, one for each number")
    return tuple(int(sign) for sign in found)


def variants(front: Hadamard) -> Iterator[tuple[str, Hadamard | None]]:
    """Yield other transforms that may have been computed, each with what is other in words.

    None is no transform at all.
    """
    yield "without the transform", None
    if front.signs:
        yield "without the signs", replace(front, signs=())
        yield "the signs after the transform", replace(front, is_before=False)
        yield "the signs negated", replace(front, signs=tuple(-s for s in front.signs))
    words = "not normalized" if front.is_normalized else "normalized"
    yield words, replace(front, is_normalized=not front.is_normalized)
    for size in (16, 32, 64, 128, 256):
        if size != front.size and not front.signs:
            yield f"the transform of {size} numbers", replace(front, size=size)
    for reads in map(format_named, FORMATS):
        for result in map(format_named, FORMATS):
            if (reads, result) != (front.reads, front.result):
                to = "" if result == reads else f" to {result.name}"
                other = replace(front, reads=reads, result=result)
                yield f"the transform in {reads.name}{to}", other
    stepwise = replace(front, is_stepwise=not front.is_stepwise)
    yield "each step of the transform rounded" if stepwise.is_stepwise else "rounded once", stepwise
    yield "divided by the root of its size", replace(front, divides=True)
    held = replace(front, factor=front.reads)
    yield f"its factor in {front.reads.name}", held


def untold() -> Iterator[tuple[str, Hadamard]]:
    """Yield transforms that a quantizer may compute without a word of it."""
    for size in (16, 32, 64, 128):
        for name in FORMATS[:2]:
            front = hadamard(f"{size}:{name}")
            yield f"after {front}", front


@lru_cache(16)
def matrix(n: int) -> Numbers:
    """Return Sylvester's matrix of n rows, n a power of two, in float64.

    Example:
        >>> matrix(2).tolist()
        [[1.0, 1.0], [1.0, -1.0]]
    """
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h


def on_grid(lines: Numbers, bits: int) -> Numbers:
    """Return rows rounded to multiples of 2^-bits times the power of two of their largest."""
    top = np.abs(lines).max(axis=1, keepdims=True)
    unit = np.ldexp(1.0, np.frexp(np.where(top > 0, top, 1.0))[1] - 1 - bits)
    grid: Numbers = np.rint(lines / unit) * unit
    return grid
