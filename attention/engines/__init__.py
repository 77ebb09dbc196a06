"""The engines, which run the heads of a call.

`numpy` runs them in threads with Numba kernels, `xla` as one traced function, and `kernels` in
fused kernels on a GPU. All of them run the code of `attention.algorithm` and give the same bits.
None of them defines a rounding event.
"""
