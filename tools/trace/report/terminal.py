"""A trace on the terminal: the verdict, the results, the error budget, and then the events."""

import math
from typing import Any

from roundscope.attention.budget.table import ErrorBudget, Line
from roundscope.tools.report.terminal import table as plain_table
from roundscope.tools.trace.costs import VISIBLE, cost, visible
from roundscope.tools.trace.report import table as events
from roundscope.tools.trace.report.words import plan_words, sentence
from roundscope.tools.trace.results import Result, score
from roundscope.tools.trace.summary import Summary
from roundscope.tools.trace.verdict import less, verdict

BUDGET = "Error budget: % of the squared error that each event makes alone"
NARROW = 90  # characters per line of the whole table of results


def show(s: Summary, console: Any, command: str = "") -> None:
    """Print one layer: the verdict, the tables, and the legends.

    command: the command that printed this, to which the next step adds options.
    """
    from rich.text import Text

    request, layer = s.request, s.layer
    tile = f"tile {request.block_q} x {request.block_k}{events.call_words(request, layer)}"
    console.print(Text(f"{layer.name}: {plan_words(request)}, {tile}", style="bold"))
    console.print(Text(events.sizes(s), style="dim"))
    for note in layer.notes:
        console.print(Text(note, style="yellow"))
    v = verdict(s)
    console.print(Text(v.text))
    if v.step:
        console.print(Text(f"Next: {command} {v.step}".strip(), style="bold"), soft_wrap=True)
        console.print(Text(f"      to see how {v.buys}", style="dim"))
    console.print()
    console.print(_results(s, console.width))
    console.print(Text(results_note(s), style="dim"))
    if s.budget is not None and s.budget.lines:
        console.print()
        console.print(Text(BUDGET, style="bold"))
        console.print(_budget(s.budget))
        for line in budget_notes(s):
            console.print(Text(line, style="dim"))
    console.print()
    console.print(Text(sentence(s)))
    console.print(events.table(s, console.width))
    lines = [*events.folded(s), events.legend(s)]
    if console.width < events.NARROW:
        lines.append("a wider terminal shows carries, mean |error|, max and the worst head as well")
    for line in lines:
        console.print(Text(line, style="dim"))
    console.print()


def result_heads(s: Summary) -> list[str]:
    """Return the headings of the table of results."""
    gains = [r.gain for r in s.results if r.gain is not None and r.gain.se > 0.0]
    limit = gains[0].limit if gains else None
    heads = [
        "result",
        "relative\nrms error",
        "largest\nerror",
        "too long (+)\nor short, %",
        "z" + ("" if limit is None else f"\nof ±{limit:.1f}"),
    ]
    first = s.results[0]
    if first.cast is not None:
        heads += ["casts of\ninputs", "without\ncasts"]
    if first.beside is not None:
        heads.append(f"{s.request.beside.name if s.request.beside else ''}:\nrms error")
    if first.least is not None:
        heads.append("rounded\nonce")
    return heads


def result_cells(r: Result, s: Summary) -> list[str]:
    """Return the cells of one result's line, as many as `result_heads`."""
    first = s.results[0]
    cells = [r.name, f"{r.error:.2e}", f"{r.difference['max_abs']:.2e}", *_gain(r)]
    if first.cast is not None:
        cells += [_number(r.cast), _number(r.computed)]
    if first.beside is not None:
        cells.append(_number(r.beside))
    if first.least is not None:
        cells.append(_number(r.least))
    return cells


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.2e}"


def _gain(r: Result) -> list[str]:
    """Return the gain in percent with its mark, and its z."""
    if r.gain is None:
        return ["", ""]
    if r.gain.mean != r.gain.mean:  # a number of the result is infinite or NaN
        return ["-", "-"]
    mark = ("▲" if r.gain.mean > 0.0 else "▼") if r.is_biased else "·"
    z = score(r.gain)
    if z != z:  # one key head: there is no scatter
        return [f"{100 * r.gain.mean:+.2g} {mark}", ""]
    return [f"{100 * r.gain.mean:+.2g} ±{100 * r.gain.se:.1g} {mark}", f"{z:+.1f}"]


def _results(s: Summary, width: int) -> Any:
    from rich.text import Text

    heads = result_heads(s)
    left_out = {heads.index("largest\nerror")} if width < NARROW and len(heads) > 6 else set()
    t = plain_table("")
    for i, name in enumerate(heads):
        if i not in left_out:
            t.add_column(name, justify="right" if i else "left", no_wrap=True)
    for r in s.results:
        cells = [Text(c) for i, c in enumerate(result_cells(r, s)) if i not in left_out]
        t.add_row(*cells, style="bold red" if r.is_biased or not r.is_known else None)
    return t


def results_note(s: Summary) -> str:
    """Return what the columns of the table of results mean."""
    first, name = s.results[0], s.request.against.name
    parts = [f"Against {name}. ▲ ▼: biased, z beyond the limit: more than the scatter of heads."]
    if first.least is not None:
        parts.append("Rounded once: the exact result in its format, the least error there is.")
    if first.cast is not None:
        parts.append("Casts of inputs are part of the error; without them it is that of computing.")
    return " ".join(parts)


def improvement(budget: ErrorBudget, line: Line) -> tuple[str, float, float] | None:
    """Return (result, error, error without the part) where the part's absence helps most."""
    if line.without is None:
        return None
    if rescued := [n for n in budget.total if line.rescues(n, budget.total)]:
        return rescued[0], math.inf, line.without[rescued[0]]
    names = [n for n, x in budget.total.items() if x > 0.0 and math.isfinite(x)]
    if not names:
        return None
    left = line.without
    name = min(names, key=lambda n: left[n] / budget.total[n])
    return name, budget.total[name], line.without[name]


def _budget(budget: ErrorBudget) -> Any:
    from rich.text import Text

    t = plain_table("")
    t.add_column("event", no_wrap=True)
    t.add_column("rounds to", no_wrap=True)
    for name in budget.total:
        t.add_column(name, justify="right", no_wrap=True)
    t.add_column("without it", no_wrap=True)
    for line in visible(budget):
        shares = [budget.share_words(line, n) for n in budget.total]
        t.add_row(Text(line.part.name, style="bold"), line.part.how, *shares, helps(budget, line))
    left = [budget.interaction_words(n) for n in budget.total]
    t.add_row("interaction", "", *left, "", style="dim")
    return t


def helps(budget: ErrorBudget, line: Line) -> str:
    """Return what the absence of a part does to the result that it helps most, in words."""
    best = improvement(budget, line)
    if best is None:
        return ""
    name, before, after = best
    is_less = after < 0.99 * before
    return f"{name} {less(before, after)}" if is_less else "no smaller error"


def budget_notes(s: Summary) -> list[str]:
    """Return lines that say how a budget was measured, what it leaves out and what things cost."""
    budget = s.budget
    assert budget is not None
    small = [x.part.name for x in budget.lines if x not in visible(budget)]
    lines = [budget_method(s)]
    if small:
        lines.append(f"below {100 * VISIBLE:.1g} % everywhere: {', '.join(small)}")
    lines.append("what each is, and what more bits would cost a kernel on an H100, all heads:")
    for x in visible(budget):
        if len(x.part.places) == 1:
            price = cost(s.request.plan, x.part, s.layer)
            lines.append(f"  {x.part.name} = {x.part.formula}; {price}")
    return lines


def budget_method(s: Summary) -> str:
    """Return on which heads a budget was measured, and what its columns mean."""
    budget = s.budget
    assert budget is not None
    n, heads = s.layer.q.shape[2], len(budget.heads)
    which = f"{heads} of {n} heads" if heads < n else "all heads"
    infinite = any(math.isinf(x) for x in budget.total.values())
    inf = "inf: this alone makes the result infinite or NaN, whose error has no shares. "
    return (
        f"{inf if infinite else ''}"
        f"Measured on {which}: each event alone, all else in binary64; interaction is what these do"
        " not add up to. Without it: the event in binary64, all else as in the plan. The two need"
        " not agree: errors of two events may add up or cancel, above all where few numbers make"
        " most of the error."
    )
