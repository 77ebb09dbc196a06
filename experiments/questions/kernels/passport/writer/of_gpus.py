"""Packages of kernels for GPUs that are called with tensors of PyTorch."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from .calls import EPS, HALF, HEADS, SCALE, TOKENS, TYPES, WIDE, Arrays, Kernel
from .of_torch import called


def _liger(operation: str) -> Kernel:
    """Kernels of Liger by the functions of autograd around them, which need no transformers."""
    names = {
        "rms_norm": "LigerRMSNormFunction",
        "layer_norm": "LigerLayerNormFunction",
        "softmax": "LigerSoftmaxFunction",
        "silu_mul": "LigerSiLUMulFunction",
    }
    file = "swiglu" if operation == "silu_mul" else operation

    def run(x: Arrays, kind: str) -> Arrays:
        function = getattr(import_module(f"liger_kernel.ops.{file}"), names[operation])
        more = (EPS[operation],) if operation in EPS else ()
        return called(lambda **own: function.apply(*own.values(), *more), x, kind)

    return run


def _fla(operation: str) -> Kernel:
    """Kernels of flash-linear-attention; its attention with a softmax takes (B, T, N, H)."""

    def run(x: Arrays, kind: str) -> Arrays:
        if operation == "attention":
            from fla.ops.attn.parallel import parallel_attn

            return called(lambda q, k, v: parallel_attn(q=q, k=k, v=v), x, kind, gradients=True)
        if operation == "silu_mul":
            from fla.modules.activations import swiglu

            return called(lambda gate, up: swiglu(gate, up), x, kind)
        from fla.modules import layernorm

        make = getattr(layernorm, operation)
        return called(
            lambda x, weight, bias=None: make(x, weight, bias, eps=EPS[operation]), x, kind
        )

    return run


def _sage(x: Arrays, kind: str) -> Arrays:
    """SageAttention 1 subtracts the mean of k in place and has no gradients."""
    from sageattention import sageattn

    def attend(q: Any, k: Any, v: Any) -> Any:
        return sageattn(q, k.clone(), v, is_causal=True)

    return called(attend, x, kind, heads_first=True)


def _cudnn(x: Arrays, kind: str) -> Arrays:
    """cuDNN's SDPA by its front end, forward and backward."""
    import torch

    own = {
        name: torch.from_numpy(np.array(a.swapaxes(1, 2), order="C")).to(
            "cuda", getattr(torch, TYPES[kind])
        )
        for name, a in x.items()
    }
    stats = torch.empty(1, HEADS, TOKENS, 1, device="cuda")
    options = {"attn_scale": SCALE, "use_causal_mask": True}
    given = {name: own[name] for name in ("q", "k", "v")}
    out = torch.empty_like(own["q"])

    def forward(graph: Any, given: dict[str, Any]) -> Any:
        try:
            return graph.sdpa(**given, is_inference=False, **options)
        except TypeError:  # of newer releases
            return graph.sdpa(**given, generate_stats=True, **options)

    _graph(kind, given, forward, [out, stats])
    given |= {"o": out, "dO": own["do"], "stats": stats}
    grads = [torch.empty_like(own["q"]) for _ in range(3)]
    _graph(kind, given, lambda graph, given: graph.sdpa_backward(**given, **options), grads)
    results = zip(("out", "dq", "dk", "dv"), (out, *grads), strict=True)
    return {n: a.float().cpu().numpy().swapaxes(1, 2).copy() for n, a in results}


def _graph(
    kind: str,
    given: dict[str, Any],
    make: Callable[[Any, dict[str, Any]], Any],
    results: list[Any],
) -> None:
    """Run a graph of cuDNN from tensors by name into tensors, in the order of its results."""
    import cudnn
    import torch

    own, single = (
        getattr(cudnn.data_type, n) for n in ({"bf16": "BFLOAT16", "fp16": "HALF"}[kind], "FLOAT")
    )
    graph = cudnn.pygraph(io_data_type=own, intermediate_data_type=single, compute_data_type=single)
    names = {name: graph.tensor_like(a) for name, a in given.items()}
    memory = {names[name]: a for name, a in given.items()}
    for made, a in zip(make(graph, names), results, strict=False):
        made.set_output(True).set_dim(list(a.shape)).set_stride(list(a.stride()))
        made.set_data_type(single if a.dtype == torch.float32 else own)
        memory[made] = a
    graph.build([cudnn.heur_mode.A])
    space = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device="cuda")
    graph.execute(memory, space)
    torch.cuda.synchronize()


LIGER, FLA = "liger-kernel", "fla-core"
KERNELS = {  # name -> library, operation, device, types, function
    "liger-rms-norm": (LIGER, "rms_norm", "gpu", WIDE, _liger("rms_norm")),
    "liger-layer-norm": (LIGER, "layer_norm", "gpu", WIDE, _liger("layer_norm")),
    "liger-softmax": (LIGER, "softmax", "gpu", WIDE, _liger("softmax")),
    "liger-silu-mul": (LIGER, "silu_mul", "gpu", WIDE, _liger("silu_mul")),
    "fla-attention": (FLA, "attention", "gpu", HALF, _fla("attention")),
    "fla-rms-norm": (FLA, "rms_norm", "gpu", WIDE, _fla("rms_norm")),
    "fla-layer-norm": (FLA, "layer_norm", "gpu", WIDE, _fla("layer_norm")),
    "fla-silu-mul": (FLA, "silu_mul", "gpu", WIDE, _fla("silu_mul")),
    "sage-attention": ("sageattention", "attention", "gpu", HALF, _sage),
    "cudnn-attention": ("nvidia-cudnn-frontend", "attention", "gpu", HALF, _cudnn),
}
