"""The version of the numerics: results that were stored under another version differ in bits."""

# It is raised whenever an output bit changes, and with it a golden digest; tests/test_golden.py
# checks it.
NUMERICS = 6
