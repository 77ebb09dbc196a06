"""The executors: `ops` is the interface that algorithms need, and each folder implements it.

`numba` computes on NumPy arrays, `xla` on JAX arrays, and `kernels` inside fused GPU kernels. No
rounding is defined here. For every fast path docs/architecture.md names the test that shows its
results to be equal to those of `emu.roundings.rule`.
"""
