"""Where a call stops being finite: the first event that makes infinite or NaN, and what avoids it.

`not_finite` compares the results of a call with those of exact attention by the rule of
`emu.stats.comparison`. If a number is not finite as it should be, it runs the heads concerned
once more, records their events, and names the first event whose result is not finite although the
same event in binary64 is finite. What avoids it is run, and its results are counted, before it is
said.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from roundscope.attention.arguments import injections_given, plans_given, served_given
from roundscope.attention.budget.call import RESULTS, Call, Results, exact_of
from roundscope.attention.budget.not_finite import AXES, NotFinite, Origin
from roundscope.attention.budget.parts import event_part, exactly, promotion
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.alignment import shift_of
from roundscope.attention.places import OF_SPLITS, in_traces, of_groups
from roundscope.attention.plans.choices import KeyOrder, QueryOrder
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import (
    BACKWARD,
    KEY_SITES,
    ONCE,
    PRODUCTS,
    QUERY_FEATURES,
    Axes,
    Site,
)
from roundscope.emu.arrays import Array
from roundscope.emu.stats.comparison import Lost, is_lost, lost
from roundscope.events.plan import base_name

INPUTS = ("q", "k", "v", "do", "sinks")
# the scores, of which -inf is no loss: its P is 0
SCORES = frozenset({Site.S, Site.SS, Site.SCALED, Site.LS, Site.X})
SCORES |= {Site.S_B, Site.SS_B, Site.SCALED_B, Site.LS_B, Site.X_B}
FIRST = frozenset(
    {Site.QS, Site.KS, Site.KM, Site.KC, Site.SINK}
)  # events that precede the first tile
OF_DELTA = frozenset({Site.OD, Site.DOO, Site.DELTA})
# the events that round a sum of products which is another site's
SUMS = {Site.DPQ: Site.DP, Site.DQP: Site.DQ, Site.DKP: Site.DK, Site.DVP: Site.DV}
BYTES = 256 << 20  # size of the events that are held at once
MANY = 1 << 16  # lost entries of an event among which the first is looked for
TRIES = 16  # events that are widened, one after another, to find what avoids a loss


def losses(own: Results, want: Results) -> dict[str, Lost]:
    """Return, by result, the numbers that are not finite as they should be, if there are any."""
    found = {name: lost(own[name], want[name]) for name in RESULTS if name in own and name in want}
    return {name: x for name, x in found.items() if x}


def not_finite(
    q: Array,
    k: Array,
    v: Array,
    do: Array | None = None,
    *,
    plan: Plan | str = "fa2",
    inject: Injection | str | Sequence[Injection | str] = (),
    against: Plan | str = "exact",
    own: Results | None = None,
    want: Results | None = None,
    **options: Any,
) -> NotFinite | None:
    """Return the numbers of a call's results that are infinite or NaN; None if there are none.

    If some are lost, that is, exact attention has other numbers there, the first event that makes
    them is looked for in the heads concerned, and changes of the plan that avoid it are tried.
    A row without a key has L = -inf in both, which is not counted.

    Args:
        q: Queries (B, T, N, H).
        k: Keys (B, S, G, H).
        v: Values (B, S, G, Hv).
        do: The gradient of the output, (B, T, N, Hv), or None.
        plan: The plan or the name of a preset.
        inject: Injections, as in `attend`.
        against: The plan compared with.
        own: The results of the call by name (`RESULTS`), where they are known. Only the results
            that both dictionaries have are looked at.
        want: The results of the plan compared with.
        options: Further arguments of `attend` other than engine.

    Raises:
        TypeError: As `examine`.
        ValueError: As `examine`.

    Example:
        >>> import numpy as np
        >>> q = k = np.zeros((1, 4, 1, 2))
        >>> v = np.full((1, 4, 1, 2), 6e4)
        >>> print(not_finite(q, k, v, plan="all:fp16", block_k=2))
        8 of 8 outputs are infinite, first at PV.step: batch entry 0, head 0, token 0, feature 0, \
from key tile 0 on; the exact value of it is 120,000, the largest number of fp16 is 65,504; \
PV.sum=ascending PV=fp32 O=fp32 AO=fp32 avoid it.
    """
    served = options.pop("window", None), options.pop("softcap", None), options.get("sinks")
    bias = options.get("bias")
    heads = np.shape(q)[2]
    (given,) = plans_given(plan)
    plan = served_given(given, *served, heads, bias)
    (given,) = plans_given(against, "against")
    is_exact = given.name == "exact"
    exact = exact_of(plan) if is_exact else served_given(given, *served, heads, bias)
    q, k, v = (np.asarray(x) for x in (q, k, v))
    do = None if do is None else np.asarray(do)
    call = Call(q=q, k=k, v=v, do=do, inject=injections_given(inject), options=options)
    own = call.results(plan, call.inject) if own is None else own
    want = call.results(exact) if want is None else want
    return found_in(call, plan, exact, own, want)


def found_in(call: Call, plan: Plan, exact: Plan, own: Results, want: Results) -> NotFinite | None:
    """Return the same of a `Call` whose results under both plans are known."""
    names = [name for name in RESULTS if name in own and name in want]
    own, want = ({n: np.asarray(x[n], np.float64) for n in names} for x in (own, want))
    gone = losses(own, want)
    shared = {name: x for name in names if (x := lost(_without_empty(name, own[name], want[name])))}
    if not gone and not shared:
        return None
    arrays = {n: getattr(call, n, None) for n in INPUTS} | {"sinks": call.options.get("sinks")}
    given = {n: lost(np.asarray(x, np.float64)) for n, x in arrays.items() if x is not None}
    found = NotFinite(
        lost=gone,
        shared=shared,
        inputs={n: x for n, x in given.items() if x},
        against=base_name(exact.name),
    )
    if not gone:
        return found
    part = _concerned(call, plan, gone)
    begin = origin(part, plan, part_losses(part, plan, exact))
    if begin is None:
        return found
    begin = replace(begin, place=_whole_place(begin.place, call, plan, gone))
    avoided = () if begin.injected else _avoided(call, plan, exact, want, gone)
    return replace(found, origin=begin, avoided_by=avoided)


def _without_empty(name: str, own: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return a result with 0 where both results do not agree, and where L is -inf in both."""
    unseen = is_lost(own, want) | (np.isneginf(own) if name == "lse" else False)
    return np.where(unseen, 0.0, own)


def part_losses(part: Call, plan: Plan, exact: Plan) -> dict[str, Lost]:
    """Return the losses of a part of a call, which is run under both plans."""
    return losses(part.results(plan, part.inject), part.results(exact))


def _place(name: str, x: Lost) -> dict[str, int]:
    assert x.first is not None
    return dict(zip(AXES[name], x.first, strict=True))


def _chosen(call: Call, gone: dict[str, Lost]) -> tuple[int, np.ndarray, np.ndarray]:
    """Return batch entry, query heads and key head of the first number that is lost."""
    name, x = next(iter(gone.items()))
    place = _place(name, x)
    group = call.q.shape[2] // call.k.shape[2]
    if "key head" in place:
        g = place["key head"]
        heads = np.arange(g * group, (g + 1) * group)
    else:
        g, heads = place["head"] // group, np.array([place["head"]])
    return place.get("batch entry", 0), heads, np.array([g])


def _concerned(call: Call, plan: Plan, gone: dict[str, Lost]) -> Call:
    """Return the part of a call that has the first number that is lost: its heads alone.

    It is the whole call where bits depend on the number of a head. A forward is enough for a loss
    in the forward.
    """
    forward = next(iter(gone)) in ("out", "lse")
    if forward and any(i.site in BACKWARD for i in call.inject):
        forward = False
    call = replace(call, do=None) if forward else call
    if call.depends_on_head_number(plan):
        return call
    b, heads, key_heads = _chosen(call, gone)
    batch = slice(b, b + 1) if next(iter(gone)) != "dsinks" else slice(None)
    return call.of_heads(heads, key_heads, batch)


def _whole_place(
    place: dict[str, int], call: Call, plan: Plan, gone: dict[str, Lost]
) -> dict[str, int]:
    """Return a place in the part of a call as a place in the call."""
    if call.depends_on_head_number(plan):
        return place
    b, heads, key_heads = _chosen(call, gone)
    first = {"head": int(heads[0]), "key head": int(key_heads[0])}
    if next(iter(gone)) != "dsinks":
        first["batch entry"] = b
    return {n: i + first.get(n, 0) for n, i in place.items()}


def _avoided(
    call: Call, plan: Plan, exact: Plan, want: Results, gone: dict[str, Lost]
) -> tuple[str, ...]:
    """Return changes of the plan under which no number is lost; () if none is found.

    The event that begins a loss gets a wider format, in the heads concerned, and then the event
    that begins what is still lost, and so on. The whole call is run at the end.
    """
    if plan.offset and not losses(call.results(plan.changed("offset=0"), call.inject), want):
        return ("offset=0",)
    words: list[str] = []
    part = _concerned(call, plan, gone)
    for _ in range(TRIES):
        here = part_losses(part, plan, exact)
        if not here:
            gone = losses(call.results(plan, call.inject), want)
            if not gone:
                return tuple(words)
            part = _concerned(call, plan, gone)
            continue
        begin = origin(part, plan, here)
        new = [] if begin is None or begin.injected else _wider(plan, begin.event)
        if not new or set(new) <= set(words):
            return ()
        again = {w.partition("=")[0] for w in new}  # an event that is widened for a second time
        words = [w for w in words if w.partition("=")[0] not in again] + new
        plan = plan.changed(*new)
    return ()


def _wider(plan: Plan, event: str) -> list[str]:
    """Return the changes that give an event, or a sum and its event, a wider format."""
    name, _, step = event.partition(".")
    site = Site[name]
    if plan[site].is_identity and not step:
        return []
    if not step:
        return promotion(plan, event_part(plan, site))
    if plan.accumulator(site).step.is_identity:
        return []
    inside = plan.accumulator(site).step.format.precision
    return [f"{site}.sum=ascending{'' if inside < 24 else ':fp64'}"]


def origin(part: Call, plan: Plan, gone: dict[str, Lost]) -> Origin | None:
    """Return the first event that makes the first number that is lost not finite.

    part  the call, or some heads of it;  gone: what is lost there, by result

    The order is that of the algorithm: the tiles of the row one after another, in each the events
    one after another. Of scores that become -inf none counts unless nothing else does.
    """
    name, x = next(iter(gone.items()), ("", None))
    if x is None:
        return None
    forward = name in ("out", "lse")
    part = replace(part, do=None) if forward and not _needs_backward(part) else part
    of_call = of_groups(plan, part.q.shape[2], part.k.shape[2])
    sites = [
        s
        for s in Site
        if in_traces(of_call, s)
        and not (plan.split_tiles and s in OF_SPLITS)
        and not (s in BACKWARD and (forward or part.do is None))
    ]
    visible = _visible(part, plan)
    for harmless in (SCORES, frozenset()):
        found = list(_begun(part, plan, sites, name, _place(name, x), visible, harmless))
        if found:
            _, begin = min(found, key=lambda f: f[0])
            return begin
    return None


def _needs_backward(part: Call) -> bool:
    return any(i.site in BACKWARD for i in part.inject)


def _visible(part: Call, plan: Plan) -> np.ndarray:
    """Return the scores that have a P in exact attention, (B, N, T, S)."""
    forward = replace(part, do=None)
    seen = forward.examine(exact_of(plan), (), Record(events=(Site.EXP,)))
    return np.asarray(seen.trace.events["EXP"][1] != 0.0)


def _begun(
    part: Call,
    plan: Plan,
    sites: list[Site],
    name: str,
    place: dict[str, int],
    visible: np.ndarray,
    harmless: frozenset[Site],
) -> Iterator[tuple[tuple[int, ...], Origin]]:
    """Yield, for each site with a loss that can reach the place, its order and its first loss."""
    twin = exactly(plan)
    for some in _batches(part, sites):
        record = Record(events=tuple(some))
        own = part.examine(plan, part.inject, record).trace.events
        exact = part.examine(twin, (), record).trace.events
        for site in some:
            if str(site) not in own or str(site) not in exact:
                continue
            before, after = own[str(site)]
            want = exact[str(site)][1]
            gone = is_lost(after, want) & ~np.isfinite(after) & _reaches(site, name, place, after)
            if site.axes is Axes.TS:
                gone &= visible
            if site in harmless:
                gone &= after != -math.inf
            if gone.any():
                yield _described(part, plan, site, before, after, want, gone)


def _batches(part: Call, sites: list[Site]) -> Iterator[list[Site]]:
    """Yield the sites a few at a time, as many as memory allows."""
    (b, t, n, h), (_, s, _, hv) = part.q.shape, part.v.shape
    tiles = -(-s // min(part.options.get("block_k") or 128, s))
    queries = -(-t // min(part.options.get("block_q") or 128, t))
    size = {
        Axes.TS: t * s,
        Axes.T: t * tiles,
        Axes.TH: t * tiles * max(h, hv),
        Axes.SH: s * queries * max(h, hv),
    }
    some: list[Site] = []
    held = 0
    for site in sites:
        bytes_ = 64 * b * n * size[site.axes]
        if some and held + bytes_ > BYTES:
            yield some
            some, held = [], 0
        some.append(site)
        held += bytes_
    if some:
        yield some


def _reaches(site: Site, name: str, place: dict[str, int], after: np.ndarray) -> np.ndarray:
    """Return which entries of a site's events the number of a result at a place depends on."""
    kept = np.zeros(after.shape, dtype=bool)
    index: list[Any] = [slice(None)] * after.ndim
    backward = site.stage == "backward"
    row = -1 if site.axes is Axes.T and after.ndim < 5 else -2  # of five axes the last is lanes
    if "batch entry" in place:
        index[0] = place["batch entry"] % after.shape[0]
    if "head" in place and after.shape[1] > place["head"] and site not in KEY_SITES:
        index[1] = place["head"]
    if "token" in place and site.axes is not Axes.SH:
        index[row] = place["token"]
    if "key" in place and backward and site.axes in (Axes.SH, Axes.TS):
        index[-2 if site.axes is Axes.SH else -1] = place["key"]
    of_result = {"out": 1, "dq": 2, "dk": 3, "dv": 3}.get(name, 0)
    if "feature" in place and site.axes in (Axes.TH, Axes.SH):
        follows = {
            1: site is Site.V or (site.axes is Axes.TH and site not in QUERY_FEATURES),
            2: backward and site.axes is Axes.TH and site in QUERY_FEATURES,
            3: backward and site.axes is Axes.SH and site is not Site.KC,
        }.get(of_result, False)
        if follows:
            index[-1] = place["feature"]
    kept[tuple(index)] = True
    return kept


def _described(
    part: Call,
    plan: Plan,
    site: Site,
    before: np.ndarray,
    after: np.ndarray,
    want: np.ndarray,
    gone: np.ndarray,
) -> tuple[tuple[int, ...], Origin]:
    """Return the order of a site's first loss, and its description."""
    axes = ["batch entry", "key head" if site in KEY_SITES else "head"]
    if gone.ndim == 5 or (gone.ndim == 4 and site.axes is Axes.T):
        axes.append("query tile" if site.axes is Axes.SH else "key tile")
    axes.append("key" if site.axes is Axes.SH else "token")
    last = {Axes.T: "lane", Axes.TS: "key"}.get(site.axes, "feature")
    axes += [last] * (len(axes) < gone.ndim)
    found = np.flatnonzero(gone)[:MANY]
    places = dict(zip(axes, np.unravel_index(found, gone.shape), strict=True))
    if site.axes is Axes.TS and site.stage != "inputs":
        places["key tile"] = places["key"] // _blocks(part)[1]
    ranks = _ranks(part, plan, site, places)
    first = int(ranks.argmin())
    at = np.unravel_index(int(found[first]), gone.shape)
    place = {n: int(i[first]) for n, i in places.items()}
    value, result = float(before[at]), float(after[at])
    product = _product(plan, site)
    inside = product is not None and not math.isfinite(value)
    kind: Any = plan.accumulator(product).step if inside and product else plan.event(site)
    block = plan.block(site) is not None and not inside
    stage = (
        0
        if site.stage == "inputs" or site in FIRST
        else 3
        if site in OF_DELTA
        else {False: 1, True: 4}[site.stage == "backward"] + (site in ONCE)
    )
    return (stage, int(ranks[first]) if stage in (1, 4) else 0, list(Site).index(site)), Origin(
        event=f"{product}.step" if inside else str(site),
        place=place,
        becomes=result,
        value=value if math.isfinite(value) else float(want[at]),
        is_exact=not math.isfinite(value),
        format=str(kind) if block else kind.format.name,
        largest=math.nan if block else kind.format.max_finite,
        injected=math.isfinite(value) and any(i.site is site for i in part.inject),
    )


def _blocks(part: Call) -> tuple[int, int]:
    """Return how many queries and keys a tile of a call has."""
    sizes = part.q.shape[1], part.k.shape[1]
    given = (part.options.get(name) or 128 for name in ("block_q", "block_k"))
    block_q, block_k = (min(block, size) for block, size in zip(given, sizes, strict=True))
    return block_q, block_k


def _ranks(part: Call, plan: Plan, site: Site, places: dict[str, np.ndarray]) -> np.ndarray:
    """Return the place of each event's tile in the plan's order of tiles."""
    if "query tile" in places:
        tiles = places["query tile"]
        return -tiles if plan.query_order is QueryOrder.DESCENDING else tiles
    some = next(iter(places.values()))
    tiles = places.get("key tile", np.zeros_like(some))
    if site.stage != "forward" or plan.key_order is KeyOrder.ASCENDING:
        return tiles
    if plan.key_order is KeyOrder.DESCENDING:
        return -tiles
    block_q, block_k = _blocks(part)
    shift = shift_of(part.options.get("alignment"), part.q.shape[1], part.k.shape[1])
    first_row = places["token"] // block_q * block_q + shift
    is_cut = bool(part.options.get("is_causal")) & ((tiles + 1) * block_k - 1 > first_row)
    return np.where(is_cut, tiles - part.k.shape[1], tiles)  # these come first


def _product(plan: Plan, site: Site) -> Site | None:
    """Return the sum of products that an event rounds, if it rounds one."""
    if site is Site.O and plan.pv_into_o:
        return Site.PV
    return site if site in PRODUCTS else SUMS.get(site)
