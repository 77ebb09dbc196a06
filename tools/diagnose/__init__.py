"""`roundscope diagnose`: finds the rounding events behind a failure, with evidence and a repair.

Its input is a file of tensors or the folder of a training run.
"""
