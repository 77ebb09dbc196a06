"""What follows from a trace: which events are biased, what rounding does to results, the running
error of P V.
"""
