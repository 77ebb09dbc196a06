"""Instructions of NVIDIA GPUs that approximate a function, to the bit, as fused kernels use them.

They are ex2, lg2 and rcp of PTX, and the code of libraries that calls them or takes their place.
Correctly rounded functions are in `emu.functions`; how a kernel calls an instruction is not said
here.
"""
