"""What is changed in the attention of a run, in words, and the plan per layer and head that comes of it.

    layer=1 head=7 site=O -> fp32               layer=0-2,5 site=PV,O -> bf16:stochastic
    site=backward -> fp32                       -> plan=fp32 ; site=OD -> e8m3:toward-zero
    layer=1 head=0-1 -> offset=16:bias          -> offset=-1:noise:all

left     layer= head= numbers and ranges, both ends included; site= names of events, or inputs, forward, backward: all of that
         stage. What is left out is: all of them
right    FORMAT[:MODE] of the events; accumulator=ORDER[:FORMAT[:MODE]] of the sums of products at them; plan=PRESET;
         stabiliser=BETA|none; delta_from=OUT|O|P_DP|CENTRED; several of these apply in turn;
         offset=C:bias|noise|fixed[:all]|none is no edit of a plan (`injected`): the output that delta reads is off by C x half a BF16
         ulp of V, in rows with several P = 1 or in all; it stays, whatever else changes, until offset=none. C = 0 keeps the executable
matrix=  and mx= are of the linear layers (`linear_words`): such changes leave the attention's plans alone
;        between changes, which apply in turn
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from roundscope.attention.places import occurs
from roundscope.attention.plan import DeltaFrom, Plan, Stabiliser, site_named
from roundscope.attention.sites import PRODUCTS, Site
from roundscope.emu.formats.format import unknown
from roundscope.emu.rounding.modes import RoundingMode
from roundscope.experiments.errors import UsageError, bad
from roundscope.experiments.sweep.conditions.values import accumulator_of, event_of
from roundscope.experiments.train.config import JAX, Config
from roundscope.experiments.train.gpt import linear_words
from roundscope.experiments.train.gpt.linear_words import MATRICES, Matrix
from roundscope.experiments.train.gpt.plans import base, native
from roundscope.experiments.train.mx.sites import Site as LinearSite

STAGES = ("inputs", "forward", "backward")
OFFSET = "offset"  # the one change that is no edit of a plan
LEFT, RIGHT = ("layer", "head", "site", "matrix"), ("accumulator", "plan", "stabiliser", "delta_from", OFFSET)
Plans = tuple[tuple[Plan, ...], ...]  # of each layer, of each head
Edit = Callable[[Plan, str, tuple[Site, ...] | None, str], Plan]  # plan, value, sites, the config's sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: where (None: everywhere), and what in turn as (kind, value); kind 'format' or one of RIGHT.

    matrices, events   of a change of linear layers, whose kinds are 'format' and 'mx'; None: it is of attention
    """

    text: str
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    sites: tuple[Site, ...] | None
    what: tuple[tuple[str, str], ...]
    matrices: tuple[Matrix, ...] | None = None
    events: tuple[LinearSite, ...] = ()


@functools.lru_cache(maxsize=4096)
def changes_of(text: str) -> tuple[Change, ...]:
    """The changes that a text asks for. Raises UsageError naming the text and the repair."""
    try:
        return tuple(_change(part.strip()) for part in text.split(";") if part.strip())
    except ValueError as error:
        raise UsageError(f"change '{text}': {error}") from None


def plans_of(config: Config, texts: Sequence[str] = (), seed: int = 0) -> Plans | None:
    """The plan of every layer and head: the config's preset with its sums, then config.changes, then texts.

    seed   of all stochastic roundings. None for plan = "jax", which takes no change.
    Raises UsageError for a layer or head that is not there, an event that a plan has not, and plans of two structures: what changes the
    program (stabiliser, delta_from, accumulators, stochastic rounding, some presets) must be the same in all layers and heads.
    """
    texts = (*config.changes, *texts)
    changes = [change for text in texts for change in changes_of(text) if change.matrices is None]
    if config.plan == JAX and not changes:
        return None
    plans = [[base(config)] * config.heads for _ in range(config.layers)]
    for change in changes:
        _apply(plans, change, config)
    _check_structure(plans, texts)
    return tuple(tuple(_seeded(plan, seed) for plan in row) for row in plans)


def described(plans: Plans | None) -> list[dict[str, Any]]:
    """The different plans and where each holds, as plain data."""
    where: dict[Plan, list[list[int]]] = {}
    for layer, row in enumerate(plans or ()):
        for head, plan in enumerate(row):
            where.setdefault(plan, []).append([layer, head])
    return [{"plan": plan.describe(), "layers_heads": places} for plan, places in where.items()]


def places(change: Change, config: Config) -> Iterator[tuple[int, int]]:
    """The (layer, head) that a change is for. Raises UsageError for one that is not there."""
    return product(layers_of(change, config), _there(change, "head", change.heads, config.heads))


def layers_of(change: Change, config: Config) -> Sequence[int]:
    """The layers that a change is for. Raises UsageError for one that is not there."""
    return _there(change, "layer", change.layers, config.layers)


def _there(change: Change, name: str, chosen: tuple[int, ...] | None, size: int) -> Sequence[int]:
    if chosen and max(chosen) >= size:
        raise UsageError(f"change '{change.text}': {name}={max(chosen)}: the model has {size}, numbered from 0 to {size - 1}")
    return chosen or range(size)


def _apply(plans: list[list[Plan]], change: Change, config: Config) -> None:
    for layer, head in places(change, config):
        for kind, value in change.what:
            if kind == OFFSET:
                continue
            try:
                plans[layer][head] = _EDITS[kind](plans[layer][head], value, change.sites, config.sums)
            except ValueError as error:
                raise UsageError(f"change '{change.text}': {error}") from None


def _check_structure(plans: list[list[Plan]], texts: Sequence[str]) -> None:
    from roundscope.attention.traced_plan import common_structure

    try:
        common_structure([plan for row in plans for plan in row])
    except ValueError:
        repair = (
            "only formats and modes other than stochastic may differ between heads; for stabiliser, delta_from, accumulator, "
            "stochastic rounding and presets that differ in these leave layer= and head= out"
        )
        raise bad("changes", "; ".join(texts), repair) from None


def _seeded(plan: Plan, seed: int) -> Plan:
    own = lambda r: replace(r, seed=seed) if r.mode is RoundingMode.STOCHASTIC else r  # noqa: E731
    sums = tuple(replace(a, step=own(a.step)) for a in plan.accumulators)
    return replace(plan, roundings=tuple(own(r) for r in plan.roundings), accumulators=sums)


def _change(text: str) -> Change:
    left, arrow, right = text.partition("->")
    if not arrow or not right.strip():
        raise ValueError("write WHERE -> WHAT, as in  layer=1 head=7 site=O -> fp32")
    where: dict[str, str] = {}
    for word in left.split():
        name, given, value = word.partition("=")
        if name not in LEFT or not given or name in where:
            raise ValueError(f"{unknown('place', word, LEFT)}; write each once, as in  layer=1 head=2-3 site=O,PV")
        where[name] = value
    layers, words = numbers(where["layer"]) if "layer" in where else None, right.split()
    if linear_words.is_linear(where, words, STAGES):
        return _of_linear(text, where, layers, words)
    return Change(
        text=text, sites=_sites(where.get("site")), layers=layers, heads=numbers(where["head"]) if "head" in where else None,
        what=tuple(_what(word) for word in words),
    )  # fmt: skip


def _of_linear(text: str, where: dict[str, str], layers: tuple[int, ...] | None, words: Sequence[str]) -> Change:
    if "head" in where:
        raise ValueError("linear layers have no heads; leave head= out")
    return Change(
        text=text, sites=None, layers=layers, heads=None, what=tuple(linear_words.what(word, "site" in where) for word in words),
        matrices=linear_words.matrices_of(where["matrix"]) if "matrix" in where else MATRICES,
        events=linear_words.sites_of(where["site"]) if "site" in where else tuple(LinearSite),
    )  # fmt: skip


def numbers(text: str) -> tuple[int, ...]:
    """The numbers of 0-2,5. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not (low.isdecimal() and low.isascii() and (not dash or (high.isdecimal() and high.isascii() and int(high) >= int(low)))):
            raise ValueError(f"'{text}' is no list of numbers; write numbers from 0 and ranges, as in 0-2,5")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _sites(text: str | None) -> tuple[Site, ...] | None:
    if text is None:
        return None
    found: list[Site] = []
    for name in text.split(","):
        found += [s for s in Site if s.stage == name.lower()] if name.lower() in STAGES else [site_named(name)]
    return tuple(found)


def _what(word: str) -> tuple[str, str]:
    name, given, value = word.partition("=")
    if not given:
        return "format", word
    if name not in RIGHT:
        raise ValueError(f"{unknown('change', name, RIGHT)}, or FORMAT[:MODE]")
    return name, value


def _preset(name: str, sums: str) -> Plan:
    plan = Plan.preset(name)
    return native(plan) if sums == "native" else plan


def _format(plan: Plan, text: str, sites: tuple[Site, ...] | None, _: str) -> Plan:
    name, _, mode = text.partition(":")
    chosen = event_of(name, mode or None)
    for site in sites or ():
        occurs(plan, site)
    return plan.rounded(dict.fromkeys(sites or Site, chosen), _edited(plan))


def _accumulator(plan: Plan, text: str, sites: tuple[Site, ...] | None, _: str) -> Plan:
    if wrong := [s for s in sites or () if s not in PRODUCTS]:
        raise ValueError(f"{wrong[0]} is no sum of products; those are {' '.join(PRODUCTS)}")
    chosen = accumulator_of(text)
    return replace(
        plan, name=_edited(plan), accumulators=tuple(chosen if s in (sites or PRODUCTS) else plan.accumulator(s) for s in PRODUCTS)
    )


def _whole_plan(plan: Plan, name: str, sites: tuple[Site, ...] | None, sums: str) -> Plan:
    _of_no_site("plan", sites)
    return _preset(name, sums)


def _stabiliser(plan: Plan, text: str, sites: tuple[Site, ...] | None, _: str) -> Plan:
    _of_no_site("stabiliser", sites)
    if text == "none":
        return replace(plan, name=_edited(plan), stabiliser=None)
    try:
        beta = float(text)
    except ValueError:
        beta = math.nan
    if not 1.0 < beta < math.inf:
        raise ValueError(f"stabiliser={text}: give none, or the factor beta, a number above 1 (the paper uses 2 to 8)")
    return replace(plan, name=_edited(plan), stabiliser=Stabiliser(beta=beta))


def _delta_from(plan: Plan, text: str, sites: tuple[Site, ...] | None, _: str) -> Plan:
    _of_no_site("delta_from", sites)
    if text not in tuple(DeltaFrom):
        raise ValueError(unknown("delta_from", text, tuple(DeltaFrom)))
    return replace(plan, name=_edited(plan), delta_from=DeltaFrom(text))


def _of_no_site(name: str, sites: tuple[Site, ...] | None) -> None:
    if sites is not None:
        raise ValueError(f"{name}= is of a whole plan; leave site= out")


def _edited(plan: Plan) -> str:
    return plan.name if plan.name.endswith("*") else f"{plan.name}*"


_EDITS: dict[str, Edit] = {
    "format": _format, "accumulator": _accumulator, "plan": _whole_plan, "stabiliser": _stabiliser, "delta_from": _delta_from,
}  # fmt: skip
