"""`Steps`: the additions, products and multiply-adds of a program, each of which rounds once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.roundings.modes import BINARY32, Rounding


@dataclass(frozen=True, slots=True)
class Steps:
    """Operations on float64 arrays of numbers of a format; the second operands may be numbers."""

    ops: Ops
    step: Rounding = BINARY32

    def add(self, x: Array, y: Any) -> Array:
        return self._rounded(self.ops.odd_sum(self.ops.hidden(x), self._like(x, y)))

    def multiply(self, x: Array, y: Any) -> Array:
        return self._rounded(self.ops.multiply(x, y))

    def divide(self, x: Array, y: Any) -> Array:
        return self._rounded(self.ops.divide(x, self._like(x, y)))

    def fma(self, x: Array, y: Any, z: Any) -> Array:
        """Return x y + z."""
        product = self.ops.hidden(self.ops.multiply(x, y))
        return self._rounded(self.ops.odd_sum(product, self._like(product, z)))

    def polynomial(self, x: Array, coefficients: Any) -> Array:
        """Return c_0 x^n + ... + c_n by multiply-adds; coefficients may be arrays like x."""
        y = self._like(x, coefficients[0])
        for c in coefficients[1:]:
            y = self.fma(y, x, c)
        return y

    def numbers(self, values: Sequence[float]) -> Array:
        """Return numbers that the program has as constants."""
        return self._rounded(self.ops.xp.asarray(np.array(values, np.float64)))

    def _like(self, x: Array, y: Any) -> Array:
        return self.ops.xp.broadcast_to(self.ops.xp.asarray(y, np.float64), x.shape)

    def _rounded(self, x: Array) -> Array:
        return self.ops.round(x, self.step, None)
