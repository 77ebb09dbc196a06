"""One step of AdamW (Loshchilov and Hutter, arXiv 1711.05101): the parameter and its two averages.

Implementations differ in the type of the parameter and of the averages, in which results they store
in between, in how an average is moved, in where the corrections and the decay stand, and in which
products are fused into an addition: a product that does not round (binary64) is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY64, Rounding, RoundingMode
from roundscope.emu.roundings.random import STEP
from roundscope.emu.sums.odd import sum_to_round
from roundscope.events.choice import Moves, choice
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.events.plan import BasePlan
from roundscope.events.sites import Axes, SiteBase
from roundscope.operations.operation import Operation, Value, in_bf16, published


class Site(SiteBase):
    """The events of AdamW; F is the number of numbers in a row of the parameter."""

    P = "P", "parameter", Axes.RF, "inputs", 0
    G = "G", "gradient", Axes.RF, "inputs", 1
    M = "M", "exp_avg, the average of gradients", Axes.RF, "inputs", 2
    V = "V", "exp_avg_sq, the average of their squares", Axes.RF, "inputs", 3
    KW = "KW", "1 - lr weight_decay, or what else multiplies P", Axes.ONE, "inputs", 4
    K1 = "K1", "1 - beta1", Axes.ONE, "inputs", 5
    B1 = "B1", "beta1 (average=weighted)", Axes.ONE, "inputs", 6
    K2 = "K2", "1 - beta2", Axes.ONE, "inputs", 7
    B2 = "B2", "beta2", Axes.ONE, "inputs", 8
    KR = "KR", "sqrt(1 - beta2^t), or 1 over it (reciprocal)", Axes.ONE, "inputs", 9
    KE = "KE", "eps", Axes.ONE, "inputs", 10
    KS = "KS", "lr / (1 - beta1^t), or lr (correction=averages)", Axes.ONE, "inputs", 11
    C1 = "C1", "1 - beta1^t (correction=averages)", Axes.ONE, "inputs", 12
    C2 = "C2", "1 - beta2^t (correction=averages)", Axes.ONE, "inputs", 13
    R1 = "R1", "1 / C1 (reciprocal)", Axes.ONE, "inputs", 14
    R2 = "R2", "1 / C2 (reciprocal)", Axes.ONE, "inputs", 15
    PW = "PW", "P KW (decay=subtracted or update)", Axes.RF, "forward", 16
    PD = "PD", "P KW, or P - PW (decay=subtracted)", Axes.RF, "forward", 17
    PDO = "PDO", "PD as it is stored in between", Axes.RF, "forward", 18
    MD = "MD", "G - M (average=lerp)", Axes.RF, "forward", 19
    MG = "MG", "MD K1, or G K1 (average=weighted)", Axes.RF, "forward", 20
    MB = "MB", "M B1 (average=weighted)", Axes.RF, "forward", 21
    MN = "MN", "M + MG, or MB + MG (average=weighted)", Axes.RF, "forward", 22
    MO = "MO", "MN as it is stored", Axes.RF, "forward", 23
    VB = "VB", "V B2", Axes.RF, "forward", 24
    VBO = "VBO", "VB as it is stored in between", Axes.RF, "forward", 25
    GS = "GS", "G K2, or G G (square=first)", Axes.RF, "forward", 26
    VG = "VG", "GS G, or GS K2 (square=first)", Axes.RF, "forward", 27
    VN = "VN", "VBO + VG", Axes.RF, "forward", 28
    VO = "VO", "VN as it is stored", Axes.RF, "forward", 29
    MC = "MC", "MO / C1, or MO R1 (correction=averages)", Axes.RF, "forward", 30
    MCO = "MCO", "MC as it is stored in between", Axes.RF, "forward", 31
    VC = "VC", "VO / C2, or VO R2 (correction=averages)", Axes.RF, "forward", 32
    VCO = "VCO", "VC as it is stored in between", Axes.RF, "forward", 33
    SD = "SD", "sqrt(VO), or sqrt(VCO)", Axes.RF, "forward", 34
    SC = "SC", "SD / KR, or SD KR (reciprocal)", Axes.RF, "forward", 35
    SCO = "SCO", "SC as it is stored in between", Axes.RF, "forward", 36
    DN = "DN", "SCO + KE, or SD + KE (correction=averages)", Axes.RF, "forward", 37
    DNO = "DNO", "DN as it is stored in between", Axes.RF, "forward", 38
    UM = "UM", "-KS MO (update=product-first)", Axes.RF, "forward", 39
    UQ = "UQ", "MO or MCO / DNO, or UM / DNO (update=product-first)", Axes.RF, "forward", 40
    UD = "UD", "UQ + PW (decay=update)", Axes.RF, "forward", 41
    UP = "UP", "-KS UQ, or -KS UD (decay=update)", Axes.RF, "forward", 42
    PN = "PN", "PDO + UP, or PDO + UQ (update=product-first)", Axes.RF, "forward", 43
    PO = "PO", "PN as it is stored", Axes.RF, "forward", 44
    COPY = "COPY", "PO as the model reads it", Axes.RF, "forward", 45


class Average(StrEnum):
    """How the average of gradients is moved."""

    LERP = "lerp"
    """M + (1 - beta1) (G - M)."""
    WEIGHTED = "weighted"
    """beta1 M + (1 - beta1) G."""


class Square(StrEnum):
    """Which of (1 - beta2), G and G are multiplied first."""

    FACTOR = "factor"
    """(1 - beta2) G, then G."""
    FIRST = "first"
    """G G, then 1 - beta2."""


class Correction(StrEnum):
    """Where 1 - beta1^t and 1 - beta2^t stand."""

    STEP = "step"
    """In the step size and behind the root, as in torch."""
    AVERAGES = "averages"
    """Under both averages, as in the paper."""


class Decay(StrEnum):
    """How the weight decay is applied."""

    FACTOR = "factor"
    """P (1 - lr weight_decay), before the update."""
    SUBTRACTED = "subtracted"
    """P - lr weight_decay P, before the update."""
    UPDATE = "update"
    """weight_decay P is added to the update before lr multiplies it."""


class Update(StrEnum):
    """Which of the step size, M and the root are combined first."""

    PRODUCT = "product-first"
    """(-lr / (1 - beta1^t) M) / DN."""
    QUOTIENT = "quotient-first"
    """-lr / (1 - beta1^t) (M / DN)."""


def _no_product(plan: Any) -> str:
    is_apart = plan.correction is Correction.AVERAGES or plan.decay is Decay.UPDATE
    is_product = plan.update is Update.PRODUCT and is_apart
    return "needs update=quotient-first" if is_product else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(BasePlan):
    """The arithmetic of AdamW."""

    SITES: ClassVar = Site
    BLOCK_AXIS: ClassVar = dict.fromkeys((Site.M, Site.V, Site.MO, Site.VO), 1)

    average: Average = choice(
        Average.LERP,
        number=0,
        called="average",
        doc="How the average of gradients is moved, one of `Average`: lerp (default) or weighted.",
        moves=Moves(forward=1),
    )
    square: Square = choice(
        Square.FACTOR,
        number=1,
        called="square",
        doc="Which of (1 - beta2), G and G are multiplied first, one of `Square`: factor (default)"
        " or first (G G).",
        moves=Moves(forward=2),
    )
    update: Update = choice(
        Update.QUOTIENT,
        number=2,
        called="update",
        doc="Whether the step size multiplies M / DN (quotient-first, default) or M"
        " (product-first).",
        refused=_no_product,
        moves=Moves(forward=3),
    )
    decay: Decay = choice(
        Decay.FACTOR,
        number=3,
        called="decay",
        doc="How the weight decay is applied, one of `Decay`: factor (default), subtracted or"
        " update.",
        refused=_no_product,
        moves=Moves(forward=4),
    )
    correction: Correction = choice(
        Correction.STEP,
        number=4,
        called="correction",
        doc="Where the corrections of the averages stand, one of `Correction`: step (default) or"
        " averages.",
        refused=_no_product,
        moves=Moves(forward=5),
    )
    reciprocal: bool = choice(
        False,
        number=5,
        doc="True multiplies by 1 / sqrt(1 - beta2^t), or by 1 / (1 - beta^t), in place of a"
        " division. Default False.",
        source="torch's division by a number on a GPU, XLA's of optax",
        moves=Moves(forward=6),
    )
    stored: bool = choice(
        True,
        number=6,
        doc="True (default) computes the update from the averages as they are stored; False from"
        " those in registers, MN and VN.",
        source="fused kernels",
        moves=Moves(forward=7),
    )
    narrow_settings: bool = choice(
        False,
        number=7,
        doc="True rounds lr, weight_decay and the betas to binary32 before other numbers are made"
        " of them, such as 1 - beta1. Default False: these are made in binary64.",
        source="torch's fused kernel on a GPU",
        moves=Moves(forward=8),
    )
    narrow_powers: bool = choice(
        False,
        number=8,
        doc="True computes beta^t and 1 - beta^t in binary32, of a beta rounded to it. Default"
        " False: in binary64.",
        source="optax, and torch's fused kernel on a GPU",
        moves=Moves(forward=9),
    )


def forward(
    at: Events[Plan, Rows],
    settings: Mapping[str, Any],
    parameter: Array,
    gradient: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
) -> tuple[Array, ...]:
    """Return (parameter, exp_avg, exp_avg_sq, copy), new, for four arrays (R, F).

    settings: lr, beta1, beta2, eps, weight_decay, and step, the number of this step from 1 on, from
        which random bits of stochastic rounding depend.
    """
    plan, ops, xp = at.plan, at.ops, at.ops.xp
    at = replace(at, plan=of_step(plan, settings["step"]))
    kind = np.float32 if plan.narrow_settings else np.float64
    lr, decay, b1, b2 = (float(kind(settings[n])) for n in NAMES)
    kind = np.float32 if plan.narrow_powers else np.float64
    c1, c2 = (float(1.0 - kind(float(kind(b)) ** settings["step"])) for b in (b1, b2))

    def number(site: Site, value: float) -> Array:
        return at(site, ops.hidden(xp.full((1,), value)))

    def times(site: Site, x: Array, k: Array) -> Array:
        return at(site, ops.multiply(x, xp.broadcast_to(k, x.shape)))

    def over(site: Site, x: Array, k: Array) -> Array:
        return at(site, ops.divide(x, xp.broadcast_to(k, x.shape)))

    def corrected(site: Site, x: Array, k: Array, inverse: Site) -> Array:
        if plan.reciprocal:
            return times(site, x, at(inverse, ops.divide(xp.ones((1,)), k)))
        return over(site, x, k)

    def sum_of(site: Site, a: Array, b: Array) -> Array:
        return at(site, sum_to_round(ops, at.plan[site].format.precision, a, b))

    p, g = at(Site.P, parameter), at(Site.G, gradient)
    m, v = at(Site.M, exp_avg), at(Site.V, exp_avg_sq)

    pd, pw = p, None
    if decay and plan.decay is Decay.FACTOR:
        pd = at(Site.PDO, times(Site.PD, p, number(Site.KW, 1.0 - lr * decay)))
    elif decay and plan.decay is Decay.SUBTRACTED:
        pw = times(Site.PW, p, number(Site.KW, lr * decay))
        pd, pw = at(Site.PDO, sum_of(Site.PD, p, -pw)), None
    elif decay:
        pw = times(Site.PW, p, number(Site.KW, decay))

    k1, k2 = number(Site.K1, 1.0 - b1), number(Site.K2, 1.0 - b2)
    if plan.average is Average.WEIGHTED:
        mb = times(Site.MB, m, number(Site.B1, b1))
        mn = sum_of(Site.MN, mb, times(Site.MG, g, k1))
    elif b1 > 0.5:
        mn = sum_of(Site.MN, m, times(Site.MG, sum_of(Site.MD, g, -m), k1))
    else:
        mn = sum_of(Site.MN, g, times(Site.MG, sum_of(Site.MD, g, -m), k1 - 1.0))
    mo = at(Site.MO, mn)

    vb = at(Site.VBO, times(Site.VB, v, number(Site.B2, b2)))
    if plan.square is Square.FACTOR:
        vg = at(Site.VG, ops.multiply(times(Site.GS, g, k2), g))
    else:
        vg = times(Site.VG, at(Site.GS, ops.multiply(g, g)), k2)
    vn = sum_of(Site.VN, vb, vg)
    vo = at(Site.VO, vn)
    m, v = (mo, vo) if plan.stored else (mn, vn)

    size = lr
    if plan.correction is Correction.AVERAGES:
        m = at(Site.MCO, corrected(Site.MC, m, number(Site.C1, c1), Site.R1))
        v = at(Site.VCO, corrected(Site.VC, v, number(Site.C2, c2), Site.R2))
        sc = at(Site.SD, xp.sqrt(v))
    else:
        size, sd = lr / c1, at(Site.SD, xp.sqrt(v))
        if plan.reciprocal:
            sc = times(Site.SC, sd, number(Site.KR, 1.0 / c2**0.5))
        else:
            sc = over(Site.SC, sd, number(Site.KR, c2**0.5))
        sc = at(Site.SCO, sc)
    eps = xp.broadcast_to(number(Site.KE, settings["eps"]), sc.shape)
    dn = at(Site.DNO, sum_of(Site.DN, sc, eps))

    ks = -number(Site.KS, size)
    if plan.update is Update.PRODUCT:
        up = at(Site.UQ, ops.divide(times(Site.UM, m, ks), dn))
    else:
        up = at(Site.UQ, ops.divide(m, dn))
        up = times(Site.UP, up if pw is None else sum_of(Site.UD, up, pw), ks)
    po = at(Site.PO, sum_of(Site.PN, pd, up))
    return po, mo, vo, at(Site.COPY, po)


def of_step(plan: Plan, step: int) -> Plan:
    """Return the plan whose random bits are those of a step, from 1 on.

    Raises:
        ValueError: The step is no whole number from 1 on.
    """
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        raise ValueError(f"step={step!r}: give the number of the step, 1 or more")

    def own(r: Rounding) -> Rounding:
        if r.mode is not RoundingMode.STOCHASTIC:
            return r
        return replace(r, seed=(r.seed ^ (step * STEP)) % 2**32)

    return replace(plan, roundings=tuple(map(own, plan.roundings)))


NAMES = ("lr", "weight_decay", "beta1", "beta2")
STORED = (Site.P, Site.G, Site.M, Site.V, Site.MO, Site.VO, Site.PO, Site.COPY)
BETWEEN = (Site.PDO, Site.VBO, Site.SD, Site.SCO, Site.DNO)  # stored by a program of operations


def _fused(plan: Plan, *products: Site) -> Plan:
    """Return a plan in which these products are fused into the addition that reads them."""
    return plan.rounded(dict.fromkeys(products, BINARY64), plan.name)


def torch_cpu() -> Plan:
    """Return torch.optim.AdamW on a CPU, tensor by tensor (foreach=False, torch's choice on a CPU):
    operations of the type of the parameter, whose eps has this type too, so that 1e-8 is 0 in FP16
    (torch/optim/adam.py, _single_tensor_adam; torch 2.13).

    Equal in every bit in BF16 and FP16. In FP32 so are the averages, and the parameter where
    torch's square root, which is not correctly rounded, is the correct one: 99.9 % of the
    parameters and more (tests/operations/test_adamw.py).
    """
    plan = _fused(in_bf16(Plan, "torch-cpu", *STORED, *BETWEEN, Site.KE), Site.MG, Site.VG)
    return replace(plan, update=Update.PRODUCT)


def torch_cpu_foreach() -> Plan:
    """Return torch.optim.AdamW on a CPU with foreach=True: as `torch_cpu`, but the numbers that
    multiply a list of tensors in place, 1 - lr weight_decay and beta2, have the type of the
    parameter, in BF16 for example 0.949 in place of 0.95 (torch/optim/adam.py, _multi_tensor_adam;
    torch 2.13).

    Equal in every bit in BF16 and FP16, and in FP32 as `torch_cpu` is
    (tests/operations/test_adamw.py).
    """
    plan = torch_cpu().rounded(dict.fromkeys((Site.KW, Site.B2), BF16))
    return replace(plan, name="torch-cpu-foreach")


def torch_cpu_fused() -> Plan:
    """Return torch.optim.AdamW on a CPU with fused=True: binary32 inside, from the averages in
    registers (aten/src/ATen/native/cpu/FusedAdamKernel.cpp; torch 2.13).

    Equal in every bit in BF16, FP16 and FP32 (tests/operations/test_adamw.py).
    """
    plan = _fused(in_bf16(Plan, "torch-cpu-fused", *STORED), Site.MG, Site.VG)
    return replace(plan, update=Update.PRODUCT, stored=False)


def torch_cuda() -> Plan:
    """Return torch.optim.AdamW on a GPU, tensor by tensor (foreach=False): operations of the type
    of the parameter, and a product with 1 / sqrt(1 - beta2^t) in place of a division (torch 2.11).

    Equal in every bit in BF16, FP16 and FP32, in five steps on an H200
    (tests/operations/test_gradients_on_a_gpu.py).
    """
    plan = _fused(in_bf16(Plan, "torch-cuda", *STORED, *BETWEEN), Site.MG, Site.VG, Site.UP)
    return replace(plan, square=Square.FIRST, reciprocal=True)


def torch_cuda_foreach() -> Plan:
    """Return torch.optim.AdamW on a GPU with foreach=True, torch's choice there: as `torch_cuda`,
    but with a division (aten/src/ATen/native/cuda/ForeachFunctors.cuh; torch 2.11).

    Equal in every bit in BF16, FP16 and FP32, in five steps on an H200
    (tests/operations/test_gradients_on_a_gpu.py).
    """
    return replace(torch_cuda(), name="torch-cuda-foreach", reciprocal=False)


def torch_cuda_fused() -> Plan:
    """Return torch.optim.AdamW on a GPU with fused=True: binary32 inside, from the averages in
    registers and from settings that are rounded to binary32
    (aten/src/ATen/native/cuda/fused_adam_utils.cuh; torch 2.11).

    Equal in every bit in BF16, FP16 and FP32, in five steps on an H200
    (tests/operations/test_gradients_on_a_gpu.py). beta^t is correctly rounded here, which CUDA's
    powf may not be for other steps.
    """
    plan = in_bf16(Plan, "torch-cuda-fused", *STORED)
    plan = _fused(plan, Site.MB, Site.VB, Site.VBO, Site.PW)
    return replace(
        plan,
        average=Average.WEIGHTED,
        square=Square.FIRST,
        update=Update.PRODUCT,
        decay=Decay.SUBTRACTED,
        stored=False,
        narrow_settings=True,
        narrow_powers=True,
    )


def optax_adamw() -> Plan:
    """Return optax.adamw and apply_updates, operation by operation in the type of the parameter
    (optax/_src/alias.py, adamw; optax 0.2.8 with jax 0.10 on a CPU).

    Equal in every bit in BF16, and in FP32 outside jax.jit, which fuses products into additions
    there (tests/operations/test_adamw.py). In FP16 the averages are equal, and 93 % of
    the parameters or more.
    """
    plan = in_bf16(Plan, "optax-adamw", *(set(Site) - {Site.R1, Site.R2, Site.MC, Site.VC}))
    return replace(
        plan,
        reciprocal=True,
        average=Average.WEIGHTED,
        square=Square.FIRST,
        correction=Correction.AVERAGES,
        decay=Decay.UPDATE,
        narrow_powers=True,
    )


ADAMW = Operation(
    name="adamw",
    number=63,
    plan=Plan,
    inputs=(
        Value("parameter", Site.P),
        Value("gradient", Site.G),
        Value("exp_avg", Site.M),
        Value("exp_avg_sq", Site.V),
    ),
    outputs=(
        Value("parameter", Site.PO),
        Value("exp_avg", Site.MO),
        Value("exp_avg_sq", Site.VO),
        Value("copy", Site.COPY),
    ),
    forward=forward,
    settings={
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.01,
        "step": 1,
    },
    published=published(
        Plan,
        torch_cpu,
        torch_cpu_foreach,
        torch_cpu_fused,
        torch_cuda,
        torch_cuda_foreach,
        torch_cuda_fused,
        optax_adamw,
    ),
)
