"""Bit-exact models of NVIDIA's approximate instructions, which fused kernels use.

The instructions are ex2, lg2, rcp, rsqrt and tanh of PTX, NVIDIA's assembly language. There are
also models of library functions that call these instructions or replace them. Correctly rounded
functions are in `emu.functions`; `emu.backends.kernels` calls the instructions themselves.
"""
