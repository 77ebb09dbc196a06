"""log_softmax, x - max(x) - ln(sum(exp(x - max(x)))), and cross entropy, the mean of its negative
at the targets.

Implementations differ in exp and ln, in the order of the sum, in whether the maximum and the
logarithm are subtracted one after the other, and in the type of what is kept in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import (
    Exponential,
    Logarithm,
    exp_field,
    exponential,
    exponentials,
    logarithm,
)
from roundscope.operations.operation import Operation, Shape, Value, in_bf16, published


class Site(SiteBase):
    """The events of log_softmax and cross entropy; V is the number of classes, R of rows."""

    X = "X", "x", Axes.RF, "inputs", 0
    D = "D", "X - max(X)", Axes.RF, "forward", 1
    EXP = "EXP", "exp(D)", Axes.RF, "forward", 2
    S = "S", "sum_v EXP", Axes.R, "forward", 3
    LN = "LN", "ln(S)", Axes.R, "forward", 4
    LSE = "LSE", "max(X) + LN (form=lse)", Axes.R, "forward", 5
    LP = "LP", "D - LN, or X - LSE (form=lse)", Axes.RF, "forward", 6
    OUT = "OUT", "LP as it is stored", Axes.RF, "forward", 7
    NLL = "NLL", "-LP at the target", Axes.R, "forward", 8
    TOTAL = "TOTAL", "sum of NLL over the rows", Axes.ONE, "forward", 9
    LOSS = "LOSS", "the mean TOTAL / N, TOTAL, or NLL (reduction)", Axes.ONE, "forward", 10
    N = "N", "R, the rows that count, as it divides TOTAL", Axes.ONE, "forward", 18
    DOUT = "DOUT", "gradient of OUT or LOSS", Axes.RF, "inputs", 11
    DN = "DN", "R as it divides DOUT", Axes.ONE, "backward", 19
    DLP = "DLP", "DOUT, or -DOUT / DN at the target and 0 elsewhere", Axes.RF, "backward", 12
    DS = "DS", "sum_v DLP", Axes.R, "backward", 13
    PE = "PE", "exp(OUT)", Axes.RF, "backward", 14
    PS = "PS", "PE DS", Axes.RF, "backward", 15
    DX = "DX", "DLP - PS, or DLP - PE DS in one (fused_gradient)", Axes.RF, "backward", 16
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 17


class Form(StrEnum):
    """Which numbers log_softmax subtracts from x, and in how many steps."""

    APART = "apart"
    """The maximum, and then the logarithm."""
    LSE = "lse"
    """Their sum, as kernels do that read the classes in chunks and keep one number of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of log_softmax and cross entropy."""

    SITES: ClassVar = Site
    PRODUCTS: ClassVar = (Site.S, Site.TOTAL, Site.DS)
    FACTORS: ClassVar = {
        Site.S: (Site.EXP,),
        Site.TOTAL: (Site.NLL,),
        Site.DS: (Site.DLP,),
    }

    form: Form = choice(
        Form.APART,
        number=0,
        called="form",
        doc="What is subtracted from x, one of `Form`: apart (default: the maximum, then the"
        " logarithm) or lse (their sum).",
        moves=Moves(forward=1),
    )
    exp: Exponential = exp_field(number=1, forward=2)
    log: Logarithm = choice(
        Logarithm.CORRECT,
        number=2,
        called="log",
        doc="How ln is computed, one of `Logarithm`: correct (default), cuda or lg2.",
        moves=Moves(forward=3),
    )
    fused_gradient: bool = choice(
        False,
        number=3,
        doc="True computes the gradient DLP - PE DS by a multiply-add, without the event PS."
        " Default False.",
        source="torch on a CPU, whose compiler contracts it",
        moves=Moves(backward=1),
    )
    first_row_last: bool = choice(
        False,
        number=4,
        doc="True adds the first row's loss to the sum of all others. Default False.",
        source="torch on a CPU",
        moves=Moves(forward=4),
    )


def log_softmax(at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """Return (out,), for x (R, V); and behind it the same, for the backward."""
    out = at(Site.OUT, _log_probabilities(at, x))
    return out, out


def log_softmax_backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x."""
    return {"x": _gradient(at, saved[0], at(Site.DLP, at(Site.DOUT, gradients[0])))}


def _gradient(at: Events[Plan, Rows], lp: Array, dlp: Array) -> Array:
    """Return the gradient of x from that of the log-probabilities lp, (R, V)."""
    ds = at.product(Site.DS, dlp, at.ops.xp.ones((lp.shape[1], 1)))
    pe = exponential(at, Site.PE, lp, at.plan.exp)
    ps = at.ops.multiply(pe, at.ops.xp.broadcast_to(ds, pe.shape))
    if at.plan.fused_gradient:
        dx = at(Site.DX, at.ops.odd_sum(dlp, -ps))
    else:
        dx = at(Site.DX, dlp - at(Site.PS, ps))
    return at(Site.DXO, dx)


def cross_entropy(
    at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array, target: Array
) -> tuple[Array, ...]:
    """Return (loss,), for x (R, V) and target (R,): the class of each row, or `ignore_index`; and
    behind it the log-probabilities, the targets, which rows count, and how many, for the backward.

    settings: reduction ("mean", "sum" or "none") and ignore_index, whose rows count as absent.
    """
    xp, kind = at.ops.xp, settings["reduction"]
    if kind not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={kind!r}: give mean, sum or none")
    lp = at(Site.OUT, _log_probabilities(at, x))
    counts = target != settings["ignore_index"]
    own = xp.take_along_axis(lp, xp.where(counts, target, 0)[:, None], axis=1)[:, 0]
    nll = at(Site.NLL, xp.where(counts, -own, 0.0))
    saved = lp, xp.where(counts, target, 0), counts, counts.sum().astype("float64")
    if kind == "none":
        return at(Site.LOSS, nll), *saved
    others, first = nll[None, :], None
    if at.plan.first_row_last:
        others, first = nll[None, 1:], nll[None, :1]
    total = at.product(Site.TOTAL, others, xp.ones((others.shape[1], 1)), first)[0]
    if kind == "mean":
        total = at.ops.divide(total, at(Site.N, xp.full_like(total, saved[3])))
    return at(Site.LOSS, total)[0], *saved


def cross_entropy_backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array, Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x."""
    (lp, target, counts, rows), xp = saved, at.ops.xp
    own = -at(Site.DOUT, gradients[0])
    if settings["reduction"] == "mean":
        own = at.ops.divide(own, xp.broadcast_to(at(Site.DN, rows[None]), own.shape))
    is_target = (xp.arange(lp.shape[1]) == target[:, None]) & counts[:, None]
    dlp = at(Site.DLP, xp.where(is_target, own[:, None], 0.0))
    return {"x": _gradient(at, lp, dlp)}


def _log_probabilities(at: Events[Plan, Rows], x: Array) -> Array:
    """Return the event LP of x, (R, V)."""
    x = at(Site.X, x)
    m, d, _, s = exponentials(at, Site, x, at.plan.exp)
    ln = logarithm(at, Site.LN, s, at.plan.log)
    if at.plan.form is Form.LSE:
        return at(Site.LP, x - at(Site.LSE, m + ln)[:, None])
    return at(Site.LP, d - ln[:, None])


def torch_cpu() -> Plan:
    """Return torch's log_softmax and cross_entropy on a CPU with AVX-512, whose sum of a row and
    its logarithm have the type of x (aten/src/ATen/native/cpu/SoftMaxKernel.cpp,
    vec_log_softmax_lastdim_chunk_kernel; torch 2.13).

    Equal in every bit in BF16 and FP16, and so are autograd's gradients; in FP32 up to torch's
    logarithm, which is not correctly rounded for some rows (tests/operations/test_losses.py). The
    sum over rows and their number have the type of x, and the sum is that of torch of up to 65536
    rows of which no sixteenth is ignored: blocks of 16 behind the first row, which comes last
    (aten/src/ATen/native/LossNLL.cpp, nll_loss_out_frame).
    """
    loss = (Site.NLL, Site.TOTAL, Site.N, Site.LOSS, Site.DOUT, Site.DN, Site.DLP, Site.DXO)
    plan = in_bf16(Plan, "torch-cpu", Site.X, Site.S, Site.LN, Site.OUT, *loss)
    for site in (Site.S, Site.DS):
        plan = plan.adding(site, Accumulator(order=Order.STRIDED, chunk=16))
    plan = plan.adding(Site.TOTAL, Accumulator(order=Order.LEVELS, step=BF16))
    return replace(
        plan,
        name="torch-cpu",
        exp=Exponential.SLEEF,
        fused_gradient=True,
        first_row_last=True,
    )


def torch_cuda() -> Plan:
    """Return torch's log_softmax on a GPU, for more than 1024 classes in BF16: binary32 inside,
    CUDA's expf and logf, and one cast (aten/src/ATen/native/cuda/SoftMax.cu, cunn_SoftMaxForward;
    torch 2.11). In FP32 the sum is quad-strides1024, and strided32 for up to 1024 classes
    (PersistentSoftmax.cuh, softmax_warp_forward).

    Equal in every bit in BF16 and FP32, for 256 to 128256 classes
    (tests/operations/test_on_a_gpu.py), and so are the losses of cross_entropy, and their sum and
    mean over 16 to 5000 rows (TOTAL.sum=strided64 for 999, strided256 for 5000). The gradients are
    equal too (tests/operations/test_gradients_on_a_gpu.py), but for 3 % of those of log_softmax in
    FP32 for more than 1024 classes.
    """
    loss = (Site.NLL, Site.LOSS, Site.DOUT, Site.DN, Site.DLP, Site.DXO)
    plan = in_bf16(Plan, "torch-cuda", Site.X, Site.OUT, *loss)
    for site in (Site.S, Site.DS):
        plan = plan.adding(site, Accumulator(order=Order.OCTET_STRIDES, chunk=1024))
    plan = plan.adding(Site.TOTAL, Accumulator(order=Order.STRIDED, chunk=32))
    return replace(
        plan,
        name="torch-cuda",
        exp=Exponential.CUDA,
        log=Logarithm.CUDA,
        fused_gradient=True,
    )


LOG_SOFTMAX = Operation(
    name="log_softmax",
    number=3,
    plan=Plan,
    inputs=(Value("x", Site.X),),
    outputs=(Value("out", Site.OUT),),
    forward=log_softmax,
    backward=log_softmax_backward,
    published=published(Plan, torch_cpu, torch_cuda),
)
CROSS_ENTROPY = Operation(
    name="cross_entropy",
    number=4,
    plan=Plan,
    inputs=(Value("x", Site.X), Value("target", None, Shape.NUMBERS)),
    outputs=(Value("loss", Site.LOSS, Shape.NUMBERS),),
    forward=cross_entropy,
    backward=cross_entropy_backward,
    settings={"reduction": "mean", "ignore_index": -100},
    published=published(Plan, torch_cpu, torch_cuda),
)
