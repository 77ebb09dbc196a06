"""What computes: `ops` is the interface that an algorithm needs from an array library; each folder
implements it.

No rounding is defined here. Every fast path is proved equal to `emu.rounding.rule` by the test that
docs/architecture.md names.
"""
