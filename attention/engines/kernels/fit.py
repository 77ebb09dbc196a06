"""The checks of what the fused kernels can run.

A call that they cannot run is refused with a message, and never runs silently on another engine.
"""

from typing import Any

import jax
import numpy as np

from roundscope.attention.errors import NotFused
from roundscope.attention.injection import Injection
from roundscope.attention.plans.choices import QueryOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.sites import FACTORS, Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import Rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.injection import AddUlps, FlipBit, Noise, SetTo

# formats of the factors of sums on tensor cores; a fused kernel adds sums in FP8 in pieces, which
# no accumulator describes
READ = ("bf16", "fp16", "tf32")
FUSED = (Site.S, Site.ROWSUM, Site.PV, Site.S_B, Site.DV, Site.DP, Site.DQ, Site.DK)
# the most scores of a tile: with 2^15 an H200 has too little shared memory for some kernels, and
# with 2^16 too few registers
SCORES = 2**14
# choice of a plan -> the values that a fused kernel has; those of which it has several come first
RUNS = {name: own.kernels for name, own in CHOICES.items() if own.kernels is not None}
RUNS = dict(sorted(RUNS.items(), key=lambda item: (len(item[1]) == 1, len(item[1]))))


def check(setup: Setup, sizes: tuple[int, ...], mask: Any, traced: bool) -> None:
    """Raise ValueError for a call that the kernels cannot run; the message says what can.

    sizes: how many features q and v have; traced: whether the call is inside jit or grad.
    """
    if setup.record is not None and setup.record.steps:
        raise NotFused("record: the fused kernel keeps no steps")
    if setup.record is not None and setup.record.events and setup.every > 1:
        raise NotFused(
            f"record: events are whole, and with every={setup.every} the fused kernel has those of"
            f" a sample"
        )
    if setup.record is not None and setup.plan.is_of_kernel:
        raise NotFused(
            f"record: the fused kernel has no traces of {setup.plan.name}, a plan with the events"
            f" of a real kernel"
        )
    if mask is not None and setup.record is not None:
        raise NotFused("record: the fused kernel has no traces of calls with a mask")
    if setup.is_causal and setup.shift:
        raise NotFused(
            f"alignment='bottom-right': with {setup.queries} queries and {setup.keys} keys, the"
            f" fused kernel counts both from the first"
        )
    check_plan(setup.plan)
    for injection in setup.inject:
        _check_injection(setup.plan, injection)
    if traced and jax.default_backend() != "gpu" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "engine=pallas: interpreted inside jit or grad it needs 64-bit types; call it with"
            " jax.enable_x64(True)"
        )
    if setup.block_q * setup.block_k > SCORES and jax.default_backend() == "gpu":
        raise NotFused(
            f"block_q, block_k: {setup.block_q} x {setup.block_k}, a GPU has no room for tiles of"
            f" over {SCORES} scores"
        )
    names = "block_q", "block_k", "features of q and k", "features of v"
    for name, size in zip(names, (setup.block_q, setup.block_k, *sizes), strict=True):
        if size < 16 or not is_power_of_two(size):
            raise NotFused(f"{name}: {size}, a kernel's tiles are powers of two from 16 on")


def check_plan(plan: Plan) -> None:
    """Raise ValueError for a plan that the kernels cannot run; the message says what can."""
    if plan.normalise_first:
        raise NotFused(
            f"plan={plan.name}: softmax before P V needs whole rows, which a fused kernel does not"
            f" have"
        )
    for name, kept in RUNS.items():
        if (own := getattr(plan, name)) not in kept:
            told = f"the fused kernel has {name} {' or '.join(str(x) for x in kept)}, not {own}"
            raise NotFused(f"plan={plan.name}: {told}")
    if plan.query_order is QueryOrder.DESCENDING and plan.accumulator(Site.DK).alignment is None:
        raise NotFused(
            f"plan={plan.name}: sums of multiply-adds go up through the queries, so query_order is"
            f" ascending"
        )
    for site, block in plan.blocks:
        if site.axes is Axes.TS:
            raise NotFused(
                f"plan={plan.name}: {site} in blocks of {block}, which the fused kernel does not"
                f" make"
            )
    for site in FUSED:
        acc, first = plan.accumulator(site), plan.first_term(site)
        if acc.alignment is not None and first is not None and not plan[first].format.fits_binary32:
            raise NotFused(
                f"accumulator of {site}: its first term, {first} in {plan[first]}, is no binary32"
                f" number"
            )
        if problem := _unfit(acc, site):
            raise NotFused(f"accumulator of {site}: {problem}")


def _check_injection(plan: Plan, injection: Injection) -> None:
    """Raise ValueError for an injection whose error the kernels would lose.

    A tensor core reads numbers of its own types. An error that gives another number would be
    rounded away silently.
    """
    if injection.mask is not None:
        raise NotFused(
            f"inject at {injection.site}: the fused kernel has no masks of entries; use share=, or"
            f" rows and columns"
        )
    for site in FACTORS:
        is_read = injection.site in (*FACTORS[site], plan.first_term(site))
        if plan.accumulator(site).alignment is None or not is_read:
            continue
        if not _stays(injection.what, plan[injection.site]):
            raise NotFused(
                f"inject at {injection.site}: {injection.what} may leave the numbers that the"
                f" tensor cores of {site} read"
            )


def _stays(what: object, r: Rounding) -> bool:
    """Return whether a number of a format is still a number of this format with the error.

    The largest number may become infinite.
    """
    match what:
        case FlipBit():
            return True
        case AddUlps() | Noise():
            return abs(what.ulps) == 1.0  # two ulps may skip the end of a binade
        case SetTo():
            return bool(round_to(np.float64(what.value), r) == what.value)
    return False


def is_power_of_two(n: int) -> bool:
    """Return whether n, which is at least 1, is a power of two."""
    return n & (n - 1) == 0


def _unfit(acc: Accumulator, site: Site) -> str:
    """Return why the kernels do not have an accumulator, or an empty string if they have it."""
    by_halves = acc.order is Order.HALVES or (
        acc.order is Order.STRIDED and is_power_of_two(acc.chunk)
    )
    if acc.order is Order.STRIDED and site is Site.ROWSUM and not by_halves:
        return f"the fused kernel's lanes are a power of two, not {acc.chunk}"
    if acc.order is Order.ASCENDING or (by_halves and site is Site.ROWSUM):
        is_random = acc.step.mode == "stochastic"
        return "a stochastic step needs random bits for every addition" if is_random else ""
    if acc.alignment is None:
        rows = ", row sums also by halves or strided" if site is Site.ROWSUM else ""
        return f"the fused kernel adds in ascending order or on tensor cores{rows}, not {acc.order}"
    operand = acc.alignment.factors
    if operand not in READ:
        return f"sums of {operand} run in pieces in a fused kernel"
    if acc.step.format.name != "fp32":
        return f"the fused kernel's tensor cores add in fp32, not {acc.step.format.name}"
    if jax.default_backend() == "gpu" and acc != _device_core(operand, acc):
        return f"this device's tensor cores are not {acc}"
    return ""


def _device_core(operand: str, acc: Accumulator) -> Accumulator | None:
    """Return the accumulator of this GPU's tensor cores, or None if none was compared with them."""
    is_hopper = jax.devices()[0].compute_capability == "9.0"
    return Accumulator.tensor_core("hopper", operand, acc.step.format.name) if is_hopper else None
