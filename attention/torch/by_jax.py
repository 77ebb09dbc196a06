"""The operator by JAX: tensors of a CPU or a GPU enter and leave by DLPack, without a copy.

A program is compiled once for each set of options, shapes and types.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from roundscope.attention.api import attend
from roundscope.attention.torch.arrays import turned
from roundscope.attention.torch.options import Options


def run(
    program: Callable[[Options], Any], options: Options, tensors: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """Return the results of `forward` or `backward` as tensors.

    The tensors are on one device; None where a call has none.
    """
    is_wide = any(x is not None and x.dtype is torch.float64 for x in tensors)
    with jax.enable_x64(is_wide or bool(jax.config.read("jax_enable_x64"))):
        # the wait lets PyTorch reuse the memory of what JAX has read, on any stream
        results = jax.block_until_ready(program(options)(*map(_jax_of, tensors)))
        return tuple(from_dlpack(x) for x in results)


@lru_cache(256)
def forward(options: Options) -> Any:
    """Return the compiled forward, which takes q, k, v, mask, sinks and bias and returns (out,)."""
    return jax.jit(lambda *arrays: (_attended(options, *arrays),))


@lru_cache(256)
def backward(options: Options) -> Any:
    """Return the compiled backward, which takes dO, q, k, v, mask, sinks and bias.

    It returns the gradients of q, k, v, sinks and bias, without those that there are not.
    """

    def gradients(do: Any, q: Any, k: Any, v: Any, mask: Any, *others: Any) -> tuple[Any, ...]:
        def out(q: Any, k: Any, v: Any, others: Any) -> Any:
            return _attended(options, q, k, v, mask, *others)

        *own, of_others = jax.vjp(out, q, k, v, others)[1](do)
        return *own, *(x for x in of_others if x is not None)

    return jax.jit(gradients)


def _attended(options: Options, q: Any, k: Any, v: Any, mask: Any, sinks: Any, bias: Any) -> Any:
    """Return the output of JAX arrays in SDPA's layout."""
    own = options.of_attend() | {"mask": mask, "sinks": sinks, "bias": bias}
    return turned(attend(turned(q), turned(k), turned(v), **own))


def _jax_of(x: Tensor | None) -> jax.Array | None:
    """Return a tensor as a JAX array of the same device and memory, or None for None.

    JAX waits for what PyTorch's current stream still writes. The array is of this shape in row
    order, which a tensor that is not contiguous is copied into. A float64 tensor needs 64-bit types
    enabled.

    Raises:
        ValueError: JAX does not reach the device.
    """
    if x is None:
        return None
    if x.device.type == "cuda" and all(d.platform != "gpu" for d in jax.local_devices()):
        raise ValueError(
            f"q: on the device {x.device}, and this JAX has no GPU; install roundscope[cuda13], or"
            " pass q.cpu(), k.cpu() and v.cpu()"
        )
    array: jax.Array = jax.dlpack.from_dlpack(x.detach().contiguous())
    return array
