"""What runs heads: `numpy` (threads and Numba kernels), `xla` (one traced function), `kernels`
(fused, on a GPU).

All run the text of `attention.algorithm`, bit for bit alike. None defines an event.
"""
