"""The hook `at`, which is called at every rounding event: it rounds, injects errors and records.

`hook` has the hook itself, `perturbing` the injected errors, `recorder` what a trace keeps, and
`streams` the random bits. `attention.sites` lists the events, and `attention.trace` makes a `Trace`
of what is recorded.
"""
