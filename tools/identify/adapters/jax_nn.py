"""`jax.nn.dot_product_attention` with each of its implementations."""

from functools import partial

import jax

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.jax_call import called


def _run(implementation: str, x: Inputs) -> Outputs:
    options = {"scale": x.scale, "is_causal": x.is_causal, "implementation": implementation}
    return called(jax.nn.dot_product_attention, x, options)


xla = partial(_run, "xla")
cudnn = partial(_run, "cudnn")
