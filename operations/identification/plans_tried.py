"""The plans that `identify` tries for a call: the published ones, and changes of them, in words."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from roundscope.attention.grammar.roundings import spelled
from roundscope.events.plan import BasePlan
from roundscope.operations.identification.device import is_elsewhere
from roundscope.operations.operation import Operation
from roundscope.operations.run import TYPES, plan_of

SUFFIXES = {"bf16": "", "fp16": "-fp16", "fp32": "-fp32"}
CORES = {  # tensor cores by the type of the operands
    "bf16": ("hopper:bf16", "ampere:bf16", "ada:bf16", "blackwell:bf16"),
    "fp16": ("hopper:fp16", "ampere:fp16", "volta:fp16", "turing:fp16", "ada:fp16"),
    "e4m3fn": ("hopper:e4m3fn", "ada:e4m3fn", "blackwell:e4m3fn"),
    "e5m2": ("hopper:e5m2", "ada:e5m2", "blackwell:e5m2"),
    "fp32": ("hopper:tf32", "ampere:tf32"),
}
POWERS = (8, 16, 32, 64, 128, 256, 512, 1024)


class Tried(NamedTuple):
    """A plan that is tried.

    base     its name before changes
    changes  the changes in words
    plan     the plan
    """

    base: str
    changes: tuple[str, ...]
    plan: Any

    @property
    def words(self) -> str:
        """The plan in words that `plan_of` reads."""
        return f"{self.base}; {' '.join(self.changes)}" if self.changes else self.base

    @property
    def key(self) -> tuple[object, ...]:
        """What decides the bits of a forward."""
        plan = self.plan
        return (
            *(getattr(plan, name) for name in plan.choices()),
            *(plan.event(site) for site in plan.SITES if site.stage != "backward"),
            *(plan.accumulator(site) for site in plan.PRODUCTS if site.stage == "forward"),
        )


def type_of(x: Any) -> str:
    """Return the name of the format of an array's type; "" for one that has none here."""
    dtype = np.asarray(x).dtype
    return next((name for name, kind in TYPES.items() if dtype == np.dtype(kind)), "")


def named_plans(
    own: Operation, types: Sequence[str], outputs: dict[str, str], device: str = ""
) -> list[Tried]:
    """Return the plans of an operation that have a name, with results in the types of a call.

    types: the types of the call's inputs and outputs
    outputs: the type of each output by the name of its site
    device: "cpu" or "gpu", whose plans come first
    """
    names = [
        f"{name}{suffix}"
        for name in sorted(own.published, key=lambda name: is_elsewhere(name, device))
        if name not in ("exact", "fp32")
        for suffix in dict.fromkeys(SUFFIXES[t] for t in types if t in SUFFIXES)
    ]
    names += ["fp32", *(f"all:{t}" for t in types if t in SUFFIXES and t != "fp32"), "exact"]
    found = []
    for name in names:
        try:
            plan = plan_of(own, name)
        except ValueError:  # a tensor core that cannot read numbers of this type
            continue
        words = [f"{s}={t}" for s, t in outputs.items() if t and spelled(plan.event(s)) != t]
        found += _changed(Tried(name, (), plan), words)
    return found


def changed_plans(
    tried: Tried,
    reached: Callable[[Any], Sequence[str]],
    features: int,
    formats: Sequence[str],
    outputs: Mapping[str, str],
) -> Iterator[Tried]:
    """Yield the plans that differ from one in a choice, alone or with the format of an event that
    only it has, in the order of a sum, or in an event.

    reached: returns the events that the call has under a plan
    features: how many terms a sum has
    formats: what an event is rounded to
    outputs: the events of the call's outputs and their types, which stay, but may be cut
    """
    plan: BasePlan = tried.plan
    formats, sites = list(dict.fromkeys(formats)), set(reached(plan))
    for name, own in plan.choices().items():
        if not own.moves.forward:
            continue
        for value in own.moves.values or own.values:
            for other in _each(tried, [f"{name}={str(value).lower()}"]):
                yield other
                new = [s for s in reached(other.plan) if s not in sites]
                yield from _each(other, (f"{s}={t}" for s in new for t in formats))
    for site in plan.PRODUCTS:
        if site in sites and site.stage == "forward":
            factors = {spelled(plan.event(f)) for f in plan.factors(site)}
            is_product = len(plan.factors(site)) > 1
            orders = sum_orders(features, factors if is_product else ())
            yield from _each(tried, (f"{site}.sum={order}" for order in orders))
    for site in plan.SITES:
        if site in outputs:
            yield from _each(
                tried, [f"{site}={outputs[site]}:toward-zero"] if outputs[site] else ()
            )
        elif site in sites and site.stage == "forward":
            yield from _each(tried, (f"{site}={t}" for t in formats))


def sum_orders(features: int, operands: Iterable[str] = ()) -> list[str]:
    """Return orders in which implementations add so many terms, in the words of a plan.

    operands: the types of the factors, of a sum on tensor cores
    """
    half = -(-features // 2)
    chunks = sorted({192, 384, *POWERS[1:], half} & set(range(2, features)))
    own = [t for t in POWERS if t < max(features, 9)]
    found = ["ascending", "ascending:fp64", "pairwise", "halves", "cascade8", "cascade16", "levels"]
    found += [f"strided{n}" for n in own]
    found += [f"block{n}" for n in (32, 64, 128, 256, 512)]
    found += [f"warps{n}" for n in (1, 2, 4, 8)]
    reads = [n for n in (2, 4, *POWERS) if features <= 256 * n and 4 * n <= 2 * features]
    found += [f"{order}{n}" for order in ("quad-warps", "octet-warps") for n in reads]
    found += [
        f"{order}{n}" for order in ("quad-strides", "octet-strides") for n in reads if n >= 128
    ]
    found += [f"octets{n}" for n in (4, 8, 16, 32) if 8 * n <= features]
    found += [f"chunked{n}" for n in chunks]
    return found + [core for t in operands for core in CORES.get(t, ())]


def _each(tried: Tried, words: Iterable[str]) -> Iterator[Tried]:
    for word in words:
        for found in _changed(tried, [word]):
            if found.key != tried.key:
                yield found


def _changed(tried: Tried, words: Sequence[str]) -> list[Tried]:
    """Return a plan with more changes, in a list that is empty where the plan takes them not."""
    names = {word.partition("=")[0] for word in words}
    kept = tuple(w for w in tried.changes if w.partition("=")[0] not in names)
    try:
        plan = tried.plan.changed(*words) if words else tried.plan
    except ValueError:  # the rest of the plan does not allow it
        return []
    return [Tried(tried.base, (*kept, *words), plan)]
