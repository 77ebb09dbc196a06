"""`roundscope diagnose`: tensors or a training run in; which rounding events did it, the evidence,
and a repair out.
"""
