"""JAX, and flax, tokamax and Keras, which run on it. Every call is compiled."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from .calls import EPS, FEATURES, HEADS, SCALE, TOKENS, TYPES, WIDE, Arrays, Kernel


def called(
    function: Callable[..., Any], x: Arrays, kind: str, *, gradients: bool = False
) -> Arrays:
    """Return the result of a function of JAX arrays and, if wanted, its gradients."""
    import jax
    import jax.numpy as jnp

    own = {name: jnp.asarray(a, TYPES[kind]) for name, a in x.items()}
    do = own.pop("do", None)

    def both(args: dict[str, Any], do: Any) -> dict[str, Any]:
        if not gradients:
            return {"out": function(**args)}
        out, pull = jax.vjp(lambda a: function(**a), args)
        return {"out": out} | {f"d{n}": a for n, a in pull(do.astype(out.dtype))[0].items()}

    return {n: np.asarray(a.astype(jnp.float32)) for n, a in jax.jit(both)(own, do).items()}


def _has_gpu() -> bool:
    import jax

    return any(own.platform == "gpu" for own in jax.devices())


def _dot_product_attention(implementation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        from jax.nn import dot_product_attention

        def attend(q: Any, k: Any, v: Any) -> Any:
            options: Any = {"is_causal": True, "implementation": implementation}
            return dot_product_attention(q, k, v, **options)

        return called(attend, x, kind, gradients=True)

    return run


def _einsum(x: Arrays, kind: str) -> Arrays:
    """Attention written out, with `jax.nn.softmax`."""
    import jax
    import jax.numpy as jnp

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) * SCALE
        seen = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))
        p = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
        return jnp.einsum("bnts,bsnh->btnh", p, v)

    return called(attend, x, kind, gradients=True)


def _splash(x: Arrays, kind: str) -> Arrays:
    """Pallas' splash attention of TPUs, by the interpreter of Pallas."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    causal: Any = splash_attention_mask.CausalMask((TOKENS, TOKENS))
    mask = splash_attention_mask.MultiHeadMask([causal] * HEADS)
    make: Any = splash_attention_kernel.make_splash_mha
    kernel = make(mask, head_shards=1, q_seq_shards=1, interpret=True)

    def attend(q: Any, k: Any, v: Any) -> Any:
        more = ((0, 0), (0, 0), (0, 128 - FEATURES))  # it takes multiples of 128 features
        own = (jnp.pad(a[0].swapaxes(0, 1), more) for a in (q * SCALE, k, v))
        return kernel(*own)[..., :FEATURES].swapaxes(0, 1)[None].astype(q.dtype)

    return called(attend, x, kind)


def _pallas(x: Arrays, kind: str) -> Arrays:
    """Pallas' attention of GPUs; where there is none, by the interpreter and without gradients."""
    from jax.experimental.pallas.ops.gpu import attention

    there = _has_gpu()

    def attend(q: Any, k: Any, v: Any) -> Any:
        options: Any = {"sm_scale": SCALE, "causal": True, "interpret": not there}
        return attention.mha(q, k, v, None, **options)

    return called(attend, x, kind, gradients=there)


def _operation(operation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        import jax

        calls: dict[str, Callable[..., Any]] = {
            "softmax": lambda x: jax.nn.softmax(x, axis=-1),
            "silu_mul": lambda gate, up: jax.nn.silu(gate) * up,
            "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        }
        return called(calls[operation], x, kind)

    return run


def _flax_norm(operation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        import flax.linen as nn

        make: Any = nn.LayerNorm if operation == "layer_norm" else nn.RMSNorm
        norm = make(epsilon=EPS[operation], dtype=TYPES[kind])

        def run(x: Any, weight: Any, **more: Any) -> Any:
            return norm.apply({"params": {"scale": weight, **more}}, x)

        return called(run, x, kind)

    return run


def _flax_attention(x: Arrays, kind: str) -> Arrays:
    import flax.linen as nn
    import jax.numpy as jnp

    def attend(q: Any, k: Any, v: Any) -> Any:
        seen = jnp.tril(jnp.ones((1, 1, TOKENS, TOKENS), bool))
        return nn.dot_product_attention(q, k, v, mask=seen)

    return called(attend, x, kind, gradients=True)


def _tokamax(implementation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        import tokamax
        from absl import flags

        if not flags.FLAGS.is_parsed():  # else it would parse this program's command line
            flags.FLAGS(["tokamax"])

        def attend(q: Any, k: Any, v: Any) -> Any:
            options: Any = {"is_causal": True, "implementation": implementation}
            return tokamax.dot_product_attention(q, k, v, **options)

        return called(attend, x, kind, gradients=True)

    return run


def _keras(x: Arrays, kind: str) -> Arrays:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    def attend(q: Any, k: Any, v: Any) -> Any:
        return keras.ops.dot_product_attention(q, k, v, is_causal=True)

    return called(attend, x, kind, gradients=True)


KERNELS = {  # name -> library, operation, device, types, function
    "jax-xla": ("jax", "attention", "any", WIDE, _dot_product_attention("xla")),
    "jax-cudnn": ("jax", "attention", "gpu", ("bf16",), _dot_product_attention("cudnn")),
    "jax-einsum": ("jax", "attention", "any", WIDE, _einsum),
    "jax-splash": ("jax", "attention", "cpu", WIDE, _splash),
    "jax-pallas": ("jax", "attention", "any", WIDE, _pallas),
    "jax-softmax": ("jax", "softmax", "any", WIDE, _operation("softmax")),
    "jax-silu-mul": ("jax", "silu_mul", "any", WIDE, _operation("silu_mul")),
    "jax-gelu": ("jax", "gelu", "any", WIDE, _operation("gelu")),
    "flax-attention": ("flax", "attention", "any", WIDE, _flax_attention),
    "flax-rms-norm": ("flax", "rms_norm", "any", WIDE, _flax_norm("rms_norm")),
    "flax-layer-norm": ("flax", "layer_norm", "any", WIDE, _flax_norm("layer_norm")),
    "tokamax-xla": ("tokamax", "attention", "any", WIDE, _tokamax("xla")),
    "tokamax-chunked": ("tokamax", "attention", "any", WIDE, _tokamax("xla_chunked")),
    "keras-attention": ("keras", "attention", "any", WIDE, _keras),
}
