"""FP8 attention on Hopper over long rows: how much too short its output gets, and what flushing the
accumulator of O cures.

Here: the study `roundscope reproduce two-level`. Not here: the arithmetic
(attention.softmax.flushed, emu.sums.tensor_cores).
"""
