"""Linear layers whose operands and results are rounded to block-scaled formats: shared by the proxy
and the GPT.
"""
