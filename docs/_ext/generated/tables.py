"""Tables of the reference, made from the code: formats, events, plans, operations, sweeps."""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path

from roundscope.attention.grammar.differences import differences
from roundscope.attention.grammar.roundings import accumulator_words, spelled
from roundscope.attention.places import absent
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import PRESETS, fp32
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.plans.twins import TWINS, WHOLE, Twin
from roundscope.attention.sites import (
    OF_BIAS,
    OF_CAP_APART,
    OF_CHAIN,
    OF_SINKS,
    OF_SOFTCAP,
    PRODUCTS,
    Site,
)
from roundscope.emu.blocks.format import BLOCK_NAMED, BlockFormat
from roundscope.emu.formats.format import NAMED, Format
from roundscope.emu.roundings.modes import rounding
from roundscope.emu.sums.accumulator import Accumulator
from roundscope.emu.sums.aligned import Alignment
from roundscope.emu.sums.matrix_cores import ExactChunk, FlushedPairs, MatrixCore
from roundscope.emu.sums.tensor_cores import ARCHITECTURES
from roundscope.events.choice import Choice
from roundscope.events.plan import BasePlan
from roundscope.events.sites import SiteBase
from roundscope.experiments.questions.kernels.passport import page, record
from roundscope.experiments.questions.kernels.passport.compare import steps
from roundscope.operations import OPERATIONS, Operation
from roundscope.operations.operation import Shape
from roundscope.tools.look.plans import told
from roundscope.tools.sweep.conditions.names_view import data as sweep_data

from .cells import code, codes, escaped, paragraphs, table

STAGES = {
    "inputs": "Inputs",
    "forward": "The forward",
    "backward": "The backward",
}
OVERFLOWS = {"inf": "infinity", "nan": "NaN", "saturate": "the largest number"}
WIDTHS = (64, 128)  # features of a head for which the tiles of a twin are listed
FEW = 4  # plans that a cell names; of more it gives the number
SHAPES = {
    Shape.ROWS: "(..., F), a row for each token",
    Shape.NUMBERS: "(...), a number for each token",
    Shape.SHARED: "a parameter, the same for all tokens",
}


def number_formats() -> str:
    """Return the table of number formats."""
    heads = (
        "format",
        "bits",
        "exponent bits",
        "significand bits, p",
        "largest",
        "smallest normal",
        "smallest subnormal",
        "also has",
        "overflow gives",
    )
    return table(heads, map(_format_row, NAMED.values()))


def _format_row(f: Format) -> list[str]:
    subnormal = f.zero and f.precision > 1
    return [
        code(f.name),
        f"{f.bits}",
        f"{f.bits - int(f.signed) - (f.precision - 1)}",
        f"{f.precision}",
        _number(f.max_finite),
        _power(f.min_normal),
        _power(f.min_positive) if subnormal else "none",
        ", ".join(["infinity"] * f.inf + ["NaN"] * f.nan),
        OVERFLOWS[rounding(f).overflow],
    ]


def _number(x: float) -> str:
    return f"{x:g}" if x < 1e6 else f"{x:.4g}"


def _power(x: float) -> str:
    return f"2<sup>{math.frexp(x)[1] - 1}</sup>".replace("-", "−")


def block_formats() -> str:
    """Return the table of block formats."""
    heads = ("format", "elements", "a block", "scale of a block", "rule", "bits a number")
    return table(heads, (_block_row(name, f) for name, f in BLOCK_NAMED.items()))


def _block_row(name: str, f: BlockFormat) -> list[str]:
    scale = code(f.scale.name) + (", and a binary32 scale of the whole array" if f.tensor else "")
    tile = f"{f.rows} x {f.size}" if f.rows > 1 else f"{f.size}"
    return [
        code(name),
        code(f.element.format.name),
        f"{tile} numbers",
        scale,
        code(f.rule),
        f"{f.bits:.4g}",
    ]


def tensor_cores() -> str:
    """Return the table of tensor cores."""
    rows = []
    for name, core in ARCHITECTURES.items():
        sums = [(operand, Accumulator.tensor_core(name, operand)) for operand in core.operands]
        rows.append(
            [
                code(name),
                codes(core.operands),
                ", ".join(f"{s.chunk} of {operand}" for operand, s in sums),
                ", ".join(f"{_kept(s.alignment)} of {operand}" for operand, s in sums),
            ]
        )
    return table(("architecture", "reads", "products at a time", "fraction bits kept"), rows)


def _kept(kept: Alignment | MatrixCore | None) -> str:
    """Return how many fraction bits are kept, with the words of a matrix core of its own kind."""
    if isinstance(kept, ExactChunk):
        return "all"
    return "23, rounded," if isinstance(kept, FlushedPairs) else str(kept.bits)


def sites() -> str:
    """Return the tables of rounding events, one for each stage."""
    plans = {name: Plan.preset(name) for name in (*PRESETS, *TWINS)}
    common = plans["fa2-bf16"]
    heads = ("event", "what is rounded", "one number for each", "in `fa2-bf16`", "plans with it")
    parts = []
    for stage, title in STAGES.items():
        rows = [
            [
                code(s),
                _formula(s, PRODUCTS),
                _axes(s),
                _rounding(common, s),
                _having(s, plans),
            ]
            for s in Site
            if s.stage == stage
        ]
        parts += [f"## {title}\n", table(heads, rows)]
    return "\n".join(parts)


def _formula(site: SiteBase, products: Iterable[SiteBase]) -> str:
    return escaped(site.formula) + (" (a sum of products)" if site in products else "")


def _axes(site: SiteBase) -> str:
    singular = {"queries": "query", "the call": "call"}
    return " and ".join(singular.get(a, a.removesuffix("s")) for a in site.axes.split(" x "))


def _rounding(plan: Plan, site: Site) -> str:
    return "" if absent(plan, site) else code(spelled(plan.event(site)))


def _having(site: Site, plans: dict[str, Plan]) -> str:
    if site in OF_SOFTCAP:
        return "calls with a softcap"
    for word, sites in (("capped_by=chain", OF_CHAIN), ("cap_apart=true", OF_CAP_APART)):
        if site in sites:
            return f"calls with a softcap, `{word}`"
    if site in OF_SINKS:
        return "calls with sinks"
    if site in OF_BIAS:
        return "calls with a bias"
    names = [name for name, plan in plans.items() if absent(plan, site) is None]
    if len(names) == len(plans):
        return "all"
    return codes(names) if len(names) <= FEW else f"{len(names)} of {len(plans)}"


def site_count() -> str:
    """Return how many events there are, as a sentence."""
    return f"There are {len(Site)} events, and {len(PRODUCTS)} of them are sums of products.\n"


def choices() -> str:
    """Return the tables of the words that set a field of a plan, one for each group."""
    groups: dict[str, list[list[str]]] = {}
    for own in CHOICES.values():
        if own.words:
            row = [*_choice_row(own), code(own.example)]
            groups.setdefault(own.group, []).append(row)
    heads = ("word", "values", "the field", "example")
    return "\n".join(f"#### {title}\n\n{table(heads, rows)}" for title, rows in groups.items())


def _choice_row(own: Choice) -> list[str]:
    source = f" Source: {own.source}." if own.source else ""
    return [code(f"{own.name}="), _words(own), escaped(own.doc + source)]


def _words(own: Choice) -> str:
    """Return the values of a choice in words, or some of those of a number."""
    return codes(own.words) if own.values else f"such as {codes(own.words)}"


def preset_list() -> str:
    """Return the table of published plans."""
    rows = [
        [_link(name), escaped(re.split(r"(?<=\.)\s", told(make))[0])]
        for name, make in PRESETS.items()
    ]
    return table(("plan", "what it is"), rows)


def twin_list() -> str:
    """Return the table of plans of real kernels, with the kernel that each was compared with."""
    rows = [
        [_link(name), escaped(twin.source), codes(twin.kernels)] for name, twin in TWINS.items()
    ]
    return table(("plan", "compared with", "the kernel's name in `check` and `identify`"), rows)


def preset_sections() -> str:
    """Return a section for each published plan."""
    return _sections(PRESETS)


def twin_sections() -> str:
    """Return a section for each plan of a real kernel."""
    return _sections({name: twin.make for name, twin in TWINS.items()})


def _link(name: str) -> str:
    return f"[`{name}`](#plan-{name})"


def _sections(makers: Mapping[str, Callable[[], Plan]]) -> str:
    return "\n".join(
        f"(plan-{name})=\n### {name}\n\n{paragraphs(told(make))}\n\n{_plan_table(name)}"
        for name, make in makers.items()
    )


def _plan_table(name: str) -> str:
    plan = Plan.preset(name)
    words = [w for w in differences(plan, fp32()) if w.partition("=")[0] not in _EVENTS]
    rows = [
        [f"rounded to {code(r)}", codes(names)]
        for r, names in _events(plan, (s for s in Site if absent(plan, s) is None)).items()
    ]
    rows += [[f"added up {code(a)}", codes(names)] for a, names in _sums(plan).items()]
    if words:
        rows.append(["other choices", codes(words)])
    if name in TWINS:
        rows += [["tiles", _tiles(TWINS[name])], ["compared with", escaped(TWINS[name].source)]]
    return table(("", ""), rows)


def _events(plan: BasePlan, sites: Iterable[SiteBase]) -> dict[str, list[str]]:
    """Return the sites that round alike, by their rounding in words."""
    found: dict[str, list[str]] = {}
    for site in sites:
        found.setdefault(spelled(plan.event(site)), []).append(site)
    return found


def _sums(plan: BasePlan) -> dict[str, list[str]]:
    """Return the sites that are added up alike, by their accumulator in words."""
    found: dict[str, list[str]] = {}
    for site in plan.PRODUCTS:
        found.setdefault(accumulator_words(plan.accumulator(site)), []).append(site)
    return found


_EVENTS = {*Site, *(f"{site}.sum" for site in PRODUCTS)}


def _tiles(twin: Twin) -> str:
    """Return the tiles for each width, apart for causal calls where those have others."""
    told = []
    for width in WIDTHS:
        full, cut = (
            f"{q} queries x {'all' if k >= WHOLE else k} keys"
            for q, k in (twin.tiles(width, is_cut) for is_cut in (False, True))
        )
        told.append(full if full == cut else f"{full}, or {cut} with causality or a window,")
    return "; ".join(
        f"{own} with {width} features" for width, own in zip(WIDTHS, told, strict=True)
    )


def operation_list() -> str:
    """Return the table of operations."""
    rows = [
        [
            f"[`{name}`](#operation-{name})",
            codes(v.name for v in own.inputs),
            codes(v.name for v in own.outputs),
            "yes" if own.backward else "no",
            codes(_published(own)),
        ]
        for name, own in OPERATIONS.items()
    ]
    return table(("operation", "reads", "returns", "gradients", "plans of implementations"), rows)


def operation_sections() -> str:
    """Return a section for each operation, or for those that share their events and plans."""
    groups = groupby(OPERATIONS.values(), key=lambda own: own.plan)
    return "\n".join(_operation_section(list(owns)) for _, owns in groups)


def _operation_section(owns: list[Operation]) -> str:
    """Return the section of operations that have the same sites, choices and published plans."""
    plan, names = owns[0].plan, [own.name for own in owns]
    about = paragraphs(inspect.getdoc(inspect.getmodule(owns[0].forward)))
    arrays = [
        [
            code(own.name),
            code(v.name),
            "optional " * v.optional + kind,
            SHAPES[v.shape],
            code(v.site or ""),
        ]
        for own in owns
        for kind, values in (("input", own.inputs), ("output", own.outputs))
        for v in values
    ]
    events = [[code(s), _formula(s, plan.PRODUCTS), _axes(s), s.stage] for s in plan.SITES]
    made = {name: make() for name, make in _published(owns[0]).items()}
    return "\n".join(
        [
            *(f"(operation-{name})=" for name in names),
            f"## {', '.join(names)}\n\n{about}\n",
            table(("operation", "array", "kind", "shape", "rounded by"), arrays),
            *(_settings(own) for own in owns if own.settings),
            f"### Events of {names[0]}\n",
            table(("event", "what is rounded", "one number for each", "stage"), events),
            _own_choices(plan, names[0]),
            f"### Plans of {names[0]}\n",
            table(
                ("plan", "what it is", "compared"),
                ([code(n), *_told(make)] for n, make in _published(owns[0]).items()),
            ),
            table(
                ("plan", "not in `fp32`", "sums not `ascending`", "choices"),
                map(_made, made.values()),
            ),
        ]
    )


def _published(own: Operation) -> dict[str, Callable[[], BasePlan]]:
    """Return what makes the plans of implementations, without those that each operation has."""
    return {n: make for n, make in own.published.items() if n not in ("exact", "fp32")}


def _settings(own: Operation) -> str:
    """Return what the equations of an operation say of its settings, and their defaults."""
    said = (inspect.getdoc(own.forward) or "").partition("\nsettings: ")[2].partition("\n\n")[0]
    words = codes(f"{name}={value!r}" for name, value in own.settings.items())
    return f"Settings of {code(own.name)}: {escaped(said)} Defaults: {words}.\n"


def _own_choices(plan: type[BasePlan], name: str) -> str:
    rows = list(map(_choice_row, plan.choices().values()))
    heads = ("word", "values", "the field")
    return f"### Choices of {name}\n\n{table(heads, rows)}" if rows else ""


def _told(make: Callable[[], BasePlan]) -> list[str]:
    """Return what the docstring of a plan says of its source, and of what it was compared with."""
    what, _, compared = told(make).partition("\n\n")
    return [escaped(what), escaped(compared)]


def _made(plan: BasePlan) -> list[str]:
    """Return a row of what a plan has that a plan in binary32 does not have."""
    fields = {name: getattr(plan, name) for name in plan.choices()}
    return [
        code(plan.name),
        _lists(_events(plan, plan.SITES), "fp32"),
        _lists(_sums(plan), "ascending"),
        codes(
            f"{name}={str(value).lower()}"
            for name, value in fields.items()
            if value != plan.choices()[name].default
        ),
    ]


def _lists(names: Mapping[str, list[str]], usual: str) -> str:
    return "; ".join(f"{code(word)}: {codes(own)}" for word, own in names.items() if word != usual)


def sweep_axes() -> str:
    """Return the tables of axes of a sweep."""
    axes = sweep_data()["axes"]
    groups = dict.fromkeys(axis["group"] for axis in axes.values())
    parts = []
    for group in groups:
        rows = [
            [code(name), escaped(a["meaning"]), code(str(a["default"]).lower()), _values(a)]
            for name, a in axes.items()
            if a["group"] == group
        ]
        parts += [
            f"### Axes of the {group}\n",
            table(("axis", "meaning", "default", "values"), rows),
        ]
    return "\n".join(parts)


def _values(axis: dict[str, str]) -> str:
    words = axis["values"].split(" ")
    is_list = len(words) > 1 and not {"or", "a", "see"} & {word.strip(",") for word in words}
    return codes(words) if is_list else escaped(axis["values"])


def sweep_inputs() -> str:
    """Return the table of inputs: families and files."""
    rows = [[code(name), escaped(text)] for name, text in sweep_data()["inputs"].items()]
    return table(("input", "the tensors"), rows)


def sweep_metrics() -> str:
    """Return the table of what is measured of a cell."""
    return _meanings("metrics")


def sweep_site_metrics() -> str:
    """Return the table of what is measured of an event."""
    return _meanings("site_metrics")


def _meanings(part: str) -> str:
    rows = [[code(name), escaped(text)] for name, text in sweep_data()[part].items()]
    return table(("metric", "meaning"), rows)


def passport_steps() -> str:
    """Return the table of the steps between releases that changed bits."""
    found = _passport()
    rows = [
        [code(kernel), kind, on, *map(escaped, more)]
        for kernel, kind, on, *more in page.step_rows(found)
    ]
    return f"{escaped(page.answer(found))}\n\n{table(page.STEPS[0], rows)}"


def passport_kernels() -> str:
    """Return the table of kernels with their releases."""
    rows = [
        [code(kernel), kind, on, *map(escaped, more)]
        for kernel, kind, on, *more in page.kernel_rows(_passport())
    ]
    return table(page.KERNELS, rows)


@cache
def _passport() -> page.Compared:
    """Return the passport of record, compared from release to release."""
    whole = record.read(Path(__file__).parents[3] / "docs" / "runs" / "passport.json")
    return page.Compared(old=whole, new=whole, steps=steps(whole, whole))
