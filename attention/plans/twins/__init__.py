"""Twins: plans that give the bits of a real kernel, each with the tiles and versions for which
that was shown.

A twin is compared with outputs that the kernel wrote on an H200 or H100 (tests/golden/kernels), and
docs/findings/kernels.md has the share of equal bits. Plans that were not compared with a kernel
are in `attention.plans.presets`. `twin` says everything of one: the names, tables and tests of
twins follow from it. There is a file for each family of kernels.
"""

from roundscope.attention.plans.twins import (
    cudnn,
    flash_2,
    flash_3,
    jax,
    serving,
    torch_fused,
    unfused,
)
from roundscope.attention.plans.twins.twin import MADE, WHOLE, Tiles, Twin, always

__all__ = ["TWINS", "TWIN_OF", "WHOLE", "Tiles", "Twin", "always"]

_FAMILIES = (flash_2, cudnn, torch_fused, unfused, jax, flash_3, serving)

TWINS: dict[str, Twin] = {
    name: own
    for family in _FAMILIES
    for name, own in MADE.items()
    if own.make.__module__ == family.__name__
}
"""The twins by name; `Plan.preset` knows the names too and returns the plan alone."""

TWIN_OF = {kernel: own.name for own in TWINS.values() for kernel in own.kernels}
"""The name of the twin of each kernel that `roundscope check` and `identify` call by name."""
