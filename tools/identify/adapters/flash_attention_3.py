"""FlashAttention-3 (package flash-attn3-jax), compiled for Hopper with 128 features.

Heads of fewer features run with zeros added. The package has kernels of BF16 and FP16 as functions
of JAX. It has one of E4M3 too, which its functions refuse, so that it is called as the library
exports it.
"""

import ctypes
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from flash_attn3_jax import flash_mha, flash_mha_with_kvcache
from torch import Tensor

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.foreign.jax_call import array, called, given
from roundscope.attention.testing.foreign.torch_call import array as array_of_torch
from roundscope.attention.testing.foreign.torch_call import tensor


def flash(x: Inputs, dtype: str = "bfloat16", splits: int = 1) -> Outputs:
    """Call the kernels; grouped heads and windows are their own.

    Args:
        x: the inputs.
        dtype: the type of the tensors, "bfloat16" or "float16".
        splits: into how many parts the keys of a head are split; there are no gradients of several.
    """
    options = {"softmax_scale": x.scale, "is_causal": x.is_causal, "window_size": _window(x)}
    q, k, v = (given(a, dtype, "BTNH") for a in (x.q, x.k, x.v))
    out, lse = flash_mha_with_kvcache(
        q, k, v, num_splits=splits, return_softmax_lse=True, **options
    )
    sums = np.asarray(lse)
    if splits > 1:
        return Outputs(out=array(out, "BTNH"), lse=sums)
    return replace(called(flash_mha, x, options, dtype), lse=sums)


def _window(x: Inputs) -> tuple[int, int]:
    """Return how many keys a query sees before and after its own; -1 for all."""
    if x.window is None:
        return -1, -1
    return x.window - 1, 0 if x.is_causal else x.window - 1


def fp8(x: Inputs, descales: tuple[float, float, float] | None = None) -> Outputs:
    """Return the output and the logarithms of the row sums; the kernel has no backward.

    Args:
        x: the inputs, which are divided by their scales and cast to E4M3.
        descales: the scales of q, k and v of the first key head, which grow by 1/64 of them from
            one head to the next; None for no scales.
    """
    q, k, v, scales = operands(x, descales)
    out, lse = forward(q, k, v, x, scales)
    return Outputs(out=array_of_torch(out, "BTNH"), lse=lse.cpu().numpy())


def operands(
    x: Inputs, descales: tuple[float, float, float] | None
) -> tuple[Tensor, Tensor, Tensor, list[Tensor] | None]:
    """Return q, k and v in E4M3 and their scales, each (B, key heads), as `fp8` has them."""
    batch, heads = x.k.shape[0], x.k.shape[2]
    growth = 1 + np.arange(heads, dtype=np.float32) / 64
    scales = [np.float32(s) * growth for s in descales or ()]
    narrow = []
    for i, a in enumerate((x.q, x.k, x.v)):
        repeated = np.repeat(scales[i], a.shape[2] // heads)[:, None] if scales else np.float32(1)
        narrow.append(tensor(a / repeated, torch.float32, "BTNH").to(torch.float8_e4m3fn))
    rows = [torch.from_numpy(np.tile(s, (batch, 1))).cuda() for s in scales]
    return narrow[0], narrow[1], narrow[2], rows or None


KERNEL = "_Z12run_mha_fwd_ILi90E{}Li128ELi128ELb0ELb0ELb0ELb0EEvR16Flash_fwd_paramsP11CUstream_st"
TYPES = {
    torch.bfloat16: "N7cutlass10bfloat16_tE",
    torch.float16: "N7cutlass6half_tE",
    torch.float8_e4m3fn: "N7cutlass12float_e4m3_tE",
}


def forward(
    q: Tensor, k: Tensor, v: Tensor, x: Inputs, descales: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return out and L of the library's forward, by the C++ function that starts it.

    Args:
        q, k, v: tensors (B, T, N, H) of one of `TYPES`.
        x: what the call is otherwise.
        descales: the scales of q, k and v, each (B, heads of k).
    """
    spec = find_spec("flash_attn3_jax_lib.flash_api")
    assert spec is not None and spec.origin is not None
    start = ctypes.CDLL(spec.origin)[KERNEL.format(TYPES[q.dtype])]
    batch, tokens, heads, width = q.shape
    out = torch.empty(
        q.shape, dtype=torch.bfloat16 if q.element_size() == 1 else q.dtype, device="cuda"
    )
    lse = torch.empty((batch, heads, tokens), dtype=torch.float32, device="cuda")
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    before, after = _window(x)
    p = _Parameters(
        q_ptr=q.data_ptr(),
        k_ptr=k.data_ptr(),
        v_ptr=v.data_ptr(),
        o_ptr=out.data_ptr(),
        softmax_lse_ptr=lse.data_ptr(),
        tile_count_semaphore=counter.data_ptr(),
        v_dim_stride=1,
        h=heads,
        h_k=k.shape[2],
        b=batch,
        b_k=batch,
        seqlen_q=tokens,
        seqlen_k=k.shape[1],
        seqlen_q_rounded=-(-tokens // 128) * 128,
        seqlen_k_rounded=-(-k.shape[1] // 128) * 128,
        total_q=batch * tokens,
        total_k=batch * k.shape[1],
        d=width,
        dv=width,
        d_rounded=128,
        dv_rounded=128,
        scale_softmax=x.scale,
        p_dropout=1.0,
        p_dropout_in_uint8_t=255,
        rp_dropout=1.0,
        window_size_left=k.shape[1] - 1 if before < 0 else before,
        window_size_right=0 if x.is_causal else tokens - 1 if after < 0 else after,
        is_bf16=q.dtype == torch.bfloat16,
        is_e4m3=q.element_size() == 1,
        is_causal=x.is_causal and before < 0,
        is_local=before >= 0,
        num_splits=1,
        page_size=1,
        varlen_sort_batches=before < 0,
        head_swizzle=x.is_causal or before >= 0,
        arch=90,
        num_sm=torch.cuda.get_device_properties(0).multi_processor_count,
    )
    for name, a in (("q", q), ("k", k), ("v", v), ("o", out)):
        for part, stride in zip(("batch", "row", "head"), a.stride(), strict=False):
            setattr(p, f"{name}_{part}_stride", stride)
    for name, a in zip("qkv", descales or (), strict=False):
        setattr(p, f"{name}_descale_ptr", a.data_ptr())
        setattr(p, f"{name}_descale_batch_stride", a.stride(0))
        setattr(p, f"{name}_descale_head_stride", a.stride(1))
    torch.cuda.synchronize()
    start(ctypes.byref(p), ctypes.c_void_p(0))
    torch.cuda.synchronize()
    return out, lse


_OF_TYPES = (  # the fields of Flash_fwd_params in flash.h of kyutai-labs/flash-attn3-jax, v0.2.3
    (ctypes.c_void_p, "q_ptr k_ptr v_ptr"),
    (ctypes.c_int64, "q_batch_stride k_batch_stride v_batch_stride"),
    (ctypes.c_int64, "q_row_stride k_row_stride v_row_stride"),
    (ctypes.c_int64, "q_head_stride k_head_stride v_head_stride v_dim_stride"),
    (ctypes.c_int, "h h_k"),
    (ctypes.c_void_p, "o_ptr oaccum_ptr"),
    (ctypes.c_int64, "o_batch_stride o_row_stride o_head_stride"),
    (ctypes.c_void_p, "softmax_lse_ptr softmax_lseaccum_ptr"),
    (ctypes.c_void_p, "q_descale_ptr k_descale_ptr v_descale_ptr"),
    (ctypes.c_int64, "q_descale_batch_stride q_descale_head_stride"),
    (ctypes.c_int64, "k_descale_batch_stride k_descale_head_stride"),
    (ctypes.c_int64, "v_descale_batch_stride v_descale_head_stride"),
    (ctypes.c_int, "b seqlen_q seqlen_k seqlen_knew d seqlen_q_rounded seqlen_k_rounded"),
    (ctypes.c_int, "d_rounded rotary_dim total_q total_k total_knew b_k dv dv_rounded"),
    (ctypes.c_float, "scale_softmax softcap"),
    (ctypes.c_void_p, "cu_seqlens_q cu_seqlens_k cu_seqlens_knew leftpad_k seqused_q seqused_k"),
    (ctypes.c_int64, "oaccum_split_stride oaccum_batch_stride oaccum_row_stride"),
    (ctypes.c_int64, "oaccum_head_stride"),
    (ctypes.c_int64, "lseaccum_split_stride lseaccum_batch_stride lseaccum_head_stride"),
    (ctypes.c_void_p, "knew_ptr vnew_ptr"),
    (ctypes.c_int64, "knew_batch_stride vnew_batch_stride knew_row_stride vnew_row_stride"),
    (ctypes.c_int64, "knew_head_stride vnew_head_stride"),
    (ctypes.c_void_p, "qv_ptr"),
    (ctypes.c_int64, "qv_batch_stride qv_row_stride qv_head_stride"),
    (ctypes.c_void_p, "rotary_cos_ptr rotary_sin_ptr seqlens_rotary kv_batch_idx page_table"),
    (ctypes.c_int64, "page_table_batch_stride"),
    (ctypes.c_int, "page_size num_pages"),
    (ctypes.c_bool, "pagedkv_tma"),
    (ctypes.c_float, "p_dropout"),
    (ctypes.c_uint8, "p_dropout_in_uint8_t"),
    (ctypes.c_float, "rp_dropout"),
    (ctypes.c_int, "window_size_left window_size_right attention_chunk"),
    (ctypes.c_void_p, "rng_state"),
    (ctypes.c_bool, "is_bf16 is_fp32 is_e4m3 is_causal is_local is_rotary_interleaved"),
    (ctypes.c_int, "num_splits"),
    (ctypes.c_bool, "pack_gqa"),
    (ctypes.c_void_p, "tile_count_semaphore num_m_blocks_ptr num_splits_dynamic_ptr"),
    (ctypes.c_void_p, "varlen_batch_idx_ptr num_nheads_in_l2_ptr"),
    (ctypes.c_bool, "skip_scheduler_metadata_computation varlen_sort_batches"),
    (ctypes.c_int, "tile_count_semaphore_offset"),
    (ctypes.c_bool, "head_swizzle prepare_varlen_pdl"),
    (ctypes.c_int, "arch num_sm"),
)


class _Parameters(ctypes.Structure):
    """The arguments of the library's forward; what is not set is 0."""

    _fields_ = [(name, kind) for kind, names in _OF_TYPES for name in names.split()]


half = partial(flash, dtype="float16")
split = partial(flash, splits=3)
fp8_descaled = partial(fp8, descales=(0.75, 1.25, 0.625))
