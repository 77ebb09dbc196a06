"""Linear layers whose operands and results are rounded to block-scaled formats.

The proxy and the GPT share them.
"""
