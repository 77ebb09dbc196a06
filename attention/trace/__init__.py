"""`Trace`: what was recorded of a call's rounding events.

`summary` makes it from what an engine recorded tile by tile and head by head; `from_device` copies
that from JAX's device. Recording happens in `attention.events`; reading a trace for people is in
`tools.trace`.
"""
