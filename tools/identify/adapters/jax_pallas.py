"""`mha` of jax.experimental.pallas.ops.gpu.attention."""

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.jax_call import called


def mha(x: Inputs) -> Outputs:
    """Call the kernel with its default tile sizes."""
    from jax.experimental.pallas.ops.gpu.attention import mha as attention

    options = {"segment_ids": None, "sm_scale": x.scale, "causal": x.is_causal}
    return called(attention, x, options)
