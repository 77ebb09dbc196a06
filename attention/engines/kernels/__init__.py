"""The fused GPU kernels: grids, memory and programs around the equations of every engine; what they
refuse is in `fit`.
"""
