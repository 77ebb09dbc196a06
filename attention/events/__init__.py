"""The hook `at`, which is called at every rounding event: it rounds, injects errors and records.

`hook` has the hook itself, `perturbing` the injected errors, `recorder` what a trace keeps, and
`streams` the random bits. Which events exist is in `attention.sites`; what is kept of them becomes
a `Trace` in `attention.trace`.
"""
