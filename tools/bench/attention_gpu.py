"""The contestants of `bench attention` on a GPU, all of which read BF16 arrays.

They are our fused kernels and our XLA engine, and the attention of PyTorch and cuDNN in BF16, whose
roundings are their own.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from roundscope.attention.plans.twins import TWINS
from roundscope.tools.bench.attention import Contestant, Size, emulated, inputs, of_jax

# tiles by the features of a head; each was the fastest of some plan
TILES = {64: ((128, 128), (64, 64)), 128: ((128, 64), (128, 128), (64, 64))}
SLOW_TILE = (64, 64)


def contestants(size: Size) -> list[Contestant]:
    """Return the contestants of a size, rivals first.

    PyTorch takes part if it is installed and sees the GPU; what takes seconds is timed at one size
    only.
    """
    import jax

    arrays = inputs(size, "bfloat16")
    fused = {
        f"{name}, fused {q} x {k}": emulated(name, size, "pallas", (q, k))
        for name in OURS
        for q, k in TILES[size.features]
    }
    for name in REAL:
        q, k = TWINS[name].tiles(size.features)
        fused[f"{name}, fused {q} x {k}"] = emulated(name, size, "pallas", (q, k))
    # a kernel has no room for its own tiles, 512 x 512
    released = emulated("qiu-yao-compiled", size, "pallas", SLOW_TILE)
    fused["qiu-yao-compiled, fused 64 x 64"] = released
    slow = {
        "fa2-bf16, fused 64 x 64": emulated("fa2-bf16", size, "pallas", SLOW_TILE),
        "qiu-yao, fused 64 x 64": emulated("qiu-yao", size, "pallas", SLOW_TILE),
        "fa2-bf16@hopper, xla": emulated("fa2-bf16@hopper", size, "xla", (128, 128)),
    }
    is_first = size.features == 64 and not size.is_causal
    rivals: dict[str, Callable[..., Any]] = {
        "jax.nn, BF16, cuDNN": partial(
            jax.nn.dot_product_attention, is_causal=size.is_causal, implementation="cudnn"
        ),
        "jax.nn, FP32, XLA": partial(_wide, size.is_causal),
    }
    ours = fused | (slow if is_first else {})
    with ThreadPoolExecutor(8) as pool:
        makers = (rivals | ours).items()
        compiled = list(
            pool.map(lambda item: of_jax(item[0], item[1], arrays, is_ours=item[0] in ours), makers)
        )
    return [*torch_kernels(size), *compiled]


OURS = ("fa2-bf16@hopper", "qiu-yao@hopper")
REAL = ("fa2", "cudnn")  # plans that are PyTorch's kernels, with the tiles of these


def _wide(is_causal: bool, q: Any, k: Any, v: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.nn.dot_product_attention(
        *(x.astype(jnp.float32) for x in (q, k, v)), is_causal=is_causal
    )


def torch_kernels(size: Size) -> list[Contestant]:
    """Return scaled_dot_product_attention by both of the fast kernels that PyTorch may choose."""
    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    shape = (size.batch, size.heads, size.tokens, size.features)
    x = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    backends = {
        "torch SDPA, BF16, cuDNN": SDPBackend.CUDNN_ATTENTION,
        "torch SDPA, BF16, FlashAttention-2": SDPBackend.FLASH_ATTENTION,
    }
    return [_of_torch(name, backend, x, size.is_causal) for name, backend in backends.items()]


def _of_torch(name: str, backend: Any, x: list[Any], is_causal: bool) -> Contestant:
    import torch
    from torch.nn.attention import sdpa_kernel

    q, k, v = x

    def forward() -> Any:
        with sdpa_kernel(backend), torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def both() -> Any:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        return torch.autograd.grad(out, x, torch.ones_like(out))

    return Contestant(name, forward, both, lambda _: torch.cuda.synchronize())
