"""How one value is rounded: the choices (`modes`), the one rule on integers (`rule`), random bits
for stochastic modes.

`judge` decides the same roundings in exact fractions and shares no code with the rule. Executors of
the rule are in `emu.backends`.
"""
