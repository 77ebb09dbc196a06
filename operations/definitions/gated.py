"""The activation silu, x sigmoid(x), and silu(gate) up of a gated layer.

Implementations differ in exp, in whether sigmoid is a number of its own, and in whether the
activation is cast to the type of x before it is multiplied by the other half of the layer, as
eager programs do and fused kernels may not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.instructions.approximate import rcp
from roundscope.emu.roundings.modes import BINARY32
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import Exponential, exp_field, exponential
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of silu and of a gated layer."""

    G = "G", "x, or the gate", Axes.RF, "inputs", 0
    U = "U", "up, the other half of a gated layer", Axes.RF, "inputs", 1
    EXP = "EXP", "exp(-G)", Axes.RF, "forward", 2
    DN = "DN", "1 + EXP", Axes.RF, "forward", 3
    SI = "SI", "1 / DN (sigmoid=apart or rcp)", Axes.RF, "forward", 4
    SG = "SG", "G / DN, or G SI (sigmoid=apart or rcp)", Axes.RF, "forward", 5
    SC = "SC", "SG as it is multiplied by U", Axes.RF, "forward", 6
    GU = "GU", "SC U", Axes.RF, "forward", 7
    OUT = "OUT", "GU, or SG without U, as it is stored", Axes.RF, "forward", 8
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 9
    DU = "DU", "DOUT SC", Axes.RF, "backward", 10
    DUO = "DUO", "DU as it is stored", Axes.RF, "backward", 11
    DSC = "DSC", "DOUT U", Axes.RF, "backward", 12
    SB = "SB", "1 / DN", Axes.RF, "backward", 13
    SN = "SN", "1 - SB", Axes.RF, "backward", 14
    GN = "GN", "G SN", Axes.RF, "backward", 15
    SL = "SL", "1 + GN, or 1 + G SN in one (fused_slope)", Axes.RF, "backward", 16
    DSB = "DSB", "DSC SB, or DOUT SB without U", Axes.RF, "backward", 17
    DG = "DG", "DSB SL", Axes.RF, "backward", 18
    DGO = "DGO", "DG as it is stored", Axes.RF, "backward", 19


class Sigmoid(StrEnum):
    """How x sigmoid(x) is computed."""

    DIVIDED = "divided"
    """x / (1 + exp(-x))."""
    APART = "apart"
    """x (1 / (1 + exp(-x)))."""
    RCP = "rcp"
    """x times the instruction rcp.approx of 1 + exp(-x) in binary32, as div.full has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of silu and of a gated layer."""

    SITES: ClassVar = Site

    sigmoid: Sigmoid = choice(
        Sigmoid.DIVIDED,
        number=0,
        called="sigmoid",
        doc="How x sigmoid(x) is computed, one of `Sigmoid`: divided (default), apart or"
        " rcp (the instruction rcp.approx).",
        moves=Moves(forward=1),
    )
    exp: Exponential = exp_field(number=1, forward=2)
    fused_slope: bool = choice(
        False,
        number=2,
        doc="True computes the slope 1 + G SN by a multiply-add, without the event GN. Default"
        " False.",
        source="torch on a CPU, whose compiler contracts it",
        moves=Moves(backward=1),
    )


def forward(
    at: Events[Plan, Rows], settings: Mapping[str, Any], gate: Array, up: Array | None = None
) -> tuple[Array, ...]:
    """Return (out,), for gate (R, F), and up of the same shape, or None for silu alone; and behind
    it G, DN, SC and U, for `backward`.
    """
    xp, divide = at.ops.xp, at.ops.divide
    g = at(Site.G, gate)
    dn = at(Site.DN, 1.0 + exponential(at, Site.EXP, -g, at.plan.exp))
    if at.plan.sigmoid is Sigmoid.RCP:
        si = at(Site.SI, at.ops.call(rcp, at.ops.round(dn, BINARY32, None)))
        sg = at(Site.SG, at.ops.multiply(g, si))
    elif at.plan.sigmoid is Sigmoid.APART:
        sg = at(Site.SG, at.ops.multiply(g, at(Site.SI, divide(xp.ones_like(dn), dn))))
    else:
        sg = at(Site.SG, divide(g, dn))
    if up is None:
        return at(Site.OUT, sg), g, dn, None, None
    sc, u = at(Site.SC, sg), at(Site.U, up)
    return at(Site.OUT, at(Site.GU, at.ops.multiply(sc, u))), g, dn, sc, u


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array | None, Array | None],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradients of the gate and of up."""
    (g, dn, sc, u), mul = saved, at.ops.multiply
    d, found = at(Site.DOUT, gradients[0]), {}
    if sc is not None:
        found["up"] = at(Site.DUO, at(Site.DU, mul(d, sc)))
        d = at(Site.DSC, mul(d, u))
    sb = at(Site.SB, at.ops.divide(at.ops.xp.ones_like(dn), dn))
    gn = mul(g, at(Site.SN, 1.0 - sb))
    if at.plan.fused_slope:
        one = at.ops.hidden(at.ops.xp.ones_like(gn))
        slope = at(Site.SL, at.ops.odd_sum(one, gn))
    else:
        slope = at(Site.SL, 1.0 + at(Site.GN, gn))
    dg = at(Site.DGO, at(Site.DG, mul(at(Site.DSB, mul(d, sb)), slope)))
    return {**found, "x" if sc is None else "gate": dg}


IN_TYPE = (Site.G, Site.U, Site.OUT, Site.DOUT, Site.DUO, Site.DGO)


def torch_cpu() -> Plan:
    """Return torch's silu on a CPU, and its product with another tensor as eager programs have it,
    such as transformers' LlamaMLP: binary32 inside silu, cast before the product
    (aten/src/ATen/native/cpu/Activation.cpp, silu_kernel; torch 2.13).

    Equal in every bit in BF16, FP16 and FP32, and so are autograd's gradients
    (tests/operations/test_gated.py).
    """
    eager = (Site.SC, Site.GU, Site.DU, Site.DSC)
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE, *eager)
    return replace(plan, exp=Exponential.SLEEF, fused_slope=True)


def torch_cuda() -> Plan:
    """Return torch's silu on a GPU, and its product with another tensor: as on a CPU, with CUDA's
    expf (aten/src/ATen/native/cuda/ActivationSiluKernel.cu; torch 2.11).

    Equal in every bit for all numbers of BF16 and FP16, and in FP32
    (tests/operations/test_on_a_gpu.py), and so are the gradients (test_gradients_on_a_gpu.py).
    """
    return replace(torch_cpu(), name="torch-cuda", exp=Exponential.CUDA)


def liger() -> Plan:
    """Return Liger's SwiGLU: 2^(x log2 e) by the instruction ex2, the instruction rcp, and a cast
    before the product (liger_kernel/ops/swiglu.py; Liger 0.8.5 with Triton 3.6).

    Equal in every bit in BF16, FP16 and FP32 (tests/operations/test_on_a_gpu.py). The gradients
    are not: 74 % in 16 bits, since Liger's have another formula.
    """
    return replace(torch_cpu(), name="liger", exp=Exponential.EX2, sigmoid=Sigmoid.RCP)


def fused() -> Plan:
    """Return a kernel that keeps silu in binary32 until the product, with CUDA's expf, as CUDA's
    do (vLLM, csrc/activation_kernels.cu, silu_and_mul, casts before the product).

    Equal in every bit in BF16 to torch.compile's program (torch 2.11 on an H100,
    tests/operations/test_on_a_gpu.py), and so are the gradients (test_gradients_on_a_gpu.py).
    """
    plan = in_bf16(Plan, "fused", *IN_TYPE)
    return replace(plan, exp=Exponential.CUDA)


SILU = Operation(
    name="silu",
    number=6,
    plan=Plan,
    inputs=(Value("x", Site.G),),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    published=published(Plan, torch_cpu, torch_cuda, fused),
)
SILU_MUL = Operation(
    name="silu_mul",
    number=7,
    plan=Plan,
    inputs=(Value("gate", Site.G), Value("up", Site.U)),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    published=published(Plan, torch_cpu, torch_cuda, liger, fused),
)
