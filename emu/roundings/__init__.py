"""How one value is rounded: the modes and policies, the one rule on integers, and random bits.

`modes` has the modes, the policies and their words, `rule` has the definition that the executors in
`emu.backends` run, and `random` has the bits of the stochastic mode. `nearest` is a fast path of
XLA. `judge` computes the same roundings in exact fractions and shares no code with `rule`.
"""
