"""The error budget of a call: which rounding event makes how much of the error of each result."""
