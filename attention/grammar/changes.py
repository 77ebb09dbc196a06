"""Changes of a plan in words, and the plans that they make.

    O=bf16:stochastic      PV.sum=hopper:bf16      delta_from=P_DP      layer=1 head=0:2 -> O=fp32
                           P=bf16
    site=O,PV -> bf16      site=PV -> accumulator=ascending:bf16        -> plan=fp32 ; backward=bf16

The places to which the change applies are left of the arrow, each at most once. Without places the
arrow may be left out. Right of the arrow are edits WHAT=VALUE, which are applied from left to
right. WHAT is a site or a stage, SITE.sum, SITE.mode, or a name of `edits.kinds_of`, alone or with
a site, as in format.O. After site=, a VALUE alone is a rounding of those sites. Semicolons separate
changes, which are applied one after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from roundscope.attention.grammar.edits import apply, kinds_of
from roundscope.attention.grammar.roundings import accumulator_words, spelled
from roundscope.attention.places import absent, occurs
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import Site
from roundscope.emu.errors import Problem, tidy_errors, unknown
from roundscope.emu.numbers import check_seed
from roundscope.emu.shown import shown
from roundscope.events.plan import BasePlan, renamed
from roundscope.events.sites import SiteBase

P = TypeVar("P", bound=BasePlan)
PLACES = ("layer", "head", "site", "matrix")
STAGES = ("inputs", "forward", "backward")
ALIASES = {"sum": "accumulator", "preset": "plan", "stabilizer": "stabiliser"}
HOW = (
    "write SITE=FORMAT[:MODE], as in O=bf16:stochastic, or WHERE -> WHAT, as in  layer=1 head=7"
    " site=O -> fp32"
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change as it was written, whose names have not been looked up yet.

    Args:
        text: The whole text of the change.
        where: The text of each place that is given, such as "0:2" of head=0:2.
        what: Pairs (name, value) in the order of the text; the name of a value alone is "".
    """

    text: str
    where: Mapping[str, str]
    what: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a plan, whose names have been looked up.

    Args:
        kind: A name of `edits.kinds_of` the class of the plan.
        value: The value in words.
        sites: The sites that change; () means all that the kind can change.
        named: The sites that were named one by one. The plan has to reach them.
    """

    kind: str
    value: str
    sites: tuple[Any, ...] = ()
    named: tuple[Any, ...] = ()


def changes(text: str, places: Sequence[str] = PLACES) -> tuple[Change, ...]:
    """Return the changes of a text, which semicolons separate.

    Args:
        text: Changes in words.
        places: The places that can be given here, of `PLACES` or a caller's own.

    Raises:
        ValueError: The text is not a change, or names a place that is not in `places`.
    """
    return tuple(_change(part.strip(), places) for part in text.split(";") if part.strip())


def edits_of(
    change: Change,
    others: Sequence[str] = (),
    of: type[BasePlan] = Plan,
    plan: BasePlan | None = None,
) -> tuple[Edit, ...]:
    """Return the edits of a plan that a change asks for.

    Args:
        change: The change.
        others: Names that the caller accepts in addition to the grammar, for the message about an
            unknown name.
        of: The class of the plan.
        plan: The plan itself, if it is known: a message about an unknown name lists its own events.

    Raises:
        ValueError: A name or value is unknown; the message has the nearest one.
    """
    place = change.where.get("site")
    return tuple(_edit(of, name, value, place, others, plan) for name, value in change.what)


@tidy_errors
def changed(plan: P, texts: Sequence[str], seed: int | None = None) -> P:
    """Return the plan with changes that are applied one after the other; see `Plan.changed`."""
    check_seed("seed", 0 if seed is None else seed)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(
                f"changes={shown(text)}: a change is a text, such as 'O=bf16:stochastic'; {HOW}"
            )
        try:
            found = changes(text, ("site",))
        except ValueError as error:
            if str(error) != HOW:
                raise
            raise Problem("", shown(text), HOW) from None
        for change in found:
            for edit in edits_of(change, of=type(plan), plan=plan):
                plan = edited(plan, edit)
    return plan if seed is None else plan.seeded(seed)


def edited(plan: P, edit: Edit) -> P:
    """Return the plan with one edit, whose words are behind its name.

    Raises:
        ValueError: The plan never reaches a site that was named, or does not allow the change.
    """
    if isinstance(plan, Plan):
        for site in edit.named:
            occurs(plan, site)
    new = apply(plan, edit.kind, edit.value, edit.sites)
    if edit.kind == "plan":
        return new
    return replace(new, name=renamed(plan.name, *words_of(edit, new)))


def words_of(edit: Edit, plan: BasePlan) -> list[str]:
    """Return in words WHAT=VALUE what an edit has made of a plan, one for each site."""
    if not edit.sites:
        return [f"{edit.kind}={edit.value}"]
    if edit.kind == "accumulator":
        return [f"{site}.sum={accumulator_words(plan.accumulator(site))}" for site in edit.sites]
    return [f"{site}={spelled(plan.event(site))}" for site in edit.sites]


def sites_of(text: str, of: type[BasePlan] = Plan) -> tuple[Any, ...]:
    """Return the sites of a list of names and stages, separated by commas.

    Raises:
        ValueError: A name is unknown; the message has the nearest one.
    """
    names = [name.strip() for name in text.split(",")]
    return tuple(site for name in names for site in _stage(of, name) or (of.SITES.named(name),))


def parted(name: str, of: type[BasePlan] = Plan) -> tuple[str, str]:
    """Return the kind and the sites that a WHAT names.

    O gives ("format", "O"), PV.sum and accumulator.PV give ("accumulator", "PV"), and exp gives
    ("exp", "").

    Raises:
        ValueError: A name with a dot has no kind that goes with a site.
    """
    head, dot, tail = name.partition(".")
    kinds = kinds_of(of)
    # as written: exp is the exponential, EXP an event
    first = ALIASES.get(head, head)
    last = ALIASES.get(tail, tail)
    if not dot:
        return (first, "") if first in kinds else ("format", name)
    for kind, site in ((first, tail), (last, head)):
        if kind in kinds and kinds[kind].per_site:
            return kind, site
    raise ValueError(_unknown(of, name))


def _change(text: str, places: Sequence[str]) -> Change:
    """Return the one change of a text."""
    left, arrow, right = text.partition("->")
    if not arrow:
        left, right = "", left
    if not right.strip() or (
        not arrow and any(w.partition("=")[0] in PLACES or "=" not in w for w in right.split())
    ):
        raise ValueError(HOW)
    where: dict[str, str] = {}
    for word in left.split():
        name, given, value = word.partition("=")
        if name in PLACES and name not in places:
            raise ValueError(
                f"there is no {name}= here; places are {' '.join(f'{p}=' for p in places)}"
            )
        if name not in places or not given or name in where:
            raise ValueError(
                f"{unknown('place', name if given else word, places)}; write each once, as in "
                " layer=1 head=2:4 site=O,PV"
            )
        where[name] = value
    return Change(text, where, tuple(_what(word) for word in right.split()))


def _what(word: str) -> tuple[str, str]:
    """Return the name and the value of a word NAME=VALUE, or "" and the word."""
    name, given, value = word.partition("=")
    if given and not (name and value):
        raise Problem("", word, HOW)
    return (name, value) if given else ("", word)


def _edit(
    of: type[BasePlan],
    name: str,
    value: str,
    place: str | None,
    others: Sequence[str],
    plan: BasePlan | None = None,
) -> Edit:
    """Return the edit that NAME=VALUE asks for; place: the text after site=, if there is one."""
    kind, own = parted(name, of) if name else ("format", "")
    if place is not None and not kinds_of(of)[kind].per_site:
        raise ValueError(f"{name}= is of a whole plan; leave site= out")
    if place is not None and own:
        raise ValueError(f"{name}= says its site itself; leave site= out")
    if name == own and name and not (_stage(of, name) or name.upper() in of.SITES.__members__):
        raise ValueError(_unknown(of, name, others, plan))
    text = own or place or ""
    sites = sites_of(text, of) if text else ()
    _check_value(of, kind, name, value)
    if kind != "accumulator":
        return Edit(
            kind, value, sites, tuple(s for s in sites if str(s) in text.upper().split(","))
        )
    if wrong := [s for s in sites if s not in of.PRODUCTS]:
        raise ValueError(f"{wrong[0]} is no sum of products; those are {' '.join(of.PRODUCTS)}")
    return Edit(kind, value, sites)


def _check_value(of: type[BasePlan], kind: str, name: str, value: str) -> None:
    """Raise ValueError for a value that the kind does not have."""
    try:
        kinds_of(of)[kind].spell(value)
    except ValueError as error:
        is_told = f"'{value}'" in str(error) and kind in ("format", "accumulator", "mode")
        said = str(error) if is_told else f"{name}={value}: {error}"
        raise ValueError(said + ("; the event is EXP" if name == "exp" else "")) from None


def _stage(of: type[BasePlan], name: str) -> tuple[SiteBase, ...]:
    """Return the sites of a stage, or () if the name is not a stage."""
    return tuple(s for s in of.SITES if s.stage == name.lower())


def _unknown(
    of: type[BasePlan], name: str, others: Sequence[str] = (), plan: BasePlan | None = None
) -> str:
    """Return the message about an unknown WHAT, with the nearest name among sites and kinds.

    The sites are those that the plan reaches, or, without one, those that most plans have.
    """
    head, _, tail = name.partition(".")
    if tail.lower() == "step":
        return (
            f"'{name}': the steps of a sum go with its order; write {head}.sum=ORDER:FORMAT, as in"
            " PV.sum=ascending:bf16"
        )
    if tail and head.upper() in of.SITES.__members__:
        words = [f"{head}.{kind}" for kind in ("sum", "mode")]
        return unknown("word", name, words, "; or the site alone, as in " + head + "=bf16")
    hint = "; SITE.sum and SITE.mode too"
    if isinstance(plan, Plan):
        sites: list[SiteBase] = [s for s in Site if absent(plan, s) is None]
    else:
        sites = [s for s in of.SITES if not s.instead]
    return unknown("site", name, (*sites, *STAGES, *kinds_of(of), *others), hint)
