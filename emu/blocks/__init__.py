"""Block-scaled formats: MX, NVFP4 and FP8 with block scales.

`format` describes the formats and `names` has their words. `api` rounds to them, `codes` stores
arrays in them, `dot` multiplies such matrices, and `stats` describes their errors. `rule` is the
definition on integers; `kernels` (Numba) and `xla` execute it. Formats without scales are in
`emu.formats`.
"""
