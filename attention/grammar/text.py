"""A plan as one text, and the plan of a text, where an interface takes strings and no records.

An operator of PyTorch is such an interface. The text holds the whole plan, so that it means the
same in another process, in a compiled graph that was stored, and in a message; a registry of plans
under digests would be empty there.
"""

import json
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from roundscope.attention.grammar.differences import differences
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import STORED
from roundscope.emu.errors import tidy_errors
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.events.plan import base_name, stored_name


@lru_cache(4096)
def text_of(plan: Plan) -> str:
    """Return a text from which `plan_of` makes a plan of the same arithmetic.

    The text is the name of a preset and the words that change it (docs/reference/grammar.md), as in
    "fa2-bf16; O=bf16:stochastic; seed=7". The few plans that the words do not give back to the last
    field, such as those with a format of one's own, are written out as JSON.

    Args:
        plan: Any plan.

    Returns:
        The text. The plan's name is not in it, unless it is that of a preset.

    Example:
        >>> from roundscope import Plan
        >>> from roundscope.attention.grammar.text import text_of
        >>> text_of(Plan.preset("fa2-bf16").at("O", "bf16"))
        'fa2-bf16; O=bf16'
    """
    for text in _in_words(plan):
        try:
            if replace(plan_of(text), name="") == replace(plan, name=""):
                return text
        except ValueError:  # words in an order in which no plan takes them
            continue
    return json.dumps(_data(plan))


def expression_of(plan: Plan) -> str:
    """Return the expression in Python that makes a plan.

    A plan that no words make, such as one with a format of one's own, has all its fields in it.

    Example:
        >>> from roundscope import Plan
        >>> Plan.preset("fa2-bf16").at("O", "bf16")
        Plan.preset('fa2-bf16').changed('O=bf16')
    """
    text = text_of(plan)
    if base_name(plan.name) != plan.name and _reads_as(plan.name, plan):
        text = plan.name  # the words as they were given
    if text.startswith("{"):
        return plan.in_full()
    name, *changes = map(repr, text.split("; "))
    if changes and changes[-1].startswith("'seed="):
        changes[-1] = changes[-1].strip("'")
    made = f"Plan.preset({name})" + (f".changed({', '.join(changes)})" if changes else "")
    named = plan_of(text).name
    is_named = plan.name in (named, stored_name(named))
    return made if is_named else f"replace({made}, name={plan.name!r})"


@lru_cache(4096)
@tidy_errors
def plan_of(text: str) -> Plan:
    """Return the plan of a text.

    Args:
        text: The name of a preset, with changes behind it that semicolons separate, of which the
            last may be seed=NUMBER; or what `text_of` returns.

    Returns:
        The plan.

    Raises:
        ValueError: An unknown name or word; the message has the nearest one.

    Example:
        >>> from roundscope.attention.grammar.text import plan_of
        >>> plan = plan_of("fa2-bf16; O=bf16:stochastic; seed=7")
        >>> str(plan["O"]), plan["O"].seed
        ('bf16:stochastic', 7)
    """
    if text.startswith("{"):
        plan: Plan = _record(Plan, json.loads(text))
        return plan
    name, *changes = (part.strip() for part in text.split(";"))
    seed = None
    if changes and changes[-1].startswith("seed="):
        seed = _seed(changes.pop())
    plan = Plan.preset(name)
    return plan.changed(*changes, seed=seed) if changes or seed is not None else plan


def _reads_as(text: str, plan: Plan) -> bool:
    """Return whether a text makes a plan, its name included."""
    try:
        return plan_of(text) == plan
    except ValueError:
        return False


def _seed(word: str) -> int:
    """Return the seed of a word seed=NUMBER."""
    number = word.removeprefix("seed=")
    if not number.isdecimal():
        raise ValueError(f"{word}: give a whole number from 0 to 2^32 - 1")
    return int(number)


def _in_words(plan: Plan) -> Iterator[str]:
    """Yield texts in words that may give the plan back, from the presets it may come from."""
    own = base_name(plan.name)
    for name in dict.fromkeys((own, "fa2-bf16", "fp32")):
        try:
            base = Plan.preset(name)
        except ValueError:  # a name of the user's own
            continue
        words = differences(plan, base)
        seeds = _seeds(plan)
        yield "; ".join([name, *words, *([f"seed={seeds.pop()}"] if len(seeds) == 1 else [])])


def _seeds(plan: Plan) -> set[int]:
    """Return the seeds of the stochastic roundings of a plan, without 0."""
    every = (*plan.roundings, *(a.step for a in plan.accumulators))
    return {r.seed for r in every if r.mode is RoundingMode.STOCHASTIC} - {0}


def _data(x: Any) -> Any:
    """Return a record, and the records in it, as what JSON holds."""
    if isinstance(x, tuple):
        return [_data(each) for each in x]
    if is_dataclass(x) and not isinstance(x, type):
        names = STORED if isinstance(x, Plan) else [f.name for f in fields(x)]
        return {name: _data(getattr(x, name)) for name in names}
    return x


def _record(kind: Any, data: Any) -> Any:
    """Return the value of a type that `_data` wrote."""
    if data is None:
        return None
    if isinstance(kind, types.UnionType) or get_origin(kind) is Union:
        return _record(next(k for k in get_args(kind) if k is not type(None)), data)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        each = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(_record(k, x) for k, x in zip(each, data, strict=True))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _record(hints[name], x) for name, x in data.items()})  # type: ignore[operator]
    return kind(data) if isinstance(kind, type) and issubclass(kind, StrEnum) else data
