"""The fused GPU kernels: grids, memory and programs around the equations of every engine.

A program is one run of a kernel. It owns one tile of a head, a tile of queries or of keys, and
walks over the tiles of the other side: it computes them one after the other in a loop.

`engine` has the functions of an engine. `forward`, `backward` and `gradients` have the kernels and
their programs, `tiles` and `call` the computation of a tile and what a kernel is made for, and
`running` the call of a kernel. `record` and `summary` have what a kernel records for a trace, and
`fit` refuses what the kernels cannot run.
"""

import jax

from roundscope.attention.errors import NotFused

try:
    import jax.experimental.pallas.triton
except ImportError:
    raise NotFused(
        f"engine='pallas': jax {jax.__version__} has no Triton backend of Pallas, which jax 0.10 to"
        " 0.12 have; install one of those",
        ", or ",
    ) from None
