"""The version of the numbers: stored results with another one are not comparable to the bit."""

# raised with every change of an output bit, that is of a golden digest (tests/test_golden.py holds
# it)
NUMERICS = 5
