"""The plans that `identify` tries, structures and changes of one event, and what each gives."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import ml_dtypes
import numpy as np

from roundscope.attention import Plan, Site, examine
from roundscope.attention.inputs.scales import OPERANDS, stored_operands
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import Descales, KeyOrder, Log2E
from roundscope.attention.plans.hopper import EIGHTS, HOPPER
from roundscope.attention.plans.record import CHOICES, STORED
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import FACTORS
from roundscope.attention.testing.calls import Inputs
from roundscope.emu.roundings.modes import (
    BF16,
    BINARY32,
    BINARY64,
    E4M3,
    FP16,
    Rounding,
    RoundingMode,
    rounding,
)
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.events.choice import Moves
from roundscope.events.plan import half

PRESETS = (
    "fa2-bf16@hopper",
    "qiu-yao@hopper",
    "baseline-bf16@hopper",
    "fp32",
    "fa2-bf16",
    "qiu-yao",
    "baseline-bf16",
    "aiter-ck",
    "aiter-asm",
)
KEY_TILES = (*range(16, 257, 16), 512)  # keys of a tile
USUAL_TILES = (32, 64, 128, 256, 512)  # those that are tried in every order of the keys
SUMS = {
    "tensor core": HOPPER,
    "tensor core, 8 at a time": EIGHTS,
    "fp32 ascending": Accumulator(),
    "exact": Accumulator(order=Order.EXACT),
    "chunks of 64": Accumulator(order=Order.CHUNKED, chunk=64),
    "chunks of 128": Accumulator(order=Order.CHUNKED, chunk=128),
}
ROW_SUMS = {
    "ascending": Accumulator(),
    "halves": Accumulator(order=Order.HALVES),
    "pairwise": Accumulator(order=Order.PAIRWISE),
    "warps": Accumulator(order=Order.WARPS),
    "octets2": Accumulator(order=Order.OCTETS, chunk=2),
    "octets8": Accumulator(order=Order.OCTETS, chunk=8),
    "strided32": Accumulator(order=Order.STRIDED, chunk=32),
}
ENOUGH = 64  # numbers of a result, of which fewer say nothing of the bits of its format
FORMATS = {"bf16": BF16, "fp16": FP16, "fp32": BINARY32, "fp64": BINARY64}
NARROW = {"bf16": BF16, "fp16": FP16}
SMALL = {  # choices that move last bits of FP32 alone
    *("exp", "log", "log2_e", "row_sum", "reciprocal", "fused_exponent", "registers"),
    *("scale_roots", "fused_without_mask", "unfused_if_cut"),
}
FORWARD = tuple(s for s in Site if s.stage == "forward" and s not in (Site.LSE, Site.LN))
BACKWARD = tuple(s for s in Site if s.stage == "backward")
OF_ROWS = (Site.LN, Site.LSE, Site.MS)  # events between the forward and the backward
MODES = (
    RoundingMode.TOWARD_ZERO,
    RoundingMode.AWAY_FROM_ZERO,
    RoundingMode.TIES_TO_AWAY,
    RoundingMode.TO_ODD,
)
ARITHMETIC = attrgetter(*(name for name in STORED if name != "name"))
"""Returns the fields of a plan but its name: two plans with equal ones give the same results."""
AGAIN = {
    Site.S: Site.S_B,
    Site.SCALED: Site.SCALED_B,
    Site.LS: Site.LS_B,
    Site.X: Site.X_B,
    Site.EXP: Site.EXP_B,
    Site.P: Site.P_B,
}
"""The events that the backward computes again."""


def _moves(turn: Callable[[Moves], int]) -> list[str]:
    """Return the choices that a search changes, in the order of their turns."""
    moved = {name: turn(own.moves) for name, own in CHOICES.items() if turn(own.moves)}
    return sorted(moved, key=lambda name: moved[name])


MOVES_FORWARD, MOVES_BACKWARD = _moves(lambda m: m.forward), _moves(lambda m: m.backward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan and its tiles.

    block_k  keys of a tile
    block_q  queries of a tile, in whose order the gradients of K and V are added up
    change   the words of the last change; empty for a structure
    scale_ulps  how many ulps of binary32 the scale is larger than that of the call
    """

    plan: Plan
    block_k: int
    block_q: int = 128
    change: str = ""
    scale_ulps: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        """What decides the results: everything but names."""
        return (ARITHMETIC(self.plan), self.block_q, self.block_k, self.scale_ulps)


def structures(width: int, keys: int, is_cut: bool) -> Iterator[Candidate]:
    """Yield every twin and preset on its own tiles, twins also with their words for this width.

    Those that are not fused get a whole row.

    is_cut: whether causality or a window hides keys from a query
    """
    for twin in TWINS.values():
        block_q, block_k = twin.tiles(width, is_cut)
        own = Candidate(plan=twin.plan, block_q=block_q, block_k=min(block_k, keys))
        yield own
        if twin.wide and width > 128:
            yield _changed(own, twin.wide, twin.plan.changed(twin.wide))
    for name in PRESETS:
        plan = Plan.preset(name)
        yield Candidate(plan=plan, block_k=keys if plan.normalise_first else min(128, keys))


def options_of(x: Inputs) -> dict[str, Any]:
    """Return the arguments of `emulated` behind the tensors of a call."""
    return x.options | {"scales": x.scales}


def stored(x: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return q, k and v as they were stored, before they were multiplied by the call's scales."""
    return stored_operands(x.q, x.k, x.v, x.scales or {})


def emulated(
    c: Candidate,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    do: np.ndarray | None = None,
    *,
    scales: Mapping[str, np.ndarray] | None = None,
    **options: Any,
) -> Any:
    """Return what `examine` returns for a candidate.

    scales: those of a call whose q, k and v are multiplied by them already, or None

    Raises ValueError for a plan that cannot run.
    """
    options["scale"] = scale_of(c, options["scale"])
    if scales is not None and c.plan.descales is Descales.PRODUCTS:
        q, k, v = stored_operands(q, k, v, scales)
    options["scales"] = scales_of(c, scales)
    return examine(
        q,
        k,
        v,
        do,
        plan=c.plan,
        block_q=c.block_q,
        block_k=c.block_k,
        engine="numpy",
        **{"record": None, **options},
    )


def scale_of(c: Candidate, scale: float) -> float:
    """Return the scale with which a candidate runs a call of that scale."""
    moved = np.float32(scale)
    for _ in range(abs(c.scale_ulps)):
        moved = np.nextafter(moved, np.float32(np.inf * c.scale_ulps))
    return float(moved) if c.scale_ulps else scale


def scales_of(
    c: Candidate, scales: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray] | None:
    """Return those scales of a call that a candidate is given beside q, k and v, or None.

    Operands of plans with descales=operands are multiplied by theirs already. Plans with
    log2_e=none have no offset, which scale_s is.
    """
    if scales is None:
        return None
    left = {"scale_s"} if c.plan.log2_e is Log2E.NONE else set()
    if c.plan.descales is Descales.OPERANDS:
        left |= {*OPERANDS}
    return {n: x for n, x in scales.items() if n not in left}


RESULTS = {
    "out": (Site.OUT,),
    "dq": (Site.DQ_OUT,),
    "dk": (Site.DKH, Site.DK_OUT),
    "dv": (Site.DVH, Site.DV_OUT),
}


def narrowest(*arrays: np.ndarray) -> Rounding:
    """Return the narrowest of E4M3, BF16, FP16 and FP32 that has every number of some arrays."""
    kinds = {"float8_e4m3fn": E4M3, "bfloat16": BF16, "float16": FP16}
    for name, own in kinds.items():
        kind = np.dtype(getattr(ml_dtypes, name, name))
        with np.errstate(over="ignore"):
            if all(
                np.array_equal(x.astype(kind).astype(np.float32), x, equal_nan=True) for x in arrays
            ):
                return own
    return BINARY32


def held(x: np.ndarray) -> Rounding:
    """Return the narrowest format that has every number of an array, also one of a few bits.

    Numbers of so few significant bits that no usual format has so few are those of `e8m<N>`.

    Example:
        >>> import numpy as np
        >>> held(np.linspace(1.0, 1.9375, 128, dtype=np.float32)).format.name
        'fp32'
        >>> held(np.repeat(np.float32([1.0, 1.25, 1.75, 3.5]), 32)).format.name
        'e8m2'
    """
    usual = narrowest(x)
    some = np.unique(np.abs(x[np.isfinite(x) & (x != 0.0)]).astype(np.float32))
    if some.size == 0 or x.size < ENOUGH:
        return usual
    bits = some.view(np.uint32) & np.uint32(0x7FFFFF)
    lowest = int(np.bitwise_or.reduce(bits) | np.uint32(1 << 23))
    precision = 24 - ((lowest & -lowest).bit_length() - 1)
    if precision >= usual.format.precision or some.min() < 2.0**-126:
        return usual
    return rounding(f"e8m{precision - 1}")


def cast_of(out: np.ndarray, exact: np.ndarray) -> Rounding:
    """Return the cast to a few bits that made an output, by the signs of its errors; else BF16.

    Args:
        out: the output.
        exact: the exact output.
    """
    own = held(out)
    if own.format.precision >= BF16.format.precision:
        return BF16
    fine = np.isfinite(exact) & np.isfinite(out) & (exact != 0.0)
    # other roundings are far below an ulp of the larger numbers alone
    fine &= np.abs(exact) >= np.sqrt(np.square(exact[fine]).mean() if fine.any() else 0.0)
    if not fine.any():
        return own
    size = np.abs(exact[fine])
    ulp = np.exp2(np.floor(np.log2(size)) + 1 - own.format.precision)
    off = (np.abs(out[fine]) - size) / ulp
    if abs(off.mean()) > 0.25:  # half an ulp on one side
        zero, away = RoundingMode.TOWARD_ZERO, RoundingMode.AWAY_FROM_ZERO
        return replace(own, mode=zero if off.mean() < 0.0 else away)
    # errors of up to half an ulp have a mean size of a quarter, those of to-odd half an ulp
    return own if np.abs(off).mean() < 0.375 else replace(own, mode=RoundingMode.TO_ODD)


def leaving(best: Candidate, results: Mapping[str, np.ndarray]) -> Candidate:
    """Return the candidate with its results rounded to the formats of these arrays, given by name.

    A result that the plan rounds to that format already keeps the plan's mode. In a plan that is
    not fused, P V is rounded to the format of the output if its own lacks numbers of that.
    """
    events = {
        site: own
        for name, own in ((name, held(x)) for name, x in results.items())
        for site in RESULTS[name]
        # gradients of heads that a plan keeps wider than those of the group stay so
        if (not best.plan.rounded_heads or best.plan[site] == best.plan[RESULTS[name][-1]])
        and best.plan[site].format != own.format
    }
    if (
        Site.OUT in events
        and best.plan.normalise_first
        and not best.plan[Site.PV].format.holds(events[Site.OUT].format)
    ):
        events[Site.PV] = events[Site.OUT]
    return replace(best, plan=best.plan.rounded(events))


def in_half(best: Candidate) -> Candidate:
    """Return the candidate with FP16 in place of BF16 everywhere, on tensor cores of FP16."""
    return replace(best, plan=half(best.plan))


def in_fp8(best: Candidate, keys: int, *, has_scales: bool = False) -> Iterator[Candidate]:
    """Yield the candidate with Q, K, V and P in E4M3 on tensor cores of E4M3, on some tiles.

    S is not rounded after its tensor core, and P is multiplied by 2^8 or not. In calls with scales
    these are in the products, for the operands would not be numbers of E4M3.
    """
    plan = best.plan.rounded(dict.fromkeys((Site.Q, Site.K, Site.V, Site.P), E4M3))
    for site in (Site.S, Site.PV):
        plan = plan.adding(site, Accumulator.tensor_core("hopper", "e4m3fn"))
    plan = replace(plan, name=best.plan.name)
    if has_scales:
        try:
            plan = replace(plan, descales=Descales.PRODUCTS)
        except ValueError:
            return  # such as a plan that divides P, and not the output that has the scale of V
    offsets = (0,) if plan.log2_e is Log2E.NONE else (0, 8)
    for offset in offsets:
        for size in (128, 256):
            change = f"E4M3, offset {offset}, key tiles of {size}"
            moved = replace(plan, offset=offset)
            yield replace(best, plan=moved, block_k=min(size, keys), change=change)


def tilings(best: Candidate, keys: int, *, usual: bool = False) -> Iterator[Candidate]:
    """Yield the same plan on other tiles of keys: any multiple of 16 up to 256, 512, whole rows.

    On the usual tiles it is tried in each order of the keys that it can have; if `usual`, on these
    alone, in its own order.
    """
    if best.plan.normalise_first:
        return
    orders = (KeyOrder.ASCENDING, KeyOrder.DESCENDING) if best.plan.split_tiles else tuple(KeyOrder)
    own = best.plan.key_order
    for order in (own,) if usual else (own, *(o for o in orders if o is not own)):
        sizes = KEY_TILES if order is own and not usual else USUAL_TILES
        for size in (*(n for n in sizes if n < keys), keys):
            plan = replace(best.plan, key_order=order)
            yield replace(
                best,
                plan=plan,
                block_q=rows_of(plan, size, best.block_q),
                block_k=size,
                change=f"key tiles of {size}, {order}",
            )


def on_seen_tiles(
    forms: Iterable[Candidate], seen: Sequence[tuple[int, KeyOrder | None]], keys: int
) -> Iterator[Candidate]:
    """Yield candidates on tiles that were seen: (keys of a tile, their order).

    An order of None is the plan's own.
    """
    for size, order in seen:
        for c in forms:
            if not c.plan.normalise_first:
                plan = replace(c.plan, key_order=order or c.plan.key_order)
                yield replace(
                    c,
                    plan=plan,
                    block_q=rows_of(plan, size, c.block_q),
                    block_k=min(size, keys),
                    change=f"key tiles of {size}, {plan.key_order}",
                )


def with_sums(c: Candidate, sums: Mapping[Site, Accumulator]) -> Candidate:
    """Return the candidate with sums in the orders of these, and steps and tensor cores its own."""
    plan = c.plan
    for site, seen in sums.items():
        own = plan.accumulator(site)
        if seen.alignment is not None:
            plan = plan.adding(
                site, seen if own.alignment is None else replace(own, chunk=seen.chunk)
            )
        elif own.alignment is not None or seen.order is Order.EXACT:
            plan = plan.adding(site, seen)
        else:
            plan = plan.adding(site, replace(seen, step=own.step))
    return _changed(c, "sums as probes saw them", _readable(plan))


def rows_of(plan: Plan, size: int, usual: int) -> int:
    """Return the queries of a tile: as many as keys in the released code, which has square ones."""
    return size if plan.kept_state else usual


def forward_changes(best: Candidate, only: Collection[str] = ()) -> Iterator[Candidate]:
    """Yield the candidate with each change of one event, sum or choice of the forward.

    only: the words of the changes that are wanted; empty for all
    """
    names = [n for n in MOVES_FORWARD if not only or any(w.startswith(f"{n}=") for w in only)]
    fields = [c for name in names for c in _fields(best, name)]
    every: tuple[Iterable[Candidate], ...] = (
        _sums(best),
        fields,
        _formats(best, FORWARD, only=only),
        _casts(best),
        _modes(best, FORWARD, only),
        _e4m3(best),
        narrow_sums(best, best.block_k),
        _scales(best),
        _unlocked(best, fields, FORWARD),
    )
    for some in every:
        yield from (c for c in some if not only or c.change in only)


def large_changes(best: Candidate, keys: int) -> Iterator[Iterator[Candidate]]:
    """Yield the changes that move most numbers of an output of few bits, likely ones first.

    They are those of narrow casts, and the choices of which numbers are cast. All others move the
    last bits of FP32, so that a plan without one of them still has most numbers of such an output.
    """
    yield _casts(best)
    yield _modes(best, FORWARD)
    yield _e4m3(best)
    yield narrow_sums(best, keys)
    yield _formats(best, FORWARD, NARROW)
    yield (c for name in MOVES_FORWARD if name not in SMALL for c in _fields(best, name))
    fields = (c for name in MOVES_FORWARD for c in _fields(best, name))
    yield _unlocked(best, list(fields), FORWARD, NARROW)


def narrow_sums(best: Candidate, keys: int) -> Iterator[Candidate]:
    """Yield the candidate with EXP and its row sum in the format of the output.

    A kernel by hand that stays in the type of its operands does both, and neither helps alone: the
    sum is rounded once, or after each key. Such a kernel has whole rows, or an L that is narrow
    too; without tiles X may be narrow as well, as in `exp(s - m)` of tensors.
    """
    r = best.plan[Site.OUT]
    is_whole = best.plan.normalise_first
    if r.format not in (BF16.format, FP16.format) or not has(best.plan, Site.EXP):
        return
    running = replace(ROW_SUMS["ascending"], step=r)
    more = ((Site.X,), ()) if is_whole else ((), (Site.L,))
    for narrow in more:
        for change, accumulator in (("ROWSUM", None), ("ROWSUM.sum: ascending", running)):
            size = best.block_k if Site.L in narrow else keys
            events = (Site.EXP, *narrow, *((Site.ROWSUM,) if accumulator is None else ()))
            plan = best.plan.rounded(dict.fromkeys(events, r))
            if accumulator is not None:
                plan = plan.adding(Site.ROWSUM, accumulator)
            own = replace(best, block_k=size, block_q=rows_of(plan, size, best.block_q))
            words = " ".join((*(str(s) for s in (Site.EXP, *narrow)), change))
            yield _changed(own, f"{words} in {r}", _readable(plan))


def _sums(best: Candidate) -> Iterator[Candidate]:
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S, Site.PV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"ROWSUM.sum: {name}", plan.adding(Site.ROWSUM, accumulator))


def _casts(best: Candidate) -> Iterator[Candidate]:
    """Yield the candidate with one mode at every cast, as a build has one for all of them."""
    for mode in (RoundingMode.TIES_TO_EVEN, *MODES):
        yield _changed(best, f"casts={mode}", best.plan.changed(f"casts={mode}"))


def _e4m3(best: Candidate) -> Iterator[Candidate]:
    for site in (Site.P, Site.Q, Site.K, Site.V):
        yield _changed(best, f"{site}=e4m3fn", _readable(best.plan.at(site, E4M3)))


def _scales(best: Candidate) -> Iterator[Candidate]:
    for ulps in (1, -1):
        change = f"the scale {abs(ulps)} ulp {'larger' if ulps > 0 else 'smaller'}"
        yield replace(best, scale_ulps=ulps, change=change)


def backward_changes(best: Candidate) -> Iterator[Candidate]:
    """Yield the candidate with each change of one event, sum or choice of the backward."""
    plan = best.plan
    for name, accumulator in SUMS.items():
        for site in (Site.S_B, Site.DP, Site.DQ, Site.DK, Site.DV):
            yield _changed(best, f"{site}.sum: {name}", plan.adding(site, accumulator))
        every = plan
        for site in (Site.DQ, Site.DK, Site.DV):
            every = every.adding(site, accumulator)
        yield _changed(best, f"DQ.sum DK.sum DV.sum: {name}", every)
    for name, accumulator in ROW_SUMS.items():
        yield _changed(best, f"DELTA.sum: {name}", plan.adding(Site.DELTA, accumulator))
    fields = [c for name in MOVES_BACKWARD for c in _fields(best, name)]
    sites = (*BACKWARD, *OF_ROWS)
    unlocked = list(_unlocked(best, fields, sites))
    yield from fields
    yield from _formats(best, sites)
    yield from _casts(best)
    yield from _modes(best, sites)
    yield from unlocked


def again(best: Candidate) -> Iterator[Candidate]:
    """Yield the candidate whose backward computes events again as its forward did."""
    plan = best.plan
    pairs = {
        b: plan[f] for f, b in AGAIN.items() if plan.block(f) is None and plan.block(b) is None
    }
    yield _changed(best, "events as in the forward", plan.rounded(pairs))
    for site, r in pairs.items():
        if plan[site] != r:
            yield _changed(best, f"{site}={r}", plan.rounded({site: r}))


def _unlocked(
    best: Candidate,
    fields: list[Candidate],
    sites: tuple[Site, ...],
    formats: Mapping[str, Rounding] = FORMATS,
) -> Iterator[Candidate]:
    """Yield each change of a field together with each format of an event that it unlocks."""
    for c in fields:
        for site in sites:
            if has(best.plan, site) or not has(c.plan, site):
                continue
            for name, r in formats.items():
                if c.plan.event(site) != r:
                    yield replace(
                        c,
                        plan=_readable(_rounded(c.plan, site, r)),
                        change=f"{c.change} {site}={name}",
                    )


def _formats(
    best: Candidate,
    sites: tuple[Site, ...],
    formats: Mapping[str, Rounding] = FORMATS,
    only: Collection[str] = (),
) -> Iterator[Candidate]:
    """Yield the candidate with each event in other formats; narrow ones in FP32 too."""
    for site in sites:
        if (only and not any(w.startswith(f"{site}=") for w in only)) or not has(best.plan, site):
            continue
        is_narrow = best.plan[site].format.precision < BINARY32.format.precision
        for name, r in (FORMATS if is_narrow else formats).items():
            yield _changed(best, f"{site}={name}", _readable(_rounded(best.plan, site, r)))


def _modes(
    best: Candidate, sites: tuple[Site, ...], only: Collection[str] = ()
) -> Iterator[Candidate]:
    """Yield the candidate with the casts to narrow formats in other modes than to nearest."""
    for site in sites:
        r = best.plan[site]
        if r.format.precision >= 24 or not has(best.plan, site):
            continue
        if only and not any(w.startswith(f"{site}=") for w in only):
            continue
        for mode in MODES:
            changed = _rounded(best.plan, site, replace(r, mode=mode))
            yield _changed(best, f"{site}={r.format.name}:{mode}", changed)


def has(plan: Plan, site: Site) -> bool:
    """Return whether a plan reaches an event."""
    return absent(plan, site) is None


def _rounded(plan: Plan, site: Site, r: Rounding) -> Plan:
    return plan if plan.block(site) is not None else plan.rounded({site: r})


def _readable(plan: Plan) -> Plan:
    """Return the plan with tensor cores that can read the factors of their products.

    A product whose factors its tensor core cannot read gets a tensor core of TF32 instead.
    """
    for site, factors in FACTORS.items():
        kept = plan.accumulator(site).alignment
        if kept is not None and not all(kept.operand.holds(plan[f].format) for f in factors):
            plan = plan.adding(site, Accumulator.tensor_core("hopper", "tf32"))
    return plan


def _fields(best: Candidate, name: str) -> Iterator[Candidate]:
    """Yield the candidate with each value of a choice that its plan can have."""
    for value in CHOICES[name].moves.values or CHOICES[name].values:
        try:
            plan = replace(best.plan, **{name: value})
            yield _changed(best, f"{name}={str(value).lower()}", plan)
        except ValueError:
            continue  # the plan has no such form


def _changed(best: Candidate, change: str, plan: Plan) -> Candidate:
    return replace(best, plan=replace(plan, name=best.plan.name), change=change)
