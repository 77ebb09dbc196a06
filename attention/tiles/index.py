"""`Index`: the type of the numbers that count heads, tiles and rows."""

from typing import TypeAlias

from roundscope.emu.backends.ops import Array

# a Python int, or an integer of the array library, as in a loop under XLA, where it is traced
Index: TypeAlias = int | Array
