"""Which events a plan and a call have, and the checks of injections and records against them.

An injection at an event that never happens would seem to have no effect, and a record of such an
event would be empty. Both are refused with a message that says why the event does not happen and
what to use instead.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from roundscope.attention.injection import Injection
from roundscope.attention.plans.choices import (
    BackwardExponent,
    CappedBy,
    DeltaFrom,
    GradientsApart,
    Log2E,
    Logarithm,
    RowSum,
    ScaleOfGradient,
    ScoreGradient,
    Sinks,
)
from roundscope.attention.plans.forward import KEPT_LANES
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import (
    BACKWARD,
    KEY_SITES,
    OF_BIAS,
    OF_CAP_APART,
    OF_CHAIN,
    OF_KERNELS,
    OF_NORMALIZED_LAST,
    OF_QUOTIENT,
    OF_SOFTCAP,
    ONCE,
    QUERY_FEATURES,
    RESCALES,
    Axes,
    Site,
)
from roundscope.emu.sums.accumulator import Order
from roundscope.events.injection import FlipBit


class Sizes(NamedTuple):
    """The sizes of a call.

    Args:
        batch: Entries of the batch axis.
        queries, keys: Rows of q, and rows of k and v.
        heads, key_heads: Heads of q, and heads of k and v.
        features, value_features: Features of q and k, and features of v.
        block_q, block_k: Rows of a query tile and of a key tile.
    """

    batch: int
    queries: int
    keys: int
    heads: int
    key_heads: int
    features: int
    value_features: int
    block_q: int
    block_k: int


def absent(plan: Plan, site: Site) -> tuple[str, str] | None:
    """Return why a plan never reaches a site and which sites to use instead, or None if it does."""
    if site is Site.PV and plan.pv_into_o:
        return f"{plan.name} accumulates P V into O, so PV never rounds alone", "O"
    if (
        plan.normalise_first
        and site in RESCALES
        and site is not Site.DX
        and plan.sinks not in OF_START
    ):
        return f"{plan.name} normalises before P V and never rescales", "P, PV or OUT"
    if site in OF_BIAS and not plan.biased:
        return f"{plan.name} has no bias; in words, biased=true comes before {site}", site.instead
    if site.instead and not _steps(plan)[site]:
        return (
            f"{plan.name} has no step {site} ({site.formula}), which only some kernels have",
            site.instead,
        )
    if site in _without(plan):
        return f"{plan.name} has no step {site} of its own", _without(plan)[site]
    return None


OF_START = (Sinks.FIRST, Sinks.KEY)  # the choices of `Sinks` in which m begins at the sink
# events that happen once in every split of the keys
OF_SPLITS = (
    Site.LANES,
    Site.INV,
    Site.OI,
    Site.LN,
    Site.LSE,
    Site.SW,
    Site.SO,
)


# the plan that was asked about last, since all its sites are asked about, and its answer
_LAST: list[tuple[Plan | None, dict[Site, bool]]] = [(None, {})]


def _steps(plan: Plan) -> dict[Site, bool]:
    """Return what `_of_kernel` does, without computing it again for the plan asked about last."""
    last, found = _LAST[0]
    if last is not plan:
        found = _of_kernel(plan)
        _LAST[0] = (plan, found)
    return found


def _of_kernel(plan: Plan) -> dict[Site, bool]:
    """Return, for each event that only some kernels have, whether the plan has it."""
    is_state = plan.exponent_again is BackwardExponent.STATE
    again = (plan.exponent_again is BackwardExponent.FORWARD or is_state) and not plan.saved_p
    by_result = plan.gradient_scale is ScaleOfGradient.RESULT
    softmax, quotient = (
        plan.score_gradient is how for how in (ScoreGradient.SOFTMAX, ScoreGradient.QUOTIENT)
    )
    return {
        Site.LS: plan.log2_e is Log2E.SCORES,
        Site.CM: plan.log2_e is Log2E.MAXIMUM,
        Site.DX: plan.log2_e is Log2E.MAXIMUM,
        Site.MO: plan.offset > 0,
        Site.LANES: plan.row_sum in KEPT_LANES or plan.kept_state,
        Site.LN: (
            plan.log in (Logarithm.LG2, Logarithm.LG2_FACTOR, Logarithm.LG2_SUM)
            or plan.log2_e is Log2E.SCORES
            or plan.lse_base2
            or plan.kept_state
        ),
        Site.MS: plan.kept_state or is_state,
        Site.DOO: plan.delta_products and plan.delta_from in (DeltaFrom.OUT, DeltaFrom.WIDE_O),
        Site.LS_B: (
            plan.exponent_again is BackwardExponent.AFTER or (again and plan.log2_e is Log2E.SCORES)
        ),
        Site.LSE2: again and plan.log2_e is not Log2E.NONE and not plan.lse_base2,
        Site.EI: plan.registers and plan.normalise_first,
        Site.OI: plan.registers and not plan.normalise_first,
        Site.PDP: (
            quotient
            or (
                plan.registers
                and (softmax or plan.delta_from not in (DeltaFrom.OUT, DeltaFrom.WIDE_O))
            )
        ),
        Site.PD: plan.registers,
        Site.SDQ: plan.registers and by_result,
        Site.SDK: plan.registers and by_result and not plan.rounded_heads,
        Site.SDKH: plan.registers and by_result and plan.rounded_heads,
        Site.DKH: plan.rounded_heads,
        Site.DVH: plan.rounded_heads,
        Site.SDS: not by_result,
        Site.DMAX: plan.maximum_gradient,
        Site.DSM: plan.maximum_gradient,
        Site.QS: plan.scale_roots,
        Site.KS: plan.scale_roots,
        Site.KM: plan.smoothed_keys,
        Site.KC: plan.scaled_keys,
        **dict.fromkeys((Site.QB, Site.KB, Site.VB), plan.inputs_again),
        Site.DOV: plan.do_apart,
        **dict.fromkeys((Site.BETA, Site.OA, Site.OT), plan.flushed_tiles > 0),
        **dict.fromkeys(OF_NORMALIZED_LAST, plan.normalized_last),
        Site.SW: bool(plan.split_tiles),
        Site.SO: bool(plan.split_tiles),
        Site.DPQ: plan.dp_from_delta,
        Site.PDQ: plan.dp_from_delta and plan.registers,
        Site.SDSQ: plan.dp_from_delta and not by_result,
        Site.DSR: plan.ds_apart,
        Site.DSQ: plan.dp_from_delta or plan.ds_apart,
        Site.DQP: plan.gradients_apart is not GradientsApart.NONE,
        Site.DKP: plan.gradients_apart is GradientsApart.ALL,
        Site.DVP: plan.gradients_apart is GradientsApart.ALL,
        **dict.fromkeys(OF_QUOTIENT, quotient),
        **dict.fromkeys(OF_SOFTCAP, bool(plan.softcap)),
        **dict.fromkeys(OF_CHAIN, bool(plan.softcap) and plan.capped_by is CappedBy.CHAIN),
        **dict.fromkeys(OF_CAP_APART, bool(plan.softcap) and plan.cap_apart),
        **dict.fromkeys(OF_BIAS, plan.biased),
        **dict.fromkeys((Site.SINK, Site.PSINK, Site.DSINK), plan.sinks is not Sinks.NONE),
        **dict.fromkeys((Site.SX, Site.SE, Site.SL), plan.sinks is Sinks.LAST),
    }


def _without(plan: Plan) -> dict[Site, str]:
    """Return the events that a plan lacks since its kernel computes the step in another way.

    Each has the events to use instead.
    """
    instead = {}
    if plan.row_sum in (RowSum.LANES, RowSum.PAIRED_LANES, RowSum.EIGHTS):
        instead[Site.ROWSUM] = "L"
    if plan.exponent_again is BackwardExponent.AFTER:
        instead[Site.SCALED_B] = "X_B"
    if plan.scaled_keys:
        instead[Site.SCALED_B] = "KC or S_B"
    if plan.score_gradient is ScoreGradient.SOFTMAX:
        instead[Site.DPD] = "DS"
    if plan.saved_p:
        instead |= dict.fromkeys((Site.S_B, Site.SCALED_B, Site.X_B, Site.EXP_B), "S, X or EXP")
        instead |= dict.fromkeys((Site.SS_B, Site.CAP_B, Site.TANH_B), "SS, CAP or TANH")
        instead[Site.CT_B] = "CT"
        instead[Site.BIASED_B] = "BIASED"
    return instead


def occurs(plan: Plan, site: Site) -> None:
    """Raise ValueError if the plan never reaches the site."""
    if missing := absent(plan, site):
        raise ValueError("{}; use {}".format(*missing))


def check_injection(injection: Injection, plan: Plan) -> None:
    """Raise ValueError for an injection at an event, or of a bit, that the plan does not have.

    The bits are those of the event's format.
    """
    site, f = injection.site, plan[injection.site].format
    if missing := absent(plan, site):
        raise ValueError("site={}: {}; inject at {}".format(site, *missing))
    if isinstance(injection.what, FlipBit):
        if not injection.what.bit < f.bits:
            raise ValueError(
                f"bit={injection.what.bit}: a code of {f.name} at {site} has bits 0 to {f.bits - 1}"
            )
        if f.precision > 24:
            raise ValueError(
                f"FlipBit at {site}: {site} is {f.name}, the carrier, of which no bit is flipped;"
                " round the site first"
            )


def check_forward(inject: Iterable[Injection]) -> None:
    """Raise ValueError for an injection at an event of the backward, in a call that has none."""
    for site in (i.site for i in inject):
        if site in BACKWARD:
            raise ValueError(
                f"inject at {site}: this call runs no backward; call examine with do, or choose a"
                " forward site"
            )


def check_place(injection: Injection, sizes: Sizes, owner: str = "the call") -> None:
    """Raise ValueError for an injection that selects entries which the call does not have.

    Args:
        injection: The injection.
        sizes: The sizes of the call.
        owner: What has these sizes, for the message "SITE:selection=N: OWNER has ...".
    """
    for name, limit in limits(injection.site, sizes).items():
        where: range | tuple[int, ...] | None = getattr(injection, name)
        if where is not None and max(where) >= limit:
            raise ValueError(
                f"{injection.site}:{name}={max(where)}: {owner} has {limit}, numbered from 0 to"
                f" {limit - 1}"
            )
    _check_mask(injection, sizes, owner)


def _check_mask(injection: Injection, sizes: Sizes, owner: str) -> None:
    """Raise ValueError for a mask that does not fit an event of the call."""
    if injection.mask is None:
        return
    most = limits(injection.site, sizes)
    second = "columns" if injection.site.axes is Axes.TS else "features"
    last = most[second] if injection.site.has_second else 1
    whole = (most["batch"], most["heads"], most["rows"], last)
    if any(own not in (1, size) for own, size in zip(injection.mask.shape, whole, strict=True)):
        event = whole if injection.site.has_second else whole[:3]
        heads = "key heads" if injection.site in KEY_SITES else "heads"
        raise ValueError(
            f"{injection.site}:mask of shape {injection.mask.shape[: len(event)]}: must be batch"
            f" entries x {heads} x {injection.site.axes}, which is {event} for {owner}, or without"
            f" the first axes, as {event[2:]}; an axis of 1 stands for all"
        )


def limits(site: Site, sizes: Sizes) -> dict[str, int]:
    """Return how many entries each selection of an `Injection` at a site can choose from.

    The result is by the name of the selection, such as "rows".
    """
    of_keys = site.axes is Axes.SH
    walked, block = (sizes.queries, sizes.block_q) if of_keys else (sizes.keys, sizes.block_k)
    return {
        "batch": sizes.batch,
        "heads": sizes.key_heads if site in KEY_SITES else sizes.heads,
        "rows": sizes.keys if of_keys else sizes.queries,
        "columns": sizes.keys,
        "features": sizes.features if site in QUERY_FEATURES else sizes.value_features,
        "tiles": 1 if site in ONCE else -(-walked // block),
    }


def of_groups(plan: Plan, heads: int, key_heads: int) -> Plan:
    """Return the plan of a call with so many heads: nothing is added where none are shared."""
    is_shared = heads != key_heads
    return plan if is_shared or not plan.rounded_heads else replace(plan, rounded_heads=False)


def in_traces(plan: Plan, site: Site) -> bool:
    """Return whether a trace of the plan has an entry for a site.

    Sites that rescale always have an entry, even in a call with one key tile, which rescales
    nothing.
    """
    rescales = site in RESCALES and site not in OF_KERNELS
    return rescales or absent(plan, site) is None


def check_record(record: Record, plan: Plan) -> None:
    """Raise ValueError if the plan has none of the events or additions that a record asks for.

    A record may also name sites that the plan does not have, if the plan has one of them.
    """
    for name in ("events", "ones"):
        sites = getattr(record, name)
        if sites and not any(in_traces(plan, site) for site in sites):
            raise ValueError(
                "record: {}={}: {}; use {}".format(name, sites[0], *(absent(plan, sites[0]) or ()))
            )
    if plan.split_tiles and (
        several := [s for s in (*record.events, *record.ones) if s in OF_SPLITS]
    ):
        raise ValueError(
            f"record: {several[0]} happens in every split of the keys of {plan.name}; its summary"
            " is there without being asked"
        )
    if record.steps and all(plan.accumulator(site).order is Order.NATIVE for site in record.steps):
        raise ValueError(
            f"record: steps={record.steps[0]}: {plan.name} adds {record.steps[0]} up natively, in"
            " steps that nobody sees; give it another accumulator"
        )
