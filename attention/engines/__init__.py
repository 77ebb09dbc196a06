"""The engines, which run the heads of a call.

`numpy` runs them in threads with Numba kernels, `xla` as one traced function, `host` is `numpy`
inside programs of JAX, and `kernels` in fused kernels on a GPU. `protocol` has what each of them
has to have, and finds one by its name. All of them run the code of `attention.algorithm` and give
the same bits. None of them defines a rounding event.
"""
