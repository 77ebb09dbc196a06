"""The executor for NumPy arrays: Numba kernels, whose compiled code is kept on disk."""
