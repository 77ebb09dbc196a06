"""The hook `at`, which is called at every rounding event: it rounds, injects errors and records.

`hook` has the hook itself, the injected errors and the random bits, and `recorder` what a trace
keeps. `attention.sites` lists the events, and `attention.trace` makes a `Trace`
of what is recorded.
"""
