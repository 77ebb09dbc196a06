"""What computes: `ops` is the interface that an algorithm needs; each folder implements it.

`numba` runs NumPy arrays, `xla` JAX arrays, `kernels` what is inside a fused GPU kernel. No
rounding is defined here. Every fast path is proved equal to `emu.roundings.rule` by the test that
docs/architecture.md names.
"""
