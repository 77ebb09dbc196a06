"""FlashAttention-4's forward in FP8: its published errors, and how much too short its output is.

Here is the study `roundscope reproduce fa4`; the plans are in attention.plans.blackwell.
"""
