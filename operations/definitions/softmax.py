"""softmax, exp(x - max(x)) / sum(exp(x - max(x))), over the last axis.

Implementations differ in exp, in the order of the sum, in whether they divide by the sum or
multiply by its reciprocal, and in how the gradient is put together. Attention has a softmax of its
own, whose sum runs over tiles (`roundscope.attention`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import Exponential, exp_field, exponential, exponentials, plus
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of softmax; V is the number of scores of a row."""

    X = "X", "x", Axes.RF, "inputs", 0
    D = "D", "X - max(X)", Axes.RF, "forward", 1
    EXP = "EXP", "exp(D)", Axes.RF, "forward", 2
    S = "S", "sum_v EXP", Axes.R, "forward", 3
    RS = "RS", "1 / S (form=reciprocal)", Axes.R, "forward", 4
    P = "P", "EXP / S, or EXP RS (form=reciprocal)", Axes.RF, "forward", 5
    OUT = "OUT", "P as it is stored", Axes.RF, "forward", 6
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 7
    DP = "DP", "DOUT OUT", Axes.RF, "backward", 8
    DS = "DS", "sum_v DP", Axes.R, "backward", 9
    DC = "DC", "DOUT - DS (gradient=apart)", Axes.RF, "backward", 10
    PS = "PS", "-OUT DS (gradient=products)", Axes.RF, "backward", 11
    DX = "DX", "DC OUT, or DP + PS (gradient=products)", Axes.RF, "backward", 12
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 13
    ES = "ES", "exp(D) as its sum reads it (wide_sum=true)", Axes.RF, "forward", 14


class Form(StrEnum):
    """How the exponentials are divided by their sum."""

    DIVIDED = "divided"
    """A division of each."""
    RECIPROCAL = "reciprocal"
    """One division, and a product of each."""


class Gradient(StrEnum):
    """How the gradient is put together."""

    APART = "apart"
    """OUT (DOUT - DS)."""
    PRODUCTS = "products"
    """DOUT OUT - OUT DS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of softmax.

    A product that does not round (SITE=fp64) and the addition that follows are one multiply-add.
    """

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.S, Site.DS)
    FACTORS: ClassVar = {Site.S: (Site.EXP,), Site.DS: (Site.DP,)}

    exp: Exponential = exp_field(number=0, forward=1)
    form: Form = choice(
        Form.DIVIDED,
        number=1,
        called="form",
        doc="How the exponentials are divided by their sum, one of `Form`: divided (default) or"
        " reciprocal (a product with 1 / S).",
        moves=Moves(forward=2),
    )
    gradient: Gradient = choice(
        Gradient.APART,
        number=2,
        called="gradient",
        doc="How the gradient is put together, one of `Gradient`: apart (default) or products.",
        moves=Moves(backward=1),
    )
    wide_sum: bool = choice(
        False,
        number=3,
        doc="True adds up ES, the exponentials as they are before EXP rounds them for the quotient."
        " Default False: EXP is added up.",
        source="XLA on a CPU, which computes exp twice",
        moves=Moves(forward=3),
    )


def forward(at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """Return (out,), for x (R, V); and behind it the same, for the backward."""
    if at.plan.wide_sum:
        own = at(Site.X, x)
        d = at(Site.D, own - at.ops.xp.max(own, axis=1)[:, None])
        es = exponential(at, Site.ES, d, at.plan.exp)
        e, s = at(Site.EXP, es), at.product(Site.S, es, at.ops.xp.ones((x.shape[1], 1)))[:, 0]
    else:
        _, _, e, s = exponentials(at, Site, at(Site.X, x), at.plan.exp)
    if at.plan.form is Form.RECIPROCAL:
        rs = at(Site.RS, at.ops.divide(at.ops.xp.ones_like(s), s))
        p = at(Site.P, at.ops.multiply(e, rs[:, None]))
    else:
        p = at(Site.P, at.ops.divide(e, at.ops.xp.broadcast_to(s[:, None], e.shape)))
    out = at(Site.OUT, p)
    return out, out


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x."""
    (p,), mul = saved, at.ops.multiply
    dy = at(Site.DOUT, gradients[0])
    dp = at(Site.DP, mul(dy, p))
    ds = at.product(Site.DS, dp, at.ops.xp.ones((p.shape[1], 1)))
    if at.plan.gradient is Gradient.PRODUCTS:
        dx = plus(at, Site.DX, at(Site.PS, -mul(p, ds)), dp)
    else:
        dx = at(Site.DX, mul(at(Site.DC, dy - ds), p))
    return {"x": at(Site.DXO, dx)}


IN_TYPE = (Site.X, Site.OUT, Site.DOUT, Site.DXO)


def torch_cpu() -> Plan:
    """Return torch's softmax on a CPU with AVX-512: the exponentials of a row are multiplied by the
    reciprocal of their sum (aten/src/ATen/native/cpu/SoftMaxKernel.cpp, _vec_softmax_lastdim and
    _vec_host_softmax_backward_lastdim; torch 2.13).

    Equal in every bit in BF16 and FP16, and so are autograd's gradients, but for rows that are no
    multiple of 16, whose last numbers torch adds last (tests/operations/test_softmax.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE)
    plan = plan.adding(Site.S, Accumulator(order=Order.STRIDED, chunk=16))
    plan = plan.adding(Site.DS, Accumulator(order=Order.STRIDED, chunk=32))
    return replace(plan, name="torch-cpu", exp=Exponential.SLEEF, form=Form.RECIPROCAL)


def torch_cpu_fp32() -> Plan:
    """Return torch's softmax on a CPU with AVX-512 in FP32, whose vectors have 16 numbers.

    Equal in every bit, and so are autograd's gradients (tests/operations/test_softmax.py).
    """
    plan = torch_cpu().rounded(dict.fromkeys(IN_TYPE, BINARY32))
    plan = plan.adding(Site.DS, Accumulator(order=Order.STRIDED, chunk=16))
    return replace(plan, name="torch-cpu-fp32")


def jax_cpu() -> Plan:
    """Return `jax.nn.softmax` of BF16 as XLA compiles it for a CPU, jaxlib 0.4.33 and later: every
    operation rounds to BF16, but the sum adds up exponentials that are not rounded.

    Equal in every bit for 64 rows of 512 numbers (jax 0.10.2, docs/runs/passport.json; tests/
    operations/test_softmax.py). The order of the sum is not known, and gradients were not compared.
    """
    plan = in_bf16(Plan, "jax-cpu", *IN_TYPE, Site.D, Site.EXP, Site.S)
    return replace(plan, wide_sum=True)


def torch_cuda(classes: int = 1024, bits: int = 16) -> Plan:
    """Return torch's softmax on a GPU, for rows of so many numbers of so many bits: binary32
    inside, CUDA's expf and a division. Autograd's product of DOUT and OUT is rounded to the type of
    x before it is added up (aten/src/ATen/native/cuda/PersistentSoftmax.cuh, softmax_warp_forward,
    for up to 2048 numbers, SoftMax.cu for more; torch 2.11).

    Equal in every bit in BF16, FP16 and FP32, for 64 to 128256 numbers, and so are the gradients
    for up to 1024 and for 4096 numbers (tests/operations/test_on_a_gpu.py). For others torch's
    backward adds its threads one after the other, an order that has no name here.
    """
    plan = in_bf16(Plan, "torch-cuda", *IN_TYPE, Site.DP).rounded({Site.PS: BINARY64})
    forward = backward = Accumulator(order=Order.STRIDED, chunk=32)
    if classes > 2048:  # up to 8192 in registers, 1024 places apart, as octets that are not full
        is_quads = bits == 32 and classes >= 8192
        order = Order.QUAD_STRIDES if is_quads else Order.OCTET_STRIDES
        forward = Accumulator(order=order, chunk=1024)
    if classes > 1024:
        backward = Accumulator(order=Order.QUAD_STRIDES, chunk=512)
    plan = plan.adding(Site.S, forward).adding(Site.DS, backward)
    return replace(plan, name="torch-cuda", exp=Exponential.CUDA, gradient=Gradient.PRODUCTS)


SOFTMAX = Operation(
    name="softmax",
    number=60,
    plan=Plan,
    inputs=(Value("x", Site.X),),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    published=published(Plan, torch_cpu, torch_cpu_fp32, jax_cpu, torch_cuda),
)
