"""Block-scaled formats: MX, NVFP4 and FP8 with block scales.

`format` describes them, `api` rounds to them, `codes` stores them, `dot` multiplies matrices of
them, `stats` says what they did to an array. `rule` is the definition on integers; `scaled` and
`power32` (Numba, called by `kernels`), `xla` and `traced` execute it. Formats without scales are in
`emu.formats`.
"""
