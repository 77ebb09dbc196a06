"""The steps of a tile's softmax, in which published kernels differ; each step is a named event.

`maximum`, `exponents`, `row_sums` (with the gradient by the quotient rule) and `logarithm` have the
parts of the softmax. `softcap` has bounded scores and their gradient, `sinks` has a logit
that every row sees, and `flushed` keeps O in two sums.
The equations of a tile, which call them, are in `attention.algorithm`; the fields of a plan that
choose among them are in `attention.plans.choices`.
"""
