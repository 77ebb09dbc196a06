"""NumPy arrays, rounded and summed by Numba kernels; compiled code is kept on disk."""
