"""Hypothesis strategies of formats, roundings, values, plans, inputs of attention, and injections.

    from hypothesis import given
    from roundscope.testing.strategies import attention_inputs

    @given(attention_inputs(tokens=64, causal=True))
    def test_flash(inputs): ...

This module imports hypothesis, which `pip install roundscope[testing]` installs.
"""

from roundscope.attention.testing.strategies import attention_inputs, injections, plans
from roundscope.emu.testing.strategies import (
    arrays,
    bit_patterns,
    block_formats,
    blocks,
    formats,
    roundings,
    values,
)

__all__ = [
    "arrays",
    "attention_inputs",
    "bit_patterns",
    "block_formats",
    "blocks",
    "formats",
    "injections",
    "plans",
    "roundings",
    "values",
]
