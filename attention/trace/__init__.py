"""`Trace`: what was recorded of a call's rounding events, and how it is copied from a device.

Recording happens in `attention.events`; reading a trace for people is in `experiments.trace`.
"""
