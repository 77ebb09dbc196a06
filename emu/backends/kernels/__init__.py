"""Arithmetic inside fused GPU kernels, with the same bits as in all other executors.

`narrowing` computes in types narrower than binary64 where that does not change the bits. `convert`
rounds by instructions in PTX (NVIDIA's assembly language), `exp` computes e^x, `instructions` has a
GPU's approximate instructions, and `transposing` avoids transpositions. The kernels that use this
package are in `attention.engines.kernels`.
"""
