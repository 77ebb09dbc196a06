"""NumPy arrays, rounded and summed by Numba kernels: one thread a call, compiled code kept on
disk.
"""
