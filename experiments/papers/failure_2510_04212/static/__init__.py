"""Consequences of rounding in arXiv 2510.04212 that need no training.

They concern row sums, ties, shifts and orders of operations.
"""
