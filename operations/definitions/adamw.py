"""One step of AdamW (Loshchilov and Hutter, arXiv 1711.05101): a parameter and its two averages.

The arithmetic of an implementation is a `Plan`; those of torch and optax are below.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.emu.backends.ops import Array
from roundscope.emu.roundings.modes import BF16, BINARY64, Rounding, RoundingMode
from roundscope.emu.roundings.random import STEP
from roundscope.emu.sums.odd import sum_to_round
from roundscope.events.hook import Events
from roundscope.events.place import Rows
from roundscope.operations.definitions.adamw_plan import (
    Average,
    Correction,
    Decay,
    Plan,
    Site,
    Square,
    Update,
)
from roundscope.operations.operation import Operation, Value, in_bf16, published


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
