"""The version of the numbers: results that were stored under another version differ in bits."""

# raised with every change of an output bit, that is of a golden digest (tests/test_golden.py holds
# it)
NUMERICS = 5
