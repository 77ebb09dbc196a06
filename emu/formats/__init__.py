"""Number formats as data, and what follows from a format alone: codes of its numbers, the spacing
between them.

How a number is rounded into a format is in `emu.rounding`; formats with shared scales are in
`emu.blocks`.
"""
