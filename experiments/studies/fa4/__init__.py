"""FlashAttention-4's FP8 forward: the published errors of its two offsets, and how much too short
its output is.

Here: the study `roundscope reproduce fa4`. Not here: the plans (attention.plans.blackwell).
"""
