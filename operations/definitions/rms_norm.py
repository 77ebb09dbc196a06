"""RMSNorm: x / sqrt(mean(x^2) + eps) times a weight (Zhang and Sennrich, arXiv 1910.07467).

Implementations differ in the type in which the mean is computed, in the order of its sum, in the
root, and in whether the normalized x is cast to the type of x before or after it is multiplied by
the weight. A residual may be added to x before, as kernels of both in one do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.instructions.approximate import rcp
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64, RoundingMode
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.odd import sum_to_round
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import Root, constant, reciprocal_root
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of RMSNorm; F is the number of features of a row."""

    X = "X", "x", Axes.RF, "inputs", 0
    W = "W", "weight", Axes.F, "inputs", 1
    RES = "RES", "residual", Axes.RF, "inputs", 12
    SUM = "SUM", "X + RES in a register (sum_apart), in place of X", Axes.RF, "forward", 42
    ADD = (
        "ADD",
        "X + RES, in place of X from here on, or SUM as it is stored",
        Axes.RF,
        "forward",
        13,
    )
    SQ = "SQ", "X X", Axes.RF, "forward", 2
    SS = "SS", "sum_f SQ", Axes.R, "forward", 3
    MS = "MS", "SS / F", Axes.R, "forward", 4
    VE = "VE", "MS + eps, or SD + eps (eps_outside)", Axes.R, "forward", 5
    SD = "SD", "sqrt(VE), or sqrt(MS) (eps_outside)", Axes.R, "forward", 6
    RS = "RS", "1 / SD, or 1 / sqrt(VE) in one, or 1 / VE (eps_outside)", Axes.R, "forward", 7
    XN = "XN", "X RS", Axes.RF, "forward", 8
    XC = "XC", "XN as it is multiplied by the weight", Axes.RF, "forward", 9
    W1 = "W1", "1 + W", Axes.F, "forward", 10
    XW = "XW", "XC W1", Axes.RF, "forward", 14
    OUT = "OUT", "XW, or XC without a weight", Axes.RF, "forward", 11
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 15
    DSUM = "DSUM", "gradient of ADD as it is used elsewhere", Axes.RF, "inputs", 16
    DXW = "DXW", "DOUT as it is multiplied", Axes.RF, "backward", 17
    DWR = "DWR", "DXW XC, or DXW X (gradient=kernel)", Axes.RF, "backward", 18
    DWN = "DWN", "DWR RS (gradient=kernel)", Axes.RF, "backward", 33
    DW = "DW", "sum_r DWR, or DWN", Axes.F, "backward", 19
    DWO = "DWO", "DW as it is stored", Axes.F, "backward", 20
    DXC = "DXC", "DXW W1", Axes.RF, "backward", 21
    DR = "DR", "DXC X", Axes.RF, "backward", 22
    DRN = "DRN", "DR RS (gradient=kernel)", Axes.RF, "backward", 34
    DRS = "DRS", "sum_f DR, or DRN", Axes.R, "backward", 23
    RS2 = "RS2", "RS RS", Axes.R, "backward", 24
    RS3 = "RS3", "RS2 RS", Axes.R, "backward", 25
    DVE = "DVE", "-DRS / 2 RS3", Axes.R, "backward", 26
    DMS = "DMS", "DVE / F", Axes.R, "backward", 27
    DX1 = "DX1", "DXC RS", Axes.RF, "backward", 28
    DX2 = "DX2", "DMS 2 X", Axes.RF, "backward", 29
    FI = "FI", "1 / F (gradient=kernel)", Axes.R, "backward", 35
    RF = "RF", "FI RS", Axes.R, "backward", 36
    WF = "WF", "F W1", Axes.RF, "backward", 37
    DWF = "DWF", "WF DXW", Axes.RF, "backward", 38
    XR = "XR", "X RS", Axes.RF, "backward", 39
    XD = "XD", "XR DRS", Axes.RF, "backward", 40
    DD = "DD", "DWF - XD", Axes.RF, "backward", 41
    DX = "DX", "DX1 + DX2, or DD RF (gradient=kernel)", Axes.RF, "backward", 30
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 31
    DADD = "DADD", "DXO + DSUM", Axes.RF, "backward", 32


class Gradient(StrEnum):
    """How the gradient of x is computed."""

    CHAIN = "chain"
    """Step by step backward through the forward, as autograd does."""
    KERNEL = "kernel"
    """(F W DOUT - X RS sum(W DOUT X RS)) RS / F, as in PyTorch's fused kernel on a GPU."""


class Mean(StrEnum):
    """How the sum of squares becomes their mean."""

    DIVIDED = "divided"
    """SS / F."""
    FACTOR = "factor"
    """SS times 1 / F, which is rounded to binary32 before."""
    RCP = "rcp"
    """SS times the instruction rcp.approx of F, as in div.full.f32, to which eps is added in one
    multiply-add if MS does not round.
    """


def _rooted(plan: Any) -> str:
    return "" if plan.root is Root.DIVIDED else "goes with root=divided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of RMSNorm."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.SS, Site.DRS, Site.DW)
    FACTORS: ClassVar = {Site.SS: (Site.SQ,), Site.DRS: (Site.DR,), Site.DW: (Site.DWR,)}

    root: Root = choice(
        Root.DIVIDED,
        number=0,
        called="root",
        doc="How 1 / sqrt(VE) is computed, one of `Root`: divided (default: a root, then a"
        " division), correct (one rounding) or rsqrt (the instruction rsqrt.approx).",
        moves=Moves(forward=1),
    )
    unit_offset: bool = choice(
        False,
        number=1,
        doc="True multiplies by 1 + weight. Default False.",
        source="Gemma",
        moves=Moves(forward=2),
    )
    mean: Mean = choice(
        Mean.DIVIDED,
        number=2,
        called="mean",
        doc="How the sum of squares becomes their mean, one of `Mean`: divided (default), factor"
        " (times 1 / F in binary32) or rcp (times the instruction rcp.approx of F).",
        source="PyTorch's mean on a GPU, div.full in Triton",
        moves=Moves(forward=3),
    )
    eps_outside: bool = choice(
        False,
        number=3,
        doc="True adds eps to the root, in place of the mean below it: 1 / (sqrt(MS) + eps), whose"
        " gradients are not computed. It is what is computed, and not how. Default False.",
        source="the code of Zhang and Sennrich's paper",
        refused=_rooted,
        moves=Moves(forward=4),
    )
    sum_apart: bool = choice(
        False,
        number=72,
        doc="With a residual, True normalizes the sum as a register has it (event SUM), and casts"
        " what is stored apart (ADD). False (default) normalizes what is stored.",
        source="aiter on AMD GPUs",
        moves=Moves(forward=5),
    )
    gradient: Gradient = choice(
        Gradient.CHAIN,
        number=63,
        called="gradient",
        doc="How the gradient of x is computed, one of `Gradient`: chain (default, backward"
        " through the forward) or kernel (one formula).",
        source="PyTorch on a GPU",
        moves=Moves(backward=1),
    )


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    x: Array,
    weight: Array | None,
    residual: Array | None,
) -> tuple[Array | None, ...]:
    """Return (out, x + residual), for x (R, F), weight (F,) or None, and residual (R, F) or None,
    without which there is no sum; and behind them x, RS, XC and the weight, for `backward`.

    settings: eps, which is added to the mean of the squares.
    """
    xp, mul = at.ops.xp, at.ops.multiply
    features = x.shape[1]
    x, summed = at(Site.X, x), None
    if residual is not None:
        x = x + at(Site.RES, residual)
        x = at(Site.SUM, x) if at.plan.sum_apart else x
        summed = at(Site.ADD, x)
        x = x if at.plan.sum_apart else summed
    sq = at(Site.SQ, mul(x, x))
    ss = at.product(Site.SS, sq, xp.ones((features, 1)))[:, 0]
    eps = constant(at.plan, Site.VE, settings["eps"])
    if at.plan.eps_outside:
        ve = at(Site.VE, at(Site.SD, xp.sqrt(at(Site.MS, _mean(at, ss, features)))) + eps)
        rs = at(Site.RS, at.ops.divide(xp.ones_like(ve), ve))
    else:
        ve = _mean_and_eps(at, ss, features, eps)
        rs = reciprocal_root(at, Site.SD, Site.RS, ve, at.plan.root)
    xn = at(Site.XN, mul(x, rs[:, None]))
    xc = at(Site.XC, xn)
    if weight is None:
        return at(Site.OUT, xc), summed, x, rs, xc, None
    w = at(Site.W, weight[None, :])
    w1 = xp.broadcast_to(at(Site.W1, w + 1.0) if at.plan.unit_offset else w, xc.shape)
    return at(Site.OUT, at(Site.XW, mul(xc, w1))), summed, x, rs, xc, w1


def _mean_and_eps(at: Events[Plan, Rows], ss: Array, features: int, eps: float) -> Array:
    """Return the event VE of the sums of squares."""
    ms, ops = at(Site.MS, _mean(at, ss, features)), at.ops
    if at.plan.mean is Mean.RCP:
        return at(Site.VE, ops.odd_sum(ms, ops.xp.full_like(ms, eps)))
    return at(Site.VE, ms + eps)


def _mean(at: Events[Plan, Rows], total: Array, features: int) -> Array:
    """Return the mean of features from their total, or its gradient, before its event."""
    full, ops = at.ops.xp.full_like(total, features), at.ops
    if at.plan.mean is Mean.DIVIDED:
        return ops.divide(total, full)
    if at.plan.mean is Mean.FACTOR:
        return ops.multiply(total, float(np.float32(1.0 / features)))
    return ops.multiply(total, ops.call(rcp, full))


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array, Array | None],
    gradients: tuple[Array, Array | None],
) -> dict[str, Array]:
    """Return the gradients of x, of the residual, which has the same, and of the weight."""
    if at.plan.eps_outside:
        raise ValueError("eps_outside=True: has no gradients; leave them out")
    (x, rs, xc, w1), (dout, dsum) = saved, gradients
    xp, mul, found = at.ops.xp, at.ops.multiply, {}
    is_kernel = at.plan.gradient is Gradient.KERNEL
    dy = dxc = at(Site.DXW, at(Site.DOUT, dout))
    if w1 is not None:
        dwr = at(Site.DWR, mul(dy, x if is_kernel else xc))
        if is_kernel:
            dwr = at(Site.DWN, mul(dwr, rs[:, None]))
        dw = at.product(Site.DW, at.ops.transposed(dwr), xp.ones((x.shape[0], 1)))
        found["weight"] = at(Site.DWO, dw[:, 0])
        dxc = at(Site.DXC, mul(dy, w1))
    if is_kernel:
        dx = _by_kernel(at, x, rs, xp.ones_like(x) if w1 is None else w1, dy, dxc)
    else:
        dx = _by_chain(at, x, rs, dxc)
    dx = at(Site.DXO, dx)
    if dsum is not None:
        dx = at(Site.DADD, dx + at(Site.DSUM, dsum))
    return {**found, "x": dx, "residual": dx}


def _by_chain(at: Events[Plan, Rows], x: Array, rs: Array, dxc: Array) -> Array:
    """Return the event DX from the gradient of the normalized x."""
    xp, mul = at.ops.xp, at.ops.multiply
    drs = at.product(Site.DRS, at(Site.DR, mul(dxc, x)), xp.ones((x.shape[1], 1)))[:, 0]
    rs3 = at(Site.RS3, mul(at(Site.RS2, mul(rs, rs)), rs))
    dms = at(Site.DMS, _mean(at, at(Site.DVE, mul(-0.5 * drs, rs3)), x.shape[1]))
    dx1 = at(Site.DX1, mul(dxc, rs[:, None]))
    return at(Site.DX, dx1 + at(Site.DX2, mul(dms[:, None], 2.0 * x)))


def _by_kernel(
    at: Events[Plan, Rows], x: Array, rs: Array, w1: Array, dy: Array, dxc: Array
) -> Array:
    """Return the event DX from the gradient dy of the result, and its product dxc with w1."""
    xp, mul, features = at.ops.xp, at.ops.multiply, x.shape[1]
    drn = at(Site.DRN, mul(at(Site.DR, mul(dxc, x)), rs[:, None]))
    drs = at.product(Site.DRS, drn, xp.ones((features, 1)))
    fi = at(Site.FI, at.ops.divide(xp.ones_like(rs), xp.full_like(rs, features)))
    rf = at(Site.RF, mul(fi, rs))
    dwf = at(Site.DWF, mul(at(Site.WF, mul(w1, float(features))), dy))
    xd = at(Site.XD, mul(at(Site.XR, mul(x, rs[:, None])), drs))
    dd = at(Site.DD, sum_to_round(at.ops, at.plan[Site.DD].format.precision, dwf, -xd))
    return at(Site.DX, mul(dd, rf[:, None]))


IN_TYPE = (Site.X, Site.W, Site.RES, Site.ADD, Site.OUT, Site.DOUT, Site.DSUM)
STORED = (Site.DWO, Site.DXO, Site.DADD)
CASCADE = Accumulator(order=Order.CASCADE, chunk=8)  # of torch on a CPU with AVX2 or AVX-512


def transformers_llama() -> Plan:
    """Return transformers' LlamaRMSNorm on a CPU: binary32 inside, cast before the product with the
    weight (models/llama/modeling_llama.py, LlamaRMSNorm.forward; 5.24 with torch 2.13).

    Equal in every bit in BF16, FP16 and FP32, and so are the gradients of autograd, but for that of
    the weight in FP32 at features beyond a multiple of 32 (tests/operations/test_rms_norm.py). With
    a residual it is an addition of torch before.
    """
    return replace(torch_cpu(), name="transformers-llama").rounded(
        dict.fromkeys((Site.XC, Site.XW, Site.DXW, Site.DWR, Site.DXC), BF16)
    )


def torch_cpu() -> Plan:
    """Return torch.nn.functional.rms_norm on a CPU: binary32 inside, cast after the product with
    the weight (aten/src/ATen/native/layer_norm.cpp, rms_norm_composite; torch 2.13).

    Equal in every bit in BF16, FP16 and FP32, and so are the gradients of autograd, but for that of
    the weight in FP32 at features beyond a multiple of 32 (tests/operations/test_rms_norm.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE, *STORED)
    plan = plan.adding(Site.SS, CASCADE).adding(Site.DRS, CASCADE)
    plan = plan.adding(Site.DW, Accumulator(order=Order.LEVELS))
    return replace(plan, name="torch-cpu")


def transformers_gemma() -> Plan:
    """Return transformers' GemmaRMSNorm on a CPU: x times 1 + weight in binary32, then the cast
    (models/gemma/modeling_gemma.py, GemmaRMSNorm.forward; 5.24 with torch 2.13).

    Equal in every bit in BF16, FP16 and FP32, and so are the gradients of autograd, but for that of
    the weight in FP32 at features beyond a multiple of 32 (tests/operations/test_rms_norm.py).
    """
    return replace(torch_cpu(), name="transformers-gemma", unit_offset=True)


BLOCK = Accumulator(order=Order.BLOCK, chunk=32)  # of torch on a GPU, for 16 rows or more
COLUMNS = Accumulator(order=Order.BLOCK, chunk=4)  # the same of 128 columns or more, up to 128 rows
LIGER_WARPS = ((32, 32768), (16, 8192), (8, 2048))  # warps of a row, from so many numbers on


def torch_cuda() -> Plan:
    """Return torch.nn.functional.rms_norm on a GPU: squares and sums fused, 128 threads that read
    four neighbors at a time, the instruction rsqrt, and the cast after the product with the weight
    (aten/src/ATen/native/cuda/layer_norm_kernel.cu, vectorized_layer_norm_kernel; torch 2.11).

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features, which are a multiple of 4
    (tests/operations/test_on_a_gpu.py), and so are the gradients of 64 rows
    (test_gradients_on_a_gpu.py; layer_norm_grad_input_kernel_vectorized and
    GammaBetaBackwardCUDAKernelTemplate).
    """
    fused = dict.fromkeys((Site.SQ, Site.DRN, Site.DWN, Site.DWF), BINARY64)
    plan = in_bf16(Plan, "torch-cuda", *IN_TYPE, *STORED).rounded(fused)
    for site in (Site.SS, Site.DRS):
        plan = plan.adding(site, Accumulator(order=Order.QUAD_WARPS, chunk=128))
    plan = plan.adding(Site.DW, Accumulator(order=Order.OCTETS, chunk=8))
    return replace(plan, name="torch-cuda", root=Root.RSQRT, gradient=Gradient.KERNEL)


def transformers_llama_cuda() -> Plan:
    """Return transformers' LlamaRMSNorm on a GPU, for 16 rows or more: as on a CPU, but the mean is
    that of torch's reduction kernel, a product, and the root is the instruction rsqrt (torch 2.11,
    transformers 5; `Order.BLOCK` for fewer rows).

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features
    (tests/operations/test_on_a_gpu.py), and so are the gradients of 64 rows
    (test_gradients_on_a_gpu.py); that of the weight is `DW.sum=block1` for 64 features.
    """
    plan = transformers_llama().adding(Site.SS, BLOCK).adding(Site.DRS, BLOCK)
    plan = plan.adding(Site.DW, COLUMNS)
    return replace(plan, name="transformers-llama-cuda", root=Root.RSQRT, mean=Mean.FACTOR)


def transformers_gemma_cuda() -> Plan:
    """Return transformers' GemmaRMSNorm on a GPU, for 16 rows or more: as on a CPU, with the mean
    and the root of `transformers_llama_cuda`.

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features
    (tests/operations/test_on_a_gpu.py), and so are the gradients, as of `transformers_llama_cuda`.
    """
    plan = transformers_gemma().adding(Site.SS, BLOCK).adding(Site.DRS, BLOCK)
    plan = plan.adding(Site.DW, COLUMNS)
    return replace(plan, name="transformers-gemma-cuda", root=Root.RSQRT, mean=Mean.FACTOR)


def triton_sum(features: int, threads: int, bits: int) -> Accumulator:
    """Return how Triton's tl.sum adds a row that it read whole: padded to a power of two, 16 bytes
    at a time by each thread, and less if there are too many threads.
    """
    padded = 1 << (features - 1).bit_length()
    own = min(128 // bits, max(padded // threads, 1))
    if own < 4:
        return Accumulator(order=Order.WARPS, chunk=own)
    order = Order.QUAD_WARPS if own == 4 else Order.OCTET_WARPS
    return Accumulator(order=order, chunk=min(threads, padded // own))


def _of_triton(name: str, plan: Plan, total: Accumulator) -> Plan:
    """Return a plan with the squares, the mean and the root of a kernel in Triton."""
    fused = plan.rounded(dict.fromkeys((Site.SQ, Site.MS), BINARY64)).adding(Site.SS, total)
    return replace(fused, name=name, root=Root.RSQRT, mean=Mean.RCP)


def liger_llama(features: int = 4096, bits: int = 16) -> Plan:
    """Return Liger's RMSNorm in its casting mode "llama": cast before the product with the weight
    (liger_kernel/ops/rms_norm.py, _rms_norm_forward_kernel; Liger 0.8.5 with Triton 3.6).

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features and their numbers of bits
    (tests/operations/test_on_a_gpu.py). The gradients were not compared.
    """
    padded = 1 << (features - 1).bit_length()
    warps = next((n for n, least in LIGER_WARPS if padded >= least), 4)
    total = triton_sum(features, 32 * warps, bits)
    return _of_triton("liger-llama", transformers_llama(), total)


def liger_gemma(features: int = 4096, bits: int = 16) -> Plan:
    """Return Liger's RMSNorm in its casting mode "gemma": x times 1 + weight in binary32, then the
    cast; the sum and the versions are those of `liger_llama`.

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features and their numbers of bits
    (tests/operations/test_on_a_gpu.py). The gradients were not compared.
    """
    total = liger_llama(features, bits).accumulator(Site.SS)
    return _of_triton("liger-gemma", transformers_gemma(), total)


def inductor_llama() -> Plan:
    """Return transformers' LlamaRMSNorm compiled by torch.compile on a GPU, which leaves out the
    cast before the product with the weight (torch 2.11; the program that Inductor wrote casts once,
    at the end).

    Equal in every bit in BF16 for 64 to 8192 features and in FP32 for 1000 and 4096
    (tests/operations/test_on_a_gpu.py); the rows that were compared do not tell its order of the
    sum from those of other numbers of threads. The gradients were not compared.
    """
    plan = _of_triton("inductor-llama", torch_cpu(), triton_sum(4096, 512, 16))
    return replace(plan.rounded({Site.MS: BINARY32}), name=plan.name, mean=Mean.DIVIDED)


def aiter() -> Plan:
    """Return the fused addition and RMSNorm of AMD's aiter as its build has it on an MI300, with
    casts toward zero (ROCm/aiter at e4048607, csrc/kernels/rmsnorm_quant_kernels.cu; compiled with
    OPUS_FP32_to_BF16_DEFAULT=2, whose other values are `casts=ties-to-even`, 0 and 3).

    The sum is normalized in binary32, and cut where it is stored. Not compared with hardware: the
    order of the sum over a row and the root's instruction are not modelled. The kernel has no
    backward; the plan's is that of `torch-cpu`.
    """
    cut = replace(BF16, mode=RoundingMode.TOWARD_ZERO)
    plan = in_bf16(Plan, "aiter", *IN_TYPE, *STORED).rounded({Site.ADD: cut, Site.OUT: cut})
    plan = plan.rounded({Site.SQ: BINARY64})  # in the multiply-add of the sum
    return replace(plan, name="aiter", root=Root.CORRECT, sum_apart=True)


RMS_NORM = Operation(
    name="rms_norm",
    number=1,
    plan=Plan,
    inputs=(
        Value("x", Site.X),
        Value("weight", Site.W, Shape.SHARED, optional=True),
        Value("residual", Site.RES, optional=True),
    ),
    outputs=(Value("out", Site.OUT), Value("summed", Site.ADD, optional=True)),
    forward=forward,
    backward=backward,
    settings={"eps": 1e-6},
    published=published(
        Plan,
        transformers_llama,
        torch_cpu,
        transformers_gemma,
        torch_cuda,
        transformers_llama_cuda,
        transformers_gemma_cuda,
        liger_llama,
        liger_gemma,
        inductor_llama,
        aiter,
    ),
)
