"""Instructions of NVIDIA GPUs that approximate a function, to the bit: ex2, lg2 and rcp of PTX, as
fused kernels use them.

Here: what the instructions compute, and code that takes their place. Not
here: correctly rounded functions (emu.functions), or how a kernel calls them.
"""
