"""LayerNorm: (x - mean(x)) / sqrt(var(x) + eps) times a weight plus a bias (Ba, Kiros and Hinton,
arXiv 1607.06450).

Implementations differ in how mean and variance are added up, in one pass or in two, in the root, in
whether the mean is subtracted before the product or folded into one multiply-add, and in which
products and additions are multiply-adds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.definitions.moments import by_threads, by_vectors
from roundscope.operations.functions import Root, constant, plus, reciprocal_root
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of LayerNorm; F is the number of features of a row."""

    X = "X", "x", Axes.RF, "inputs", 0
    W = "W", "weight", Axes.F, "inputs", 1
    B = "B", "bias", Axes.F, "inputs", 2
    S = "S", "sum_f X (moments=two-pass or squares)", Axes.R, "forward", 3
    M = "M", "the mean: S / F", Axes.R, "forward", 4
    XM = "XM", "X - M (form=apart; moments=two-pass)", Axes.RF, "forward", 5
    SQ = "SQ", "XM XM, or X X (moments=squares)", Axes.RF, "forward", 6
    SS = "SS", "sum_f SQ", Axes.R, "forward", 7
    MS = "MS", "SS / F (moments=squares)", Axes.R, "forward", 8
    M2 = "M2", "M M (moments=squares)", Axes.R, "forward", 9
    V = "V", "the variance: SS / F, or MS - M2 but at least 0", Axes.R, "forward", 10
    VE = "VE", "V + eps", Axes.R, "forward", 11
    SD = "SD", "sqrt(VE)", Axes.R, "forward", 12
    RS = "RS", "1 / SD, or 1 / sqrt(VE) in one", Axes.R, "forward", 13
    MR = "MR", "-M RS (form=folded)", Axes.R, "forward", 14
    XR = "XR", "X RS (form=folded)", Axes.RF, "forward", 15
    XN = "XN", "XM RS, or XR + MR", Axes.RF, "forward", 16
    XW = "XW", "XN W", Axes.RF, "forward", 17
    Y = "Y", "XW + B", Axes.RF, "forward", 18
    OUT = "OUT", "Y as it is stored", Axes.RF, "forward", 19
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 20
    MK = "MK", "M as it is kept for the backward", Axes.R, "backward", 21
    RK = "RK", "RS as it is kept for the backward", Axes.R, "backward", 22
    XC = "XC", "X - MK (gradient=apart)", Axes.RF, "backward", 23
    MRK = "MRK", "-MK RK (gradient=folded)", Axes.R, "backward", 24
    XRK = "XRK", "X RK (gradient=folded)", Axes.RF, "backward", 25
    XH = "XH", "XC RK, or XRK + MRK", Axes.RF, "backward", 26
    DYC = "DYC", "DOUT XC (gradient=apart)", Axes.RF, "backward", 27
    DWR = "DWR", "DYC RK, or DOUT XH (gradient=folded)", Axes.RF, "backward", 28
    DW = "DW", "sum_r DWR", Axes.F, "backward", 29
    DWO = "DWO", "DW as it is stored", Axes.F, "backward", 30
    DBI = "DBI", "sum_r DOUT", Axes.F, "backward", 31
    DBO = "DBO", "DBI as it is stored", Axes.F, "backward", 32
    DYW = "DYW", "DOUT W", Axes.RF, "backward", 33
    S1 = "S1", "sum_f DYW", Axes.R, "backward", 34
    DYX = "DYX", "DYW XC, or DOUT X (gradient=folded)", Axes.RF, "backward", 35
    DXN = "DXN", "DYX RK, or DYX W (gradient=folded)", Axes.RF, "backward", 36
    S2 = "S2", "sum_f DXN", Axes.R, "backward", 37
    FW = "FW", "F W (gradient=apart)", Axes.RF, "backward", 38
    DYR = "DYR", "DOUT RK (gradient=folded)", Axes.RF, "backward", 39
    DX1 = "DX1", "FW DOUT, or DYR W (gradient=folded)", Axes.RF, "backward", 40
    XS = "XS", "-XH S2 (gradient=apart)", Axes.RF, "backward", 41
    RF = "RF", "1 / F RK (gradient=apart)", Axes.R, "backward", 42
    SM = "SM", "S1 MK (gradient=folded)", Axes.R, "backward", 43
    SM2 = "SM2", "SM - S2 (gradient=folded)", Axes.R, "backward", 44
    R1 = "R1", "SM2 RK (gradient=folded)", Axes.R, "backward", 45
    R2 = "R2", "R1 RK (gradient=folded)", Axes.R, "backward", 46
    R3 = "R3", "R2 RK (gradient=folded)", Axes.R, "backward", 47
    BX = "BX", "R3 1 / F (gradient=folded)", Axes.R, "backward", 48
    BM = "BM", "-BX MK (gradient=folded)", Axes.R, "backward", 49
    SR = "SR", "S1 RK (gradient=folded)", Axes.R, "backward", 50
    SRF = "SRF", "-SR 1 / F (gradient=folded)", Axes.R, "backward", 51
    CX = "CX", "BM + SRF (gradient=folded)", Axes.R, "backward", 52
    XB = "XB", "BX X (gradient=folded)", Axes.RF, "backward", 53
    DX2 = "DX2", "DX1 + XS, or DX1 + XB", Axes.RF, "backward", 54
    DX3 = "DX3", "DX2 - S1, or DX2 + CX", Axes.RF, "backward", 55
    DX = "DX", "DX3 RF (gradient=apart)", Axes.RF, "backward", 56
    DXO = "DXO", "DX, or DX3, as it is stored", Axes.RF, "backward", 57


class Statistics(StrEnum):
    """How the mean and the variance of a row are added up."""

    TWO_PASS = "two-pass"
    """The mean first, then the mean of (x - mean)^2."""
    SQUARES = "squares"
    """The mean of x^2 minus the square of the mean, but at least 0."""
    VECTORS = "vectors"
    """In one pass by vectors, as torch on a CPU (`moments.by_vectors`): 8 lanes, and two vectors at
    a time where x has 16 bits."""
    THREADS = "threads"
    """In one pass by 128 threads, as torch on a GPU (`moments.by_threads`)."""


class Form(StrEnum):
    """How x is normalized."""

    APART = "apart"
    """(x - mean) rs."""
    FOLDED = "folded"
    """x rs + (-mean rs)."""


class Gradient(StrEnum):
    """How the gradients are put together."""

    APART = "apart"
    """dx = (F w dy - xh sum(w dy xh) - sum(w dy)) rs / F."""
    FOLDED = "folded"
    """dx = rs dy w + b x + c, with b and c for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of LayerNorm.

    A product that does not round (SITE=fp64) and the addition that follows are one multiply-add.
    """

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.S, Site.SS, Site.DW, Site.DBI, Site.S1, Site.S2)
    FACTORS: ClassVar = {
        Site.S: (Site.X,),
        Site.SS: (Site.SQ,),
        Site.DW: (Site.DWR,),
        Site.DBI: (Site.DOUT,),
        Site.S1: (Site.DYW,),
        Site.S2: (Site.DXN,),
    }

    moments: Statistics = choice(
        Statistics.TWO_PASS,
        number=0,
        called="moments",
        doc="How mean and variance are added up, one of `Statistics`: two-pass (default), squares,"
        " vectors or threads. The steps of the last two round as those of SS's sum.",
        moves=Moves(forward=1),
    )
    root: Root = choice(
        Root.DIVIDED,
        number=1,
        called="root",
        doc="How 1 / sqrt(VE) is computed, one of `Root`: divided (default: a root, then a"
        " division), correct (one rounding) or rsqrt (the instruction rsqrt.approx).",
        moves=Moves(forward=2),
    )
    form: Form = choice(
        Form.APART,
        number=2,
        called="form",
        doc="How x is normalized, one of `Form`: apart (default: the mean is subtracted first) or"
        " folded (x times RS plus a number of the row).",
        moves=Moves(forward=3),
    )
    gradient: Gradient = choice(
        Gradient.APART,
        number=3,
        called="gradient",
        doc="How the gradients are put together, one of `Gradient`: apart (default) or folded.",
        moves=Moves(backward=1),
    )


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    x: Array,
    weight: Array | None,
    bias: Array | None,
) -> tuple[Array | None, ...]:
    """Return (out,), for x (R, F), and weight and bias (F,) or None; and behind it x, M, RS, the
    weight and the bias, for `backward`.

    settings: eps, which is added to the variance.
    """
    xp, mul = at.ops.xp, at.ops.multiply
    x = at(Site.X, x)
    m, v, xm = _moments(at, x)
    ve = at(Site.VE, v + constant(at.plan, Site.VE, settings["eps"]))
    rs = reciprocal_root(at, Site.SD, Site.RS, ve, at.plan.root)
    if at.plan.form is Form.FOLDED:
        mr = at(Site.MR, mul(-m, rs))
        xn = plus(at, Site.XN, at(Site.XR, mul(x, rs[:, None])), _columns(xp, mr, x))
    else:
        xm = at(Site.XM, x - m[:, None]) if xm is None else xm
        xn = at(Site.XN, mul(xm, rs[:, None]))
    y, w, b = xn, None, None
    if weight is not None:
        w = xp.broadcast_to(at(Site.W, weight[None, :]), x.shape)
        y = at(Site.XW, mul(y, w))
    if bias is not None:
        b = xp.broadcast_to(at(Site.B, bias[None, :]), x.shape)
        y = plus(at, Site.Y, y, b)
    return at(Site.OUT, y), x, m, rs, w, b


def _columns(xp: Any, row: Array, like: Array) -> Array:
    """Return numbers (R,) for each feature of their row."""
    return xp.broadcast_to(row[:, None], like.shape)


def _moments(at: Events[Plan, Rows], x: Array) -> tuple[Array, Array, Array | None]:
    """Return the events M, V and, of a plan that has it by then, XM."""
    plan, ops, xp = at.plan, at.ops, at.ops.xp
    step = plan.accumulator(Site.SS).step
    if plan.moments is Statistics.VECTORS:
        own = 2 if plan[Site.X].format.bits <= 16 else 1
        m, v = by_vectors(ops, x, 8, own, step)
        return at(Site.M, m), at(Site.V, v), None
    if plan.moments is Statistics.THREADS:
        m, v = by_threads(ops, x, 128, step)
        return at(Site.M, m), at(Site.V, v), None
    ones = xp.ones((x.shape[1], 1))
    s = at.product(Site.S, x, ones)[:, 0]
    features = xp.full_like(s, x.shape[1])
    m = at(Site.M, ops.divide(s, features))
    if plan.moments is Statistics.SQUARES:
        ss = at.product(Site.SS, at(Site.SQ, ops.multiply(x, x)), ones)[:, 0]
        ms = at(Site.MS, ops.divide(ss, features))
        return m, at(Site.V, xp.maximum(ms - at(Site.M2, ops.multiply(m, m)), 0.0)), None
    xm = at(Site.XM, x - m[:, None])
    ss = at.product(Site.SS, at(Site.SQ, ops.multiply(xm, xm)), ones)[:, 0]
    return m, at(Site.V, ops.divide(ss, features)), xm


def backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array, Array | None, Array | None],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradients of x, of the weight and of the bias."""
    (x, m, rs, w, b), mul, xp, found = saved, at.ops.multiply, at.ops.xp, {}
    dy, m, rs = at(Site.DOUT, gradients[0]), at(Site.MK, m), at(Site.RK, rs)
    by_row = xp.ones((x.shape[0], 1))
    if at.plan.gradient is Gradient.FOLDED:
        mr = _columns(xp, at(Site.MRK, mul(-m, rs)), x)
        xh = plus(at, Site.XH, at(Site.XRK, mul(x, rs[:, None])), mr)
        dwr = dy if w is None else at(Site.DWR, mul(dy, xh))
        dx = _folded(at, x, m, rs, w, dy)
    else:
        xc = at(Site.XC, x - m[:, None])
        xh = at(Site.XH, mul(xc, rs[:, None]))
        dwr = dy if w is None else at(Site.DWR, mul(at(Site.DYC, mul(dy, xc)), rs[:, None]))
        dx = _apart(at, xc, xh, rs, w, dy)
    if w is not None:
        dw = at.product(Site.DW, at.ops.transposed(dwr), by_row)
        found["weight"] = at(Site.DWO, dw[:, 0])
    if b is not None:
        db = at.product(Site.DBI, at.ops.transposed(dy), by_row)
        found["bias"] = at(Site.DBO, db[:, 0])
    return {**found, "x": at(Site.DXO, dx)}


def _apart(
    at: Events[Plan, Rows], xc: Array, xh: Array, rs: Array, w: Array | None, dy: Array
) -> Array:
    """Return the event DX of the gradient of x, by (F w dy - xh S2 - S1) rs / F."""
    xp, mul, features = at.ops.xp, at.ops.multiply, float(xc.shape[1])
    ones = xp.ones((xc.shape[1], 1))
    dyw = dy if w is None else at(Site.DYW, mul(dy, w))
    s1 = at.product(Site.S1, dyw, ones)[:, 0]
    dxn = at(Site.DXN, mul(at(Site.DYX, mul(dyw, xc)), rs[:, None]))
    s2 = at.product(Site.S2, dxn, ones)[:, 0]
    fw = xp.full_like(dy, features) if w is None else at(Site.FW, mul(w, features))
    xs = at(Site.XS, -mul(xh, s2[:, None]))
    dx = plus(at, Site.DX2, xs, at(Site.DX1, mul(fw, dy)))
    rf = at(Site.RF, mul(rs, constant(at.plan, Site.RF, 1.0 / features)))
    return at(Site.DX, mul(at(Site.DX3, dx - s1[:, None]), rf[:, None]))


def _folded(
    at: Events[Plan, Rows], x: Array, m: Array, rs: Array, w: Array | None, dy: Array
) -> Array:
    """Return the event DX3 of the gradient of x, by rs dy w + b x + c."""
    xp, mul = at.ops.xp, at.ops.multiply
    ones = xp.ones((x.shape[1], 1))
    dyx = at(Site.DYX, mul(dy, x))
    s2 = at.product(Site.S2, at(Site.DXN, dyx if w is None else mul(dyx, w)), ones)[:, 0]
    s1 = at.product(Site.S1, at(Site.DYW, dy if w is None else mul(dy, w)), ones)[:, 0]
    part = constant(at.plan, Site.BX, 1.0 / x.shape[1])
    b = plus(at, Site.SM2, at(Site.SM, mul(s1, m)), -s2)
    for site in (Site.R1, Site.R2, Site.R3):
        b = at(site, mul(b, rs))
    b = at(Site.BX, mul(b, part))
    c = at(Site.SRF, -mul(at(Site.SR, mul(s1, rs)), part))
    c = plus(at, Site.CX, at(Site.BM, mul(-b, m)), c)
    dyr = at(Site.DYR, mul(dy, rs[:, None]))
    dx1 = at(Site.DX1, dyr if w is None else mul(dyr, w))
    dx2 = plus(at, Site.DX2, dx1, at(Site.XB, mul(x, b[:, None])))
    return at(Site.DX3, dx2 + c[:, None])


IN_TYPE = (Site.X, Site.W, Site.B, Site.OUT, Site.DOUT, Site.MK, Site.RK)
STORED = (Site.DWO, Site.DBO, Site.DXO)
FUSED = (Site.XR, Site.XW, Site.XRK, Site.DWR, Site.DXN, Site.SM, Site.BM, Site.XB)


def torch_cpu() -> Plan:
    """Return torch.nn.functional.layer_norm on a CPU, for numbers of 16 bits: mean and variance in
    one pass, then x times RS plus a number of the row in one multiply-add
    (aten/src/ATen/native/cpu/layer_norm_kernel.cpp, layer_norm_kernel_mixed_type; torch 2.13). The
    gradients of weight and bias are rounded to the type of x after each row; n threads add the rows
    in n parts of R / n rows (DW.sum=chunked:bf16).

    Equal in every bit in BF16 and FP16, for 16 features or more, and so is the gradient of x. In
    the gradient of the weight two numbers of a thousand differ in FP16 and fewer in BF16, since
    torch rounds its sum to binary32 first, then to the type of x
    (tests/operations/test_layer_norm.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE, *STORED).rounded(dict.fromkeys(FUSED, BINARY64))
    for site in (Site.S1, Site.S2):
        plan = plan.adding(site, Accumulator(order=Order.STRIDED, chunk=16))
    for site in (Site.DW, Site.DBI):
        plan = plan.adding(site, Accumulator(step=BF16))
    return replace(
        plan,
        name="torch-cpu",
        moments=Statistics.VECTORS,
        form=Form.FOLDED,
        gradient=Gradient.FOLDED,
    )


def torch_cpu_fp32() -> Plan:
    """Return torch.nn.functional.layer_norm on a CPU in FP32, which subtracts the mean first
    (aten/src/ATen/native/cpu/layer_norm_kernel.cpp, LayerNormKernelImplInternal; torch 2.13).

    Equal in every bit, and so are autograd's gradients, but for that of x at features beyond a
    multiple of 8, where another product is part of the multiply-add
    (tests/operations/test_layer_norm.py).
    """
    plan = torch_cpu()
    plan = plan.rounded({site: BINARY32 for site in Site if plan[site] == BF16})
    plan = plan.rounded({Site.DXN: BINARY32})
    for site in (Site.S1, Site.S2):
        plan = plan.adding(site, Accumulator(order=Order.STRIDED, chunk=8))
    for site in (Site.DW, Site.DBI):
        plan = plan.adding(site, Accumulator())
    return replace(plan, name="torch-cpu-fp32", form=Form.APART)


ROW_LANES = ((0, 64), (8, 128), (16, 256))  # threads that add a column, for fewer rows than that


def torch_cuda(rows: int = 64) -> Plan:
    """Return torch.nn.functional.layer_norm on a GPU: mean and variance in one pass of 128 threads,
    the instruction rsqrt, and the cast at the end (aten/src/ATen/native/cuda/layer_norm_kernel.cu,
    vectorized_layer_norm_kernel and layer_norm_grad_input_kernel_vectorized; torch 2.11). Its order
    of the sums over the rows depends on their number.

    Equal in every bit in BF16, FP16 and FP32, for 64 to 8192 features, which are a multiple of 4,
    and so are the gradients, of 64 rows (tests/operations/test_on_a_gpu.py).
    """
    plan = in_bf16(Plan, "torch-cuda", *IN_TYPE[:-2], *STORED)
    fused = (Site.XW, Site.DXN, Site.DWR, Site.DX1)
    plan = plan.rounded(dict.fromkeys(fused, BINARY64))
    for site in (Site.S1, Site.S2):
        plan = plan.adding(site, Accumulator(order=Order.QUAD_WARPS, chunk=128))
    lanes = next((n for n, below in ROW_LANES if rows < below), 32)
    by_rows = Accumulator(order=Order.OCTETS, chunk=lanes) if lanes else Accumulator()
    plan = plan.adding(Site.DW, by_rows).adding(Site.DBI, by_rows)
    return replace(plan, name="torch-cuda", moments=Statistics.THREADS, root=Root.RSQRT)


LAYER_NORM = Operation(
    name="layer_norm",
    number=57,
    plan=Plan,
    inputs=(
        Value("x", Site.X),
        Value("weight", Site.W, Shape.SHARED, optional=True),
        Value("bias", Site.B, Shape.SHARED, optional=True),
    ),
    outputs=(Value("out", Site.OUT),),
    forward=forward,
    backward=backward,
    settings={"eps": 1e-5},
    published=published(Plan, torch_cpu, torch_cuda, torch_cpu_fp32),
)
