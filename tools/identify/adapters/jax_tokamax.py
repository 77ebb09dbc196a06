"""`tokamax.dot_product_attention` with its kernels for GPUs.

They are Pallas through Triton, Pallas through Mosaic, and the chunked one of XLA.
"""

from functools import cache, partial
from typing import Any

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.jax_call import called


def _run(implementation: Any, x: Inputs) -> Outputs:
    import tokamax
    from absl import flags

    if not flags.FLAGS.is_parsed():  # otherwise it would parse this program's command line
        flags.FLAGS(["tokamax"])
    if x.window is not None:  # keys before and after the query's own
        window = x.window - 1, 0 if x.is_causal else x.window - 1
    else:
        window = None
    options = {
        "scale": x.scale,
        "is_causal": x.is_causal,
        "local_window_size": window,
        "logits_soft_cap": x.softcap,
        "implementation": implementation,
    }
    return called(tokamax.dot_product_attention, x, options)


def stale(x: Inputs) -> Outputs:
    """Call the kernel through Mosaic with a maximum that grows by steps of more than 8 only."""
    return _run((_of_threshold(2.0**-8),), x)


@cache
def _of_threshold(threshold: float) -> Any:
    """Return the operator that multiplies its sums by alpha only where alpha is below a number."""
    from tokamax._src.ops.attention.pallas_mosaic_gpu import PallasMosaicGpuFlashAttention

    return PallasMosaicGpuFlashAttention(rescale_threshold=threshold)


triton = partial(_run, "triton")
mosaic = partial(_run, "mosaic")
chunked = partial(_run, "xla_chunked")
