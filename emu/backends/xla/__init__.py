"""The executor for JAX arrays under XLA, on a CPU or a GPU.

XLA traces the rule. Formats and modes are constants of a program or, with `traced`, data.
"""
