"""`Trace`: what was recorded of a call's rounding events.

`parts` has what an engine recorded tile by tile and head by head, `from_device` copies it from
JAX's device, and `summary` makes a trace of it. Recording happens in `events`; reading a
trace for people is in `tools.trace`.
"""
