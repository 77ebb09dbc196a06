"""The arithmetic of a warp group, 128 threads of a Hopper GPU, in kernels that Mosaic GPU compiles.

`machine` has the operations, and `registers` runs PTX on the registers of its threads.
"""

ROWS = 64  # of a tile of a warp group
