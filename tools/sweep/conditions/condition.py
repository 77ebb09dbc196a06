"""Makes a `Cell` of a point of a sweep.

Defaults are filled in, the plan is built, the injection is placed, and errors name the parameter.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from roundscope.attention.arguments import served_given
from roundscope.attention.grammar.changes import Edit, words_of
from roundscope.attention.grammar.edits import KINDS, apply
from roundscope.attention.grammar.injections import check_injection, injection_of
from roundscope.attention.grammar.roundings import Place, places_of, without_mode
from roundscope.attention.injection import Injection
from roundscope.attention.places import Sizes, check_place, occurs
from roundscope.attention.plans.named import note_on_types
from roundscope.attention.plans.plan import Plan
from roundscope.attention.settings import Options, setup_of
from roundscope.attention.sites import Site, site_named
from roundscope.emu.roundings.modes import RoundingMode
from roundscope.events.injection import FlipBit
from roundscope.events.plan import check_factors, renamed
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.sweep.conditions.axes import axis_named, typed
from roundscope.tools.sweep.conditions.cell import (
    DEFAULTS,
    OF_CALL,
    OPTIONAL,
    PER_SITE,
    Cell,
    Value,
)
from roundscope.tools.sweep.conditions.inputs import FileSizes, check_fits, sizes_of, told

Settings = tuple[tuple[str, Value], ...]
# values that leave the plan as it is; but stabiliser=none changes it
UNCHANGED = ("preset", "all", "none", False)
# a call has these beside its plan, whatever the plan says
ORDER = tuple(kind for kind in KINDS if kind not in OF_CALL)
_PLACES = {site: i for i, site in enumerate(Site)}  # in the algorithm


def cell_of(point: Mapping[str, Value]) -> Cell:
    """Return the cell of a point of `axes.each_point`.

    What the point leaves out has its default. S follows T. Where the input is a file, the sizes
    and what the call had beside tensors follow the file; what the point gives comes before it, and
    the cell's note says so. Raises UsageError naming parameter, value and repair.
    """
    given = _given(point)
    file = sizes_of(str(given.get("input", DEFAULTS["input"])))
    parameters, note = _complete(given, file), ""
    if file is not None:
        sizes = {name: int(parameters[name]) for name in ("T", "S", "N", "H")}
        check_fits(str(parameters["input"]), file, sizes, bool(parameters["backward"]))
        is_cut = (parameters["T"], parameters["S"]) != (file.T, file.S)
        if is_cut and parameters.get("alignment") == "bottom-right":  # counted from the last key
            repair = "a cut of a call aligned bottom-right is another call; leave T and S out, or"
            raise bad("T", parameters["T"], f"{repair} give alignment=top-left")
    settings = settings_of(parameters)
    try:
        plan = plan_of(settings, int(parameters["seed"]))
    except ValueError as error:
        words = " ".join(f"{name}={value}" for name, value in settings)
        hint = "" if "preset" in given else _other_preset(settings)
        raise UsageError(f"{words}: {error}{hint}") from None
    if file is not None:
        note = told(str(parameters["input"]), file, parameters, note_on_types(plan, file.types))
    run = _served(parameters, plan)
    _check_named(parameters, run)
    _check_runs(parameters, run, file, settings)
    inject = _injections(parameters, run, file)
    return Cell(
        parameters=tuple(parameters.items()),
        plan=plan,
        inject=inject,
        content="" if file is None else file.content,
        note=note,
    )


def _served(parameters: Mapping[str, Value], plan: Plan) -> Plan:
    """Return the plan as it runs in the cell's call: with its window, softcap and sinks."""
    window, softcap = parameters.get("window"), parameters.get("softcap")
    heads = int(parameters["N"])
    if (window, softcap, parameters.get("sinks")) == (None, None, None):
        return plan
    return served_given(
        plan,
        None if window is None else int(window),
        None if softcap is None else float(softcap),
        np.zeros(heads) if "sinks" in parameters else None,
        heads,
    )


class CannotRunError(UsageError):
    """A cell that can be written down, and that attention would refuse to compute."""


def _check_runs(
    parameters: Mapping[str, Value], plan: Plan, file: FileSizes | None, settings: Settings
) -> None:
    """Raise CannotRunError if attention would refuse the cell, for the reason that it would give.

    settings: those of the plan; the message names another preset that can have them
    """
    heads, features = int(parameters["N"]), int(parameters["H"])
    groups, width = (1, features) if file is None else (file.N // file.key_heads, file.width)
    sizes = (
        int(parameters.get("batch", 1)),
        *(int(parameters[name]) for name in ("T", "S")),
        *(heads, max(1, heads // groups), features, width),
    )
    call = tuple((name, parameters.get(name)) for name in ("block_q", "block_k", "causal", "scale"))
    try:
        _check_call(plan, sizes, call, parameters.get("mask"))
    except ValueError as error:
        words = [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in parameters.items()
            if DEFAULTS.get(name) != value and name not in ("seed", "S")
        ]
        hint = _other_preset(settings) if _is_of_factors(plan) else ""
        raise CannotRunError(f"{' '.join(words) or 'the defaults'}: {error}{hint}") from None


def _is_of_factors(plan: Plan) -> bool:
    """Return whether a tensor core of the plan cannot read what it is given."""
    try:
        check_factors(plan)
    except ValueError:
        return True
    return False


@functools.lru_cache(maxsize=4096)
def _check_call(
    plan: Plan, sizes: tuple[int, ...], call: tuple[tuple[str, Value | None], ...], mask: Value
) -> None:
    """Raise ValueError where attention refuses a call with a plan, tiles and tensors of sizes.

    sizes: batch entries, queries, keys, heads, key heads, features of q and k, features of v
    """
    batch, queries, keys, heads, key_heads, features, width = sizes
    check_factors(plan)
    told, none = dict(call), np.float32(0.0)
    scale = str(told["scale"])
    options = Options(
        block_q=int(told["block_q"] or 0),
        block_k=int(told["block_k"] or 0),
        is_causal=bool(told["causal"]),
        scale=None if scale in ("None", "none", "default") else float(scale),
        mask=None if mask in (None, "none") else np.True_,
    )
    setup_of(
        np.broadcast_to(none, (batch, queries, heads, features)),
        np.broadcast_to(none, (batch, keys, key_heads, features)),
        np.broadcast_to(none, (batch, keys, key_heads, width)),
        plan,
        options,
    )


def _other_preset(settings: Settings) -> str:
    """Return advice for changes that a preset, which is a kernel, cannot have.

    It is empty if the preset of fa2's roundings without that kernel's choices cannot either.
    """
    try:
        check_factors(plan_of((("preset", "fa2-bf16"), *settings[1:]), 0))
    except ValueError:
        return ""
    own = DEFAULTS["preset"]
    default = f"preset={own} is the default, and " if settings[0][1] == own else ""
    return f"; {default}preset=fa2-bf16 can have that"


def _given(point: Mapping[str, Value]) -> dict[str, Value]:
    """Return the point's own parameters in one spelling; `tile` and FORMAT:MODE become two each."""
    given = {(known := axis_named(name)): typed(known, value) for name, value in point.items()}
    if "tile" in given:
        if both := [name for name in ("block_q", "block_k") if name in given]:
            repair = f"sets block_q and block_k, and {both[0]} is given too; choose one"
            raise bad("tile", given["tile"], repair)
        given["block_q"] = given["block_k"] = given.pop("tile")
    for name, value in tuple(given.items()):
        if name.partition(".")[0] == "format" and ":" in str(value):
            # O=bf16:stochastic is format.O=bf16 and mode.O=stochastic: one condition
            given[name], mode = without_mode(str(value))
            other = name.replace("format", "mode", 1)
            if mode and given.get(other, "preset") != "preset":
                repair = f"names a mode, and {other}={given[other]} is given too; choose one"
                raise bad(name, str(value), repair)
            given |= {other: mode} if mode else {}
    return given


def _complete(given: dict[str, Value], file: FileSizes | None) -> dict[str, Value]:
    """Return DEFAULTS, those in effect of OPTIONAL, those of sites in the algorithm's order."""
    sizes: dict[str, Value] = {}
    if file is not None:
        sizes = {name: getattr(file, name) for name in ("T", "S", "N", "H")}
    # a file of cross-attention keeps its own keys
    if "T" in given and (file is None or file.T == file.S):
        sizes["S"] = given["T"]
    if file is not None and file.causal is not None:
        sizes["causal"] = file.causal
    whole = {name: given.get(name, sizes.get(name, default)) for name, default in DEFAULTS.items()}
    more = {name: x for name, x in given.items() if name not in (*DEFAULTS, *OF_CALL)}
    more |= _call(given, file)
    return whole | {name: more[name] for name in sorted(more, key=_rank)}


def _call(given: Mapping[str, Value], file: FileSizes | None) -> dict[str, Value]:
    """Return those of OF_CALL that differ from a call's usual: as given, else as the file says."""
    said = {} if file is None else file.says
    found: dict[str, Value] = {}
    for name, none in OF_CALL.items():
        own, asked = said.get(name, none), str(given.get(name, "default"))
        value = own if asked == "default" else asked
        if name == "scale":
            none = said.get(name, "none")
        elif name == "batch" and int(value) > int(own):
            of = "is drawn: vary the seed" if file is None else f"has {own}; ask for that or less"
            raise bad("batch", value, f"input {given.get('input', DEFAULTS['input'])} {of}")
        if value not in (none, "default"):
            found[name] = value
    return found


def _rank(name: str) -> tuple[int, int]:
    kind, _, site = name.partition(".")
    if not site:
        return -1, OPTIONAL.index(name)
    return PER_SITE.index(kind), _PLACES[site_named(site)]


def _check_named(parameters: Mapping[str, Value], plan: Plan) -> None:
    """Raise UsageError for a parameter without effect: of an event that the plan never reaches."""
    for name, value in parameters.items():
        if (name not in ("only", "but") and "." not in name) or not changes_plan(name, value):
            continue
        kind, _, site = name.partition(".")
        places = [(site_named(site), kind == "accumulator")] if site else places_of(str(value))
        for place in places:
            try:
                _check_reached(place, plan, bool(parameters["backward"]))
            except ValueError as error:
                raise UsageError(f"{name} '{value}': {error}") from None


def _check_reached(place: Place, plan: Plan, backward: bool) -> None:
    site, step = place
    if not step:
        occurs(plan, site)
    if not backward and (site.stage == "backward" or site is Site.DO):
        raise ValueError(
            f"{site} belongs to the backward, which does not run; give --backward or choose a"
            " forward site"
        )


def _injections(
    parameters: Mapping[str, Value], plan: Plan, file: FileSizes | None
) -> tuple[Injection, ...]:
    """Return the injection, with the cell's seed, as the final plan reads it; checked."""
    text = str(parameters["injection"])
    if text == "none":
        return ()
    try:
        placed = injection_of(text, int(parameters["seed"]))
        check_injection(placed, plan)
    except ValueError as error:
        hint = "on the command line a comma ends a value; one with commas goes into a .toml file"
        more = "" if ":" in text else f" ({hint})"
        raise UsageError(f"injection '{text}': {error}{more}") from None
    try:
        _check_reached((placed.site, False), plan, bool(parameters["backward"]))
    except ValueError as error:
        raise bad("injection", text, str(error)) from None
    queries, keys, heads, features = (int(parameters[name]) for name in ("T", "S", "N", "H"))
    groups = 1 if file is None else file.N // file.key_heads
    sizes = Sizes(
        batch=int(parameters.get("batch", 1)),
        queries=queries,
        keys=keys,
        heads=heads,
        key_heads=max(1, heads // groups),
        features=features,
        value_features=features if file is None else file.width,
        block_q=int(parameters["block_q"]),
        block_k=keys if plan.normalise_first else int(parameters["block_k"]),
    )
    try:
        check_place(placed, sizes, "the cell")
    except ValueError as error:
        raise UsageError(f"injection {error}") from None
    if isinstance(placed.what, FlipBit) and parameters["engine"] == "xla":
        repair = "engine xla takes formats as data and cannot flip bits; use engine=numpy"
        raise bad("injection", text, repair)
    return (placed,)


def settings_of(parameters: dict[str, Value]) -> Settings:
    """Return the parameters that make up the plan: preset, then changes in the order they apply."""
    changes = [
        (name, value)
        for name, value in parameters.items()
        if name.partition(".")[0] in ORDER and changes_plan(name, value)
    ]
    changes.sort(key=lambda c: (ORDER.index(c[0].partition(".")[0]), "." in c[0]))
    return (("preset", parameters["preset"]), *changes)


def changes_plan(name: str, value: Value) -> bool:
    """Return False for a parameter whose value means "as the preset says"."""
    return value not in UNCHANGED or (name, value) == ("stabiliser", "none")


@functools.lru_cache(maxsize=4096)
def plan_of(settings: Settings, seed: int) -> Plan:
    """Return the plan of `settings_of`, seeded. Raises ValueError for settings of no plan."""
    plan = _built(settings)
    every = (*plan.roundings, *(a.step for a in plan.accumulators))
    stochastic = any(r.mode == RoundingMode.STOCHASTIC for r in every)
    return plan.seeded(seed) if stochastic else plan


@functools.lru_cache(maxsize=4096)
def _built(settings: Settings) -> Plan:
    plan = preset = Plan.preset(str(settings[0][1]))
    words = []
    for name, value in settings[1:]:
        kind, _, site = name.partition(".")
        edit = Edit(kind, str(value), (site_named(site),) if site else ())
        plan = apply(plan, kind, edit.value, edit.sites)
        words += words_of(edit, plan)
    return plan if plan == preset else replace(plan, name=renamed(preset.name, *words))
