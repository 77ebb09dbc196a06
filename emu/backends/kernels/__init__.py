"""Arithmetic inside fused GPU kernels, with the same bits as everywhere else.

Here are narrow numbers where the bits are the same (`narrowing`), conversions by PTX (`convert`),
exp (`exp`, `exp_table`), a GPU's approximate instructions (`instructions`) and products without
transpositions (`transposing`). The kernels themselves, which use this, are in
`attention.engines.kernels`.
"""
