"""Fused kernels for Hopper GPUs, compiled by Mosaic GPU: groups of warps with different work.

A program owns 128 rows of a head. Two groups of warps compute 64 of them each, and a third copies
the tiles that they walk over to shared memory, some tiles ahead (`walk`). `programs` has the
output, dQ, and dK and dV. The equations are those of `attention.algorithm`, and the bits those of
the kernels that Triton compiles. `fit` says which calls have these kernels.
"""

from roundscope.emu.backends.kernels.warpgroups import ROWS

GROUPS = 2  # warp groups that compute
OWNED = GROUPS * ROWS  # rows of a program
