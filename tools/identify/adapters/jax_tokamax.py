"""`tokamax.dot_product_attention` with its kernels for GPUs.

They are Pallas through Triton, Pallas through Mosaic, and the chunked one of XLA.
"""

from functools import partial

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.jax_call import called


def _run(implementation: str, x: Inputs) -> Outputs:
    import tokamax
    from absl import flags

    if not flags.FLAGS.is_parsed():  # otherwise it would parse this program's command line
        flags.FLAGS(["tokamax"])
    options = {"scale": x.scale, "is_causal": x.is_causal, "implementation": implementation}
    return called(tokamax.dot_product_attention, x, options)


triton = partial(_run, "triton")
mosaic = partial(_run, "mosaic")
chunked = partial(_run, "xla_chunked")
