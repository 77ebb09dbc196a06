"""What `roundscope check` reports: the answer, the reasons, a picture, and every question."""

import math
import sys
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from roundscope.attention.testing import cases
from roundscope.attention.testing.cases import Answer
from roundscope.attention.testing.comparison import Comparison, Finding, State
from roundscope.attention.testing.errors import Margins
from roundscope.attention.testing.exact import RESULTS
from roundscope.emu.stats.comparison import share_words
from roundscope.tools.check.findings import MARGINS, QUESTIONS, Findings
from roundscope.tools.check.options import CheckOptions, call_of, command_of
from roundscope.tools.identify.adapters import plain_name
from roundscope.tools.identify.identify import Identified, Kind
from roundscope.tools.report.model import (
    Case,
    Cell,
    Code,
    Folded,
    Mood,
    Opening,
    Part,
    Picture,
    Points,
    Report,
    Section,
    Table,
    Text,
    notes,
)
from roundscope.tools.report.pictures import BAND, INK, NARROW, QUIET, UP, WIDTH
from roundscope.tools.report.terminal import plain
from roundscope.tools.report.wording import many
from roundscope.tools.results.folder import request_of
from roundscope.tools.results.machine import command_line, device, has_gpu, versions

LIBRARIES = ("jax", "jaxlib", "torch", "triton", "transformers")
# options that the record has in another form, or that say where and how results are written
WRITTEN = ("call", "forward", "out", "junit", "json")
SCHEMA = "roundscope-check-1"
LONG = 50000  # plans of a search that may take long
LOOK = (
    "Next: look longer for the rounding that does this (or does it claim another plan? Name it with"
    " --claims)"
)
MANY = 6  # reasons that are shown
READ = (
    "A case is one question about the kernel on one kind of inputs. It passes, fails,"
    " or has a note: something worth knowing that is no failure. The plan is an emulated attention"
    " whose every rounding is known; the kernel fails where it is worse than its plan, or where its"
    " results depend on how it is called. Red rows failed."
)


def report(found: Findings) -> Report:
    """Return the report on a kernel: the page, what the terminal shows, JSON and test cases."""
    why, command = next_step(found)
    mood: Mood = "good" if found.is_fine else "bad"
    told = {"explanation", "invariance", "edges"}  # tests whose notes the terminal shows
    cause, said = _spread(found), how(found)
    reasons = [f"{case.test}, {case.name}: {case.sentence}" for case in cause]
    if (more := len(found.failed) - len(cause)) > 0:
        reasons.append(f"{more} more below")
    used_here = ", ".join(f"{name} {version}" for name, version in used().items())
    measured = notes(READ, *said, f"{used_here}; {where()}.", f"{found.seconds:.0f} s.")
    compared = found.compared if found.compared and found.compared.findings else None
    drawn = [] if compared is None else [(picture(compared, MARGINS), narrow_picture(compared))]
    return Report(
        title=f"check {found.name} against {found.asked.plan}",
        heading=f"{found.name} against {found.asked.plan}",
        about=f"{found.about}.",
        opening=Opening(found.sentence, number(found), command, why, mood),
        parts=[
            *([Points(reasons)] if reasons else []),
            *notes(*found.notes),
            Folded("How to read this page, and how it was measured", measured),
            _tests(found),
            *(Picture("How does it differ from the plan?", x, CAPTION, y) for x, y in drawn),
            *(
                Section(f"{test.capitalize()}: {question}", [_answers(found.of(test))])
                for test, question in QUESTIONS.items()
                if found.of(test)
            ),
            Section("What was run", [Code(" ".join(command_line()))]),
        ],
        brief=[
            Text(found.sentence, mood),
            Points(reasons),
            *map(Text, found.notes),
            Text(f"{why}:", command=command),
            _tests(found),
            *([] if compared is None else _sizes(compared)),
            *(
                Text(f"{c.test}, {c.name}: {c.sentence}")
                for c in found.cases
                if (c.answer is Answer.NOTE and c.test in told)
                or (c.answer is Answer.PASS and c.test == "explanation")
            ),
            Text(said[0], "note"),
        ],
        data=document(found),
        cases=[
            Case(
                f"{case.test}: {case.name}",
                case.seconds,
                failure=case.sentence if case.answer is Answer.FAIL else None,
                skipped=case.sentence if case.answer is Answer.NOT_RUN else None,
            )
            for case in found.cases
        ],
    )


def request(options: CheckOptions) -> str:
    """Return a digest of what was asked, which tells whose folder a report is in."""
    return request_of(asked(options))


def asked(options: CheckOptions) -> dict[str, Any]:
    """Return what was asked as data: the options, but for where results are written."""
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in WRITTEN}
    return given | {
        "claims": options.claimed,
        "is_causal": options.is_causal,
        "backward": options.backward,
        "only": options.tests,
        "margins": MARGINS,
        "overrides": replace(options.overrides, is_causal=None),
    }


def document(found: Findings) -> dict[str, Any]:
    """Return the contents of check.json as data."""
    c = found.compared
    data: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "request": request(found.asked),
            "command": command_line(),
            "versions": used(),
            "device": where(),
            "name": found.name,
            "about": found.about,
            "asked": asked(found.asked),
            "passed": found.is_fine,
            "sentence": found.sentence,
            "notes": found.notes,
            "cases": found.cases,
            "compared": c
            and {
                "plan": c.plan,
                "false_alarm": c.false_alarm,
                "heads": c.heads,
                "looks": c.looks,
                "equal_bits": c.equal,
                "undecided": c.undecided,
                "findings": c.findings,
                "gross": c.gross,
            },
            "seconds": round(found.seconds, 1),
        }
    )
    return data


def used() -> dict[str, str]:
    """Return the versions of Python and of the packages that took part, by name."""
    loaded = {n: str(sys.modules[n].__version__) for n in LIBRARIES if n in sys.modules}
    return versions("numpy") | loaded


def where() -> str:
    """Return the name of the GPU on which PyTorch or JAX ran, or else of the processor."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return device("xla" if "jax" in sys.modules and has_gpu() else "numpy")


def _spread(found: Findings) -> list[cases.Case]:
    """Return the failures to show, some of every test."""
    by_test = [[c for c in found.failed if c.test == test] for test in QUESTIONS]
    shown: list[cases.Case] = []
    turn = 0
    while len(shown) < MANY and any(turn < len(each) for each in by_test):
        shown += [each[turn] for each in by_test if turn < len(each)]
        turn += 1
    order = {id(case): i for i, case in enumerate(found.failed)}
    return sorted(shown[:MANY], key=lambda case: order[id(case)])


def _tests(found: Findings) -> Table:
    """Return a row for each test: its name, how many of each answer, seconds, its question."""
    rows, marked = [], []
    for test, question in QUESTIONS.items():
        if asked := found.of(test):
            passed, noted, failed, skipped = (
                str(sum(c.answer is a for c in asked) or "") for a in Answer
            )
            name = Cell(test, "bad" if failed else "good")
            seconds = f"{sum(c.seconds for c in asked):.1f}"
            rows.append((name, Cell(failed, "bad"), passed, noted, skipped, seconds, question))
            marked.append(bool(failed))
    return Table(
        ("test", "fail", "pass", "note", "not run", "seconds", "question"),
        rows,
        marked,
        name="answers",
        below=(6,),
    )


def _answers(asked: list[cases.Case]) -> Table:
    rows = [(c.name, str(c.answer), c.sentence) for c in asked]
    failed = [c.answer is Answer.FAIL for c in asked]
    return Table(("", "answer", "what was found"), rows, failed, name="answers")


def _sizes(compared: Comparison) -> list[Part]:
    """Return the table of rms errors, also in units of the plan's, and the shares of equal bits."""
    names = [n for n in RESULTS if n in compared.equal]
    bad = {(f.inputs, f.result) for f in compared.alarms if f.statistic == "rms"}
    bad |= {(g.inputs, g.result) for g in compared.gross}
    sizes = [f for f in compared.findings if f.statistic == "rms"]
    cells = {}
    for f in sizes:
        ratio = f.kernel / f.plan if f.plan else 1.0
        if f.plan == math.inf:
            ratio = math.exp(f.evidence.mean)
        place = f.inputs, f.result
        cells[place] = Cell(f"{f.kernel:.2e} {ratio:7.3g}", "bad" if place in bad else "")
    kinds = dict.fromkeys(f.inputs for f in sizes)
    rows = [(kind, *(cells.get((kind, name), "") for name in names)) for kind in kinds]
    equal = ("share of equal bits", *(share_words(compared.equal[name]) for name in names))
    title = "relative rms error, and how many times the plan's"
    return [Table(("inputs", *names), [*rows, equal], title=title)]


def next_step(found: Findings) -> tuple[str, str]:
    """Return what to do next in words, and the command for it."""
    asked = found.asked
    tests = [test for test in QUESTIONS if any(case.test == test for case in found.failed)]
    again = command_of(asked)
    if not tests and found.is_open:
        return "Next: ask of more heads, in more calls or layers; then", again
    if not tests:
        is_told = [w for w in call_of(asked) if w not in ("--causal", "--full")]
        # an assertion cannot call a file, nor be told of a window
        how = (
            ""
            if is_told or Path(asked.source).is_file()
            else f" by {_assertion(asked)} in a test, or"
        )
        return f"Next: keep it so,{how} in CI by", f"{again} --junit check.xml"
    if any(case.is_lost for case in found.failed):
        return (
            "Next: find the event that overflows or divides by 0 (trace the plan on these inputs,"
            " or print the maxima and row sums of the kernel). After the repair, check again",
            again,
        )
    if found.suspect:
        return (
            "Next: look for that in the code. After the repair, check again",
            again,
        )
    if found.explained is not None:
        return _next_explained(found, found.explained)
    if found.compared is not None and found.compared.known and "explanation" not in tests:
        return (
            "Next: no plan is known to have this kernel's arithmetic, so a longer search does not"
            " help. Check it on a GPU, where it is another kernel, or ask of its output alone",
            command_of(replace(asked, forward=True), ("envelope",)),
        )
    if found.cause:
        return (
            "Next: look for that in the code. If the kernel means it, claim that with --claims and"
            " --set. Else repair it and check again",
            again,
        )
    if "explanation" in tests:
        where = "casts and sums in few bits, which make errors of this size"
        if found.search is None or found.search.kind is not Kind.LOW_BITS:
            where = "a mistake: masks, tiles, scales"
        return (
            f"Next: none of the {found.tried:,} plans tried does this; look in the code for"
            f" {where}. The failed cases say on which inputs it is largest. After the repair, check"
            " again",
            again,
        )
    if {*tests} <= {"invariance", "edges"}:
        return (
            f"Next: call the kernel as the first failed case does ({found.failed[0].name}). After"
            " the repair, check again",
            command_of(asked, tuple(tests)),
        )
    is_own = ":" in asked.source and plain_name(asked.source) == asked.source
    if is_own and (asked.library or asked.layout or asked.dtype != CheckOptions.dtype):
        longer = replace(asked, budget=LONG)  # identify calls a function in the usual way alone
        return (LOOK, command_of(longer, ("explanation",)))
    layout = f" --layout {asked.layout}" if asked.layout and ":" not in asked.source else ""
    layer = f" --layer {quote(asked.layer)}" if asked.layer is not None else ""
    call = (
        "".join(f" {word}" for word in call_of(asked))
        + layout
        + layer
        + (f" --head {asked.head}" if asked.head else "")
    )
    return (LOOK, f"roundscope identify {quote(asked.source)}{call} --budget {LONG}")


def _next_explained(found: Findings, search: Identified) -> tuple[str, str]:
    """Return what to do next about a kernel whose numbers the search has explained."""
    asked, again = found.asked, command_of(found.asked)
    out = search.whole.counts["out"]
    is_claimed = search.has_arithmetic_of(asked.reference().plan)
    if search.kind is Kind.MEANING or is_claimed or (out.gathered and out.gathered.factor):
        return (
            "Next: look for that in the code. After the repair, check again",
            again,
        )
    claims = replace(asked, claims=search.base, changes=search.words)
    return (
        "Next: look for that in the code. If the kernel means it, claim it",
        command_of(claims),
    )


def _assertion(asked: CheckOptions) -> str:
    """Return the call in Python that asks the same, with all that differs from its defaults."""
    plan = f'"{asked.claimed}"'
    if asked.changes:
        plan = f"Plan.preset({plan}).changed({', '.join(map(repr, asked.changes))})"
    words = ["kernel", plan]
    if asked.is_causal:
        words.append("is_causal=True")
    words += ["backward=False"] if not asked.backward else []
    words += ["strict=True"] if asked.is_strict else []
    usual = CheckOptions(source="")
    for name in ("tokens", "features", "batch", "heads", "dtype", "block_q", "block_k"):
        value = getattr(asked, name)
        if value != getattr(usual, name):
            words.append(f"{name}={value!r}")
    return f"assert_as_good_as({', '.join(words)})"


def number(found: Findings) -> str:
    """Return how many cases failed, and the rms error that is largest beside the plan's."""
    asked = [case for case in found.cases if case.answer is not Answer.NOT_RUN]
    failed = f"{len(found.failed) or 'None'} of {len(asked)} cases failed."
    sizes = [
        (f.kernel / f.plan, f)
        for f in (found.compared.findings if found.compared is not None else ())
        if f.statistic == "rms" and f.plan and math.isfinite(f.plan)
    ]
    if not sizes:
        return failed
    ratio, f = max(sizes, key=lambda pair: pair[0])
    if math.isinf(ratio):
        return f"{failed} The error of {f.result} is infinite ({f.inputs})."
    return (
        f"{failed} The relative rms error is at most {ratio:.3g} times the plan's: {f.kernel:.2e}"
        f" ({f.result}, {f.inputs})."
    )


def how(found: Findings) -> list[str]:
    """Return how the answers were found, in sentences."""
    m = MARGINS
    lines = [f"{found.about}."]
    if found.compared is not None:
        c = found.compared
        lines.append(
            f"The kernel and {c.plan} ran on the same inputs, and the errors of both from exact"
            f" attention in binary64 were compared: {many(c.heads, 'head')},"
            f" {many(c.looks, 'draw')} of each kind of inputs at most. It may have"
            f" {m.rms:g} times the plan's rms error, {m.row:g} times"
            " that of its worst row, and a bias that"
            f" differs by {m.bias:g} of the rms error. A single head fails beyond"
            f" {m.gross_rms:g} and {m.gross_row:g} times. The means over heads of a kernel as good"
            f" as the plan give a false alarm with probability {c.false_alarm:g} at most, over all"
            " questions."
        )
    return lines


COLORS = dict(zip(RESULTS, ("#1f2933", "#2166ac", "#4d9221", "#c77c11"), strict=True))
TITLES = {
    "rms": "relative rms error, over the plan's",
    "gain": "gain minus the plan's, in units of the plan's error",
}
CAPTION = (
    "Each dot is the mean over heads of one result on one kind of inputs; the bar is three standard"
    " errors. First: the kernel's relative rms error over that of the plan. Then: how much longer"
    " (above 0) or shorter (below 0) its result is than the plan's, as a share of the plan's error."
    " Gray: within the margins. A red ring is an alarm."
)


def narrow_picture(compared: Comparison) -> Figure:
    """Draw the same for a telephone, one panel below the other."""
    return picture(compared, MARGINS, narrow=True)


def picture(compared: Comparison, margins: Margins, *, narrow: bool = False) -> Figure:
    """Draw the rms errors and the gains of every kind of inputs."""
    kinds = list(dict.fromkeys(f.inputs for f in compared.findings))
    height = 0.42 * len(kinds)
    size = (NARROW, 1.6 + 2 * height) if narrow else (WIDTH, 1.1 + height)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    axes = figure.subplots(2, 1, sharey=True) if narrow else figure.subplots(1, 2, sharey=True)
    for ax, statistic in zip(axes, TITLES, strict=True):
        _panel(ax, statistic, compared, kinds, margins)
        if narrow:
            ax.set_title(TITLES[statistic].replace(", ", ",\n"), fontsize=10, loc="left", color=INK)
    axes[0].set_yticks(range(len(kinds)), kinds, fontsize=9)
    axes[0].set_ylim(len(kinds) - 0.5, -0.5)
    handles = [
        axes[1].plot([], [], "o", ms=6, color=color, label=name)[0]
        for name, color in COLORS.items()
        if name in compared.equal
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    return figure


def _panel(
    ax: Axes, statistic: str, compared: Comparison, kinds: list[str], margins: Margins
) -> None:
    is_ratio = statistic == "rms"
    margin = margins.of(statistic)
    low, high = (1 / math.exp(margin), math.exp(margin)) if is_ratio else (-margin, margin)
    ax.axvspan(low, high, color=BAND, lw=0)
    ax.axvline(1.0 if is_ratio else 0.0, color=QUIET, lw=0.8)
    for f in compared.findings:
        if f.statistic == statistic and (is_ratio or f.direction > 0):
            _dot(ax, f, kinds.index(f.inputs), is_ratio, compared)
    ax.set_title(TITLES[statistic], fontsize=10, loc="left", color=INK)
    if is_ratio:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:.3g}")
        low, high = ax.get_xlim()
        is_narrow = high < 5 * low  # no power of ten may be in sight
        ax.xaxis.set_minor_formatter("{x:.3g}" if is_narrow else NullFormatter())
    else:
        ax.set_xscale("symlog", linthresh=margin)
    ax.tick_params(labelsize=8, colors=INK)
    ax.tick_params(which="minor", labelsize=7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0, labelsize=9)


def _dot(ax: Axes, f: Finding, row: int, is_ratio: bool, compared: Comparison) -> None:
    mean, half = f.evidence.mean, 3.0 * f.evidence.error
    if not (np.isfinite(mean) and np.isfinite(half)):
        return
    ends = np.array([mean - half, mean, mean + half])
    left, middle, right = np.exp(ends) if is_ratio else ends
    y = row + 0.17 * (RESULTS.index(f.result) - 1.5)
    ax.plot([left, right], [y, y], color=COLORS[f.result], lw=1.2, solid_capstyle="butt")
    ax.plot(middle, y, "o", ms=4, color=COLORS[f.result])
    alarms = (
        g.evidence.state is State.ALARM
        for g in compared.findings
        if (g.inputs, g.result, g.statistic) == (f.inputs, f.result, f.statistic)
    )
    if any(alarms):
        ax.plot(middle, y, "o", ms=9, mfc="none", mec=UP, mew=1.3)
