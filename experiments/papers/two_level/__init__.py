"""FP8 attention on Hopper over long rows: how much too short its output becomes.

It also measures what flushing the accumulator of O repairs. Here is the study `roundscope reproduce
two-level`; the arithmetic is in attention.softmax.flushed and emu.sums.tensor_cores.
"""
