"""The hook `at` that stands at every rounding event: it rounds, injects and records.

Which events there are is in `attention.sites`; what is kept of them becomes a `Trace` in
`attention.trace`.
"""
