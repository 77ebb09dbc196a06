"""Assertions and test inputs for low-precision arithmetic: arrays, casts and their errors.

Every assertion takes NumPy arrays (the dtypes of ml_dtypes included), JAX arrays and tensors of
PyTorch, and raises AssertionError with the worst number in decimal, in hexadecimal and in bits::

    assert_bit_equal(actual, expected)      dtype, shape and every bit
    assert_max_ulp(actual, expected, 1)     at most one number of the format apart
    assert_rounds_as(cast, "e4m3fn")        a cast rounds as `emu.round_to` does, on hard inputs
    assert_unbiased(actual, exact, "bf16")  errors are not biased, up or toward zero

The module `roundscope.emu.testing.strategies` has Hypothesis strategies of formats, roundings and
values, and is imported by itself. Importing this package imports neither hypothesis, numba, jax nor
torch.
"""

from roundscope.emu.testing.arrays import assert_bit_equal, assert_max_ulp, assert_unbiased
from roundscope.emu.testing.rounding import assert_rounds_as

__all__ = ["assert_bit_equal", "assert_max_ulp", "assert_rounds_as", "assert_unbiased"]
