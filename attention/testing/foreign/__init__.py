"""Kernels that are not ours, called: their library, layout, type, and what they raise."""
