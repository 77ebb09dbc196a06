"""PyTorch, and transformers, which runs on it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from .calls import EPS, FEATURES, SCALE, TOKENS, TYPES, WIDE, WIDTH, Arrays, Kernel


def has_gpu() -> bool:
    """Return whether there is a GPU for PyTorch."""
    import torch

    return bool(torch.cuda.is_available())


def device() -> str:
    """Return where the calls run."""
    return "cuda" if has_gpu() else "cpu"


def called(
    function: Callable[..., Any],
    x: Arrays,
    kind: str,
    *,
    heads_first: bool = False,
    gradients: bool = False,
) -> Arrays:
    """Return the result of a function of torch tensors and, if wanted, its gradients.

    heads_first: whether it takes (B, N, T, H)
    """
    import torch

    if not has_gpu():
        torch.set_num_threads(1)  # sums are divided among threads

    def given(a: np.ndarray) -> Any:
        a = np.array(a.swapaxes(1, 2) if heads_first else a, order="C")
        return torch.from_numpy(a).to(device(), getattr(torch, TYPES[kind]))

    def array(a: Any) -> np.ndarray:
        a = a.detach().float().cpu().numpy()
        return np.ascontiguousarray(a.swapaxes(1, 2) if heads_first else a)

    own = {name: given(a) for name, a in x.items()}
    do = own.pop("do", None)
    args = {name: a.requires_grad_(gradients) for name, a in own.items()}
    out = function(**args)
    found = {"out": array(out)}
    if gradients and do is not None:
        results = torch.autograd.grad(out, list(args.values()), do.to(out.dtype))
        found |= {f"d{name}": array(a) for name, a in zip(args, results, strict=True)}
    return found


def _attention(function: Callable[..., Any], x: Arrays, kind: str) -> Arrays:
    return called(function, x, kind, heads_first=True, gradients=True)


def _sdpa(backend: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        def attend(q: Any, k: Any, v: Any) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return scaled_dot_product_attention(q, k, v, is_causal=True)

        return _attention(attend, x, kind)

    return run


def _eager(x: Arrays, kind: str) -> Arrays:
    """Attention written out: softmax(scale q k^T) v."""
    import torch

    def attend(q: Any, k: Any, v: Any) -> Any:
        hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.transpose(-1, -2)) * SCALE
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v

    return _attention(attend, x, kind)


def _flex(x: Arrays, kind: str) -> Arrays:
    """FlexAttention, compiled on a GPU; on a CPU operation by operation, without gradients."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, TOKENS, TOKENS, device=device())
    run: Any = torch.compile(flex_attention, dynamic=False) if has_gpu() else flex_attention

    def attend(q: Any, k: Any, v: Any) -> Any:
        return run(q, k, v, block_mask=mask)

    return called(attend, x, kind, heads_first=True, gradients=has_gpu())


def _transformers_eager(x: Arrays, kind: str) -> Arrays:
    """Eager attention of Llama's models, with the mask that the library makes."""
    import torch
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def attend(q: Any, k: Any, v: Any) -> Any:
        module: Any = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=FEATURES)
        least = torch.finfo(q.dtype).min
        mask = torch.full((1, 1, TOKENS, TOKENS), least, dtype=q.dtype, device=q.device).triu(1)
        out = eager_attention_forward(module, q, k, v, mask, scaling=SCALE)[0]
        return out.transpose(1, 2)

    return _attention(attend, x, kind)


def _transformers_rms_norm(x: Arrays, kind: str) -> Arrays:
    import torch
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(WIDTH, EPS["rms_norm"])

    def run(x: Any, weight: Any) -> Any:
        norm.weight = torch.nn.Parameter(weight)
        return norm(x)

    return called(run, x, kind)


def _operation(operation: str) -> Kernel:
    def run(x: Arrays, kind: str) -> Arrays:
        import torch.nn.functional as f

        calls: dict[str, Callable[..., Any]] = {
            "rms_norm": lambda x, weight: f.rms_norm(x, (WIDTH,), weight, EPS["rms_norm"]),
            "layer_norm": lambda x, weight, bias: f.layer_norm(
                x, (WIDTH,), weight, bias, EPS["layer_norm"]
            ),
            "softmax": lambda x: f.softmax(x, -1),
            "silu_mul": lambda gate, up: f.silu(gate) * up,
            "gelu": f.gelu,
        }
        return called(calls[operation], x, kind)

    return run


KERNELS = {  # name -> library, operation, device, types, function
    "torch-math": ("torch", "attention", "any", WIDE, _sdpa("MATH")),
    "torch-flash": ("torch", "attention", "any", WIDE, _sdpa("FLASH_ATTENTION")),
    "torch-efficient": ("torch", "attention", "gpu", WIDE, _sdpa("EFFICIENT_ATTENTION")),
    "torch-cudnn": ("torch", "attention", "gpu", ("bf16",), _sdpa("CUDNN_ATTENTION")),
    "torch-eager": ("torch", "attention", "any", WIDE, _eager),
    "torch-flex": ("torch", "attention", "any", WIDE, _flex),
    "torch-rms-norm": ("torch", "rms_norm", "any", WIDE, _operation("rms_norm")),
    "torch-layer-norm": ("torch", "layer_norm", "any", WIDE, _operation("layer_norm")),
    "torch-softmax": ("torch", "softmax", "any", WIDE, _operation("softmax")),
    "torch-silu-mul": ("torch", "silu_mul", "any", WIDE, _operation("silu_mul")),
    "torch-gelu": ("torch", "gelu", "any", WIDE, _operation("gelu")),
    "transformers-eager": ("transformers", "attention", "any", WIDE, _transformers_eager),
    "transformers-rms-norm": ("transformers", "rms_norm", "any", WIDE, _transformers_rms_norm),
}
