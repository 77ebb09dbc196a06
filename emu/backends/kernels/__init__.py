"""Arithmetic inside fused GPU kernels: narrow numbers where the bits are the same, PTX conversions,
exp, transposed products.

The kernels themselves, which use this, are in `attention.engines.kernels`.
"""
