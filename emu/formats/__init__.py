"""Number formats as data, and what follows from a format alone.

`format` has the formats, `codes` the codes of their numbers, `spacing` the distance between
neighbors. How a number is rounded into a format is in `emu.roundings`; formats with shared scales
are in `emu.blocks`.
"""
