"""The softmax of a tile, in which published kernels differ; each of its steps is a named event.

`maximum`, `exponents`, `row_sums` and `logarithm` have its parts, `quotient` and `softcap` their
gradients too, `sinks` a logit that every row sees, and `flushed` an O that is kept in two levels.
The equations of a tile, which call them, are in `attention.algorithm`; the fields of a plan that
choose among them are in `attention.plans.choices`.
"""
