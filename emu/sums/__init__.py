"""How a sum of products becomes one number: `Accumulator`, its orders, and tensor cores.

Written for any array library; the compiled loops are in `emu.backends`.
"""
