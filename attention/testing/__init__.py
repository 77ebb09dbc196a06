"""Tests of attention kernels that are not ours: inputs, calls, statistics and assertions.

`roundscope.testing` re-exports the public names.
"""
