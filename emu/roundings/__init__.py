"""How one value is rounded: the choices, the one rule on integers, and random bits.

`modes` has the choices, `rule` the definition that executors in `emu.backends` run, `random` and
`threefry` the bits of the stochastic mode. `nearest` is a fast path of XLA. `judge` decides the
same roundings in exact fractions and shares no code with the rule.
"""
