"""How a sum of products becomes one number: `Accumulator`, its orders, and tensor cores.

The code runs on any array library; the compiled loops are in `emu.backends`.
"""
