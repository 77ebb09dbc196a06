"""gelu, x times the normal distribution of x (Hendrycks and Gimpel, arXiv 1606.08415), and the form
of it by tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

Implementations differ in erf and tanh, in which products and additions are multiply-adds, and in
whether each step is rounded to the type of x, as in programs that spell the formula out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from roundscope.emu.backends.ops import Array, Ops
from roundscope.emu.functions import tanh64
from roundscope.emu.instructions.error_function import (
    erf64,
    erf_by_vectors,
    erf_of_power,
    erff,
    erff_of_libdevice,
)
from roundscope.emu.instructions.onednn import erf_by_intervals, exp_of_5
from roundscope.emu.instructions.polynomials import tanhf
from roundscope.emu.instructions.sleef import sleef_tanhf
from roundscope.emu.roundings.modes import BF16, BINARY32, BINARY64, FP16
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.functions import Exponential, constant, exponential, plus
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of gelu in both forms."""

    X = "X", "x", Axes.RF, "inputs", 0
    A = "A", "X / sqrt(2) (but for erf=onednn)", Axes.RF, "forward", 1
    E = "E", "erf(A), or of X / sqrt(2) in one (erf=onednn)", Axes.RF, "forward", 2
    X2 = "X2", "X X", Axes.RF, "forward", 3
    X3 = "X3", "X2 X", Axes.RF, "forward", 4
    KX = "KX", "0.044715 X3", Axes.RF, "forward", 5
    XK = "XK", "X + KX", Axes.RF, "forward", 6
    IN = "IN", "sqrt(2 / pi) XK", Axes.RF, "forward", 7
    T = "T", "tanh(IN)", Axes.RF, "forward", 8
    C = "C", "1 + E, or 1 + T", Axes.RF, "forward", 9
    PH = "PH", "C / 2", Axes.RF, "forward", 10
    Y = "Y", "X PH", Axes.RF, "forward", 11
    OUT = "OUT", "Y as it is stored", Axes.RF, "forward", 12
    DOUT = "DOUT", "gradient of OUT", Axes.RF, "inputs", 13
    XX = "XX", "X X, or A A (slope=shared)", Axes.RF, "backward", 14
    EX = "EX", "exp(-XX / 2), or exp(-XX) (slope=shared)", Axes.RF, "backward", 15
    PD = "PD", "EX / sqrt(2 pi), or A / sqrt(pi) (slope=shared)", Axes.RF, "backward", 16
    XP = "XP", "X PD, or PD EX (slope=shared)", Axes.RF, "backward", 17
    EB = "EB", "erf(A) by EX (slope=shared)", Axes.RF, "backward", 18
    EH = "EH", "EB / 2 (slope=shared)", Axes.RF, "backward", 19
    XH = "XH", "XP + 1 / 2 (slope=shared)", Axes.RF, "backward", 20
    TT = "TT", "T T", Axes.RF, "backward", 21
    TD = "TD", "1 - TT", Axes.RF, "backward", 22
    K2 = "K2", "3 0.044715 X2", Axes.RF, "backward", 23
    I1 = "I1", "1 + K2", Axes.RF, "backward", 24
    ID = "ID", "sqrt(2 / pi) I1", Axes.RF, "backward", 25
    LT = "LT", "X / 2 TD", Axes.RF, "backward", 26
    RD = "RD", "LT ID", Axes.RF, "backward", 27
    DC = "DC", "DOUT X / 2 (slope=chain)", Axes.RF, "backward", 31
    DIN = "DIN", "DC TD (slope=chain)", Axes.RF, "backward", 32
    DIO = "DIO", "DIN as it is stored (slope=chain)", Axes.RF, "backward", 39
    DXK = "DXK", "sqrt(2 / pi) DIO (slope=chain)", Axes.RF, "backward", 33
    DX3 = "DX3", "0.044715 DXK (slope=chain)", Axes.RF, "backward", 34
    X23 = "X23", "3 XX (slope=chain)", Axes.RF, "backward", 35
    DXC = "DXC", "DX3 X23 (slope=chain)", Axes.RF, "backward", 36
    DXS = "DXS", "DXK + DXC (slope=chain)", Axes.RF, "backward", 37
    DXH = "DXH", "DOUT C (slope=chain)", Axes.RF, "backward", 38
    SL = "SL", "PH + XP, PH + RD, or XH + EH (slope=shared)", Axes.RF, "backward", 28
    DX = "DX", "DOUT SL, or DXS + DXH / 2 (slope=chain)", Axes.RF, "backward", 29
    DXO = "DXO", "DX as it is stored", Axes.RF, "backward", 30


class Erf(StrEnum):
    """How erf(x / sqrt(2)) is computed."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    VECTORS = "vectors"
    """The formula 7.1.26 of Abramowitz and Stegun, as torch's vectors on a CPU have it."""
    ONEDNN = "onednn"
    """A polynomial of x itself in each quarter of a binade, as oneDNN has it with AVX-512."""
    CUDA = "cuda"
    """`erff` of CUDA's library."""
    LIBDEVICE = "libdevice"
    """`libdevice.erf` of Triton, which Inductor's programs call."""


class Tanh(StrEnum):
    """How tanh(x) is computed."""

    CORRECT = "correct"
    """Correctly rounded to the format of the event."""
    SLEEF = "sleef"
    """`Sleef_tanhf_u10`, which PyTorch's vectorized kernels on a CPU call."""
    CUDA = "cuda"
    """`tanhf` of CUDA's library."""


class Slope(StrEnum):
    """How the slope of gelu is computed."""

    APART = "apart"
    """The normal distribution of the forward plus x times its density."""
    SHARED = "shared"
    """The density and erf by the same exponential, as oneDNN has it."""
    CHAIN = "chain"
    """Of the form by tanh: the gradients of its steps one after the other, as autograd has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of gelu in both forms.

    A product that does not round (SITE=fp64) and the addition that follows are one multiply-add.
    """

    SITES: ClassVar = Site

    erf: Erf = choice(
        Erf.CORRECT,
        number=0,
        called="erf",
        doc="How erf(x / sqrt(2)) is computed, one of `Erf`: correct (default), vectors, onednn,"
        " cuda or libdevice.",
        moves=Moves(forward=1),
    )
    tanh: Tanh = choice(
        Tanh.CORRECT,
        number=1,
        called="tanh",
        doc="How tanh is computed, one of `Tanh`: correct (default), sleef or cuda.",
        moves=Moves(forward=2),
    )
    exp: Exponential = choice(
        Exponential.CORRECT,
        number=2,
        called="exp",
        doc="How exp of the density is computed, one of `Exponential`: correct (default), cuda, ex2"
        " or sleef.",
        moves=Moves(backward=1),
    )
    slope: Slope = choice(
        Slope.APART,
        number=3,
        called="slope",
        doc="How the slope of gelu is computed, one of `Slope`: apart (default), shared (by erf) or"
        " chain (by tanh).",
        moves=Moves(backward=2),
    )


ROOT_HALF = math.sqrt(0.5)
BETA = math.sqrt(2.0 / math.pi)
KAPPA = 0.044715
ROOT_OF_PI = 1.0 / math.sqrt(math.pi)
ROOT_OF_PI_32 = float.fromhex("0x1.20dd74p-1")  # oneDNN's, which is not the nearest number
OF_BINARY32: dict[str, Callable[[Ops, Array], Array]] = {
    "erf=vectors": erf_by_vectors,
    "erf=onednn": erf_by_intervals,
    "erf=cuda": erff,
    "erf=libdevice": erff_of_libdevice,
    "tanh=sleef": sleef_tanhf,
    "tanh=cuda": tanhf,
}
"""The functions whose argument is a register of binary32."""


def _function(at: Events[Plan, Rows], site: Site, x: Array, word: str) -> Array:
    """Return erf or tanh of x, as a word of the plan says, rounded by the event of a site."""
    if word in OF_BINARY32:
        return at(site, at.ops.call(OF_BINARY32[word], at.ops.round(x, BINARY32, None)))
    return at(site, at.ops.call({"erf": erf64, "tanh": tanh64}[word.partition("=")[0]], x))


def _scaled(
    at: Events[Plan, Rows], site: Site, factor: float, x: Array, user: Site | None = None
) -> Array:
    """Return a constant times x, rounded by the event of a site.

    user: the event that reads a product that may not round; the constant has its format
    """
    return at(site, at.ops.multiply(x, constant(at.plan, user or site, factor)))


def gelu(at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """Return (out,), for x (R, F); and behind it x and the distribution, for the backward."""
    x = at(Site.X, x)
    a = x if at.plan.erf is Erf.ONEDNN else _scaled(at, Site.A, ROOT_HALF, x)
    e = _function(at, Site.E, a, f"erf={at.plan.erf}")
    ph = at(Site.PH, at.ops.multiply(at(Site.C, 1.0 + e), 0.5))
    return at(Site.OUT, at(Site.Y, at.ops.multiply(x, ph))), x, ph


def gelu_backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x."""
    (x, ph), mul, xp = saved, at.ops.multiply, at.ops.xp
    dy = at(Site.DOUT, gradients[0])
    if at.plan.slope is Slope.SHARED:
        a = _scaled(at, Site.A, ROOT_HALF, x)
        ex = at(Site.EX, at.ops.call(exp_of_5, -at(Site.XX, mul(a, a))))
        is_narrow = at.plan[Site.PD].format.fits_binary32
        density = at(Site.PD, mul(a, ROOT_OF_PI_32 if is_narrow else ROOT_OF_PI))
        xh = at(Site.XH, at(Site.XP, mul(density, ex)) + 0.5)
        eb = at(Site.EB, erf_of_power(at.ops, a, ex))
        slope = plus(at, Site.SL, at(Site.EH, mul(eb, 0.5)), xh)
    else:
        xx = at(Site.XX, mul(x, x))
        ex = exponential(at, Site.EX, -0.5 * xx, at.plan.exp)
        density = _scaled(at, Site.PD, 1.0 / math.sqrt(2.0 * math.pi), ex)
        slope = plus(at, Site.SL, at(Site.XP, mul(x, density)), xp.broadcast_to(ph, x.shape))
    return {"x": at(Site.DXO, at(Site.DX, mul(dy, slope)))}


def gelu_tanh(at: Events[Plan, Rows], settings: Mapping[str, Any], x: Array) -> tuple[Array, ...]:
    """Return (out,), for x (R, F); and behind it x, X2, T, PH and C, for the backward."""
    mul = at.ops.multiply
    x = at(Site.X, x)
    x2 = at(Site.X2, mul(x, x))
    x3 = at(Site.X3, mul(x2, x))
    xk = plus(at, Site.XK, _scaled(at, Site.KX, KAPPA, x3, Site.XK), x)
    t = _function(at, Site.T, _scaled(at, Site.IN, BETA, xk), f"tanh={at.plan.tanh}")
    c = at(Site.C, 1.0 + t)
    ph = at(Site.PH, mul(c, 0.5))
    return at(Site.OUT, at(Site.Y, mul(x, ph))), x, x2, t, ph, c


def gelu_tanh_backward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    saved: tuple[Array, Array, Array, Array, Array],
    gradients: tuple[Array],
) -> dict[str, Array]:
    """Return the gradient of x."""
    (x, x2, t, ph, c), mul, one = saved, at.ops.multiply, at.ops.xp.ones_like(saved[0])
    dy = at(Site.DOUT, gradients[0])
    td = plus(at, Site.TD, -at(Site.TT, mul(t, t)), one)
    if at.plan.slope is Slope.CHAIN:
        inner = at(Site.DIN, mul(at(Site.DC, mul(dy, 0.5 * x)), td))
        dxk = _scaled(at, Site.DXK, BETA, at(Site.DIO, inner))
        dx3 = _scaled(at, Site.DX3, KAPPA, dxk)
        dxc = at(Site.DXC, mul(dx3, at(Site.X23, 3.0 * at(Site.XX, mul(x, x)))))
        half = 0.5 * at(Site.DXH, mul(dy, c))
        return {"x": at(Site.DXO, at(Site.DX, at(Site.DXS, dxk + dxc) + half))}
    three = 3.0 * constant(at.plan, Site.I1, KAPPA)
    i1 = plus(at, Site.I1, _scaled(at, Site.K2, three, x2, Site.I1), one)
    lt = at(Site.LT, mul(0.5 * x, td))
    rd = at(Site.RD, mul(lt, _scaled(at, Site.ID, BETA, i1)))
    slope = plus(at, Site.SL, rd, ph)
    return {"x": at(Site.DXO, at(Site.DX, mul(dy, slope)))}


IN_TYPE = (Site.X, Site.OUT, Site.DOUT, Site.DXO)
FUSED = (Site.KX, Site.TT, Site.K2, Site.EH)


def torch_cpu() -> Plan:
    """Return torch.nn.functional.gelu on a CPU with AVX-512: oneDNN's by erf, which arrays without
    gaps in FP32 and BF16 get (aten/src/ATen/native/Activation.cpp, gelu_out_cpu), and torch's own
    by tanh (cpu/Activation.cpp, GeluKernelImpl and GeluBackwardKernelImpl; torch 2.13).

    Equal in every bit in BF16 and FP32, and so are autograd's gradients, but for subnormal numbers
    of BF16, which oneDNN flushes to zero; by tanh also in FP16 (tests/operations/test_gelu.py).
    """
    plan = in_bf16(Plan, "torch-cpu", *IN_TYPE).rounded(dict.fromkeys(FUSED, BINARY64))
    return replace(
        plan, name="torch-cpu", erf=Erf.ONEDNN, tanh=Tanh.SLEEF, slope=Slope.SHARED,
        exp=Exponential.SLEEF,
    )  # fmt: skip


def torch_cpu_native() -> Plan:
    """Return torch's own gelu by erf on a CPU, which arrays in FP16 get, and all without oneDNN
    (aten/src/ATen/native/cpu/Activation.cpp, GeluKernelImpl and GeluBackwardKernelImpl; torch
    2.13).

    Equal in every bit in BF16 and FP16, and so are autograd's gradients
    (tests/operations/test_gelu.py).
    """
    return replace(torch_cpu(), name="torch-cpu-native", erf=Erf.VECTORS, slope=Slope.APART)


def torch_cpu_native_fp32() -> Plan:
    """Return torch's own gelu by erf in FP32, whose slope is a multiply-add.

    Equal in every bit, and so are autograd's gradients (tests/operations/test_gelu.py).
    """
    plan = torch_cpu_native().rounded(dict.fromkeys(IN_TYPE, BINARY32))
    return replace(plan.rounded({Site.XP: BINARY64}), name="torch-cpu-native-fp32")


def transformers_new() -> Plan:
    """Return transformers' gelu_new (GPT-2's) on a CPU: a formula of torch's functions, each of
    which rounds to the type of x (activations.py, NewGELUActivation; 5.24 with torch 2.13).

    Equal in every bit in BF16, and so are autograd's gradients; in FP32 up to the tanh, which is of
    another library (tests/operations/test_gelu.py).
    """
    plan = Plan.everywhere("transformers-new", BF16)
    plan = plan.rounded({Site.TT: BINARY64, Site.TD: BINARY32, Site.DIN: BINARY32})
    return replace(plan, name="transformers-new", slope=Slope.CHAIN)


def transformers_new_fp16() -> Plan:
    """Return transformers' gelu_new on a CPU in FP16, where x^3 is rounded once.

    Equal in every bit, and so are 9,996 of 10,000 of autograd's gradients: torch rounds a product
    with a constant to binary32 first (tests/operations/test_gelu.py).
    """
    own = transformers_new()
    plan = own.rounded({site: FP16 for site in Site if own[site] == BF16})
    return replace(plan.rounded({Site.X2: BINARY32}), name="transformers-new-fp16")


def torch_cuda() -> Plan:
    """Return torch.nn.functional.gelu on a GPU, with erff, tanhf and expf of CUDA's library
    (aten/src/ATen/native/cuda/ActivationGeluKernel.cu; torch 2.11 with CUDA 13.0).

    Equal in every bit for all numbers of BF16 and FP16, and in FP32, and so are the gradients
    (tests/operations/test_on_a_gpu.py).
    """
    return replace(
        torch_cpu(), name="torch-cuda", erf=Erf.CUDA, tanh=Tanh.CUDA, slope=Slope.APART,
        exp=Exponential.CUDA,
    )  # fmt: skip


GELU = Operation(
    name="gelu",
    number=58,
    plan=Plan,
    inputs=(Value("x", Site.X),),
    outputs=(Value("out", Site.OUT),),
    forward=gelu,
    backward=gelu_backward,
    published=published(Plan, torch_cpu, torch_cpu_native, torch_cpu_native_fp32, torch_cuda),
)
GELU_TANH = Operation(
    name="gelu_tanh",
    number=59,
    plan=Plan,
    inputs=(Value("x", Site.X),),
    outputs=(Value("out", Site.OUT),),
    forward=gelu_tanh,
    backward=gelu_tanh_backward,
    published=published(Plan, torch_cpu, transformers_new, transformers_new_fp16, torch_cuda),
)
