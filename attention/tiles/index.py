"""`Index`: the type of the numbers that count heads, tiles and rows."""

from typing import TypeAlias

from roundscope.emu.backends.ops import Array

# a Python int, or an integer of the array library: inside a loop under XLA it is traced
Index: TypeAlias = int | Array
