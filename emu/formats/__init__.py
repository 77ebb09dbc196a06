"""Number formats as data, and what follows from a format alone.

`format` has the formats, `codes` converts between numbers and their codes, and `spacing` computes
the distance between neighboring numbers. `emu.roundings` rounds numbers to a format, and
`emu.blocks` has the formats with shared scales.
"""
