"""Consequences of rounding that need no training: row sums, ties, shifts and orders in arXiv
2510.04212.
"""
