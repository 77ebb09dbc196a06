"""Block-scaled formats (MX, NVFP4, FP8 with block scales): the format, the scale rules, storage
codes, sums, statistics.

`rule` is the definition on integers; `kernels`, `power32`, `xla` and `traced` execute it. Formats
without scales are in `emu.formats`.
"""
