"""`roundscope trace`: a layer's tensors in; bias tests, a table, pictures and report.html out.

Many conditions at once are in `tools.sweep`; the trace itself is `attention.trace`.
"""
