"""What a trace says in words, and its table on the terminal."""

from typing import Any

from experiments.analysis import Event, Lean
from experiments.trace_summary import Summary, share_of_rows


def sentence(s: Summary) -> str:
    """Which events lean, which way, how much, and what follows for P V, O, OUT and delta."""
    return " ".join(part for part in (_leaning(s), _cleared(s), _chain(s), _delta(s), _ones(s)) if part)


def _leaning(s: Summary) -> str:
    if not s.rounding:
        return "Nothing rounds: every event of this plan is exact on these tensors."
    if not s.leaning:
        return f"Nothing leans: of {len(s.rounding)} events that round, none has a mean error beyond the sign-flip null (|z| > {s.limit:.1f})."
    first = "; ".join(_lean_words(e) for e in s.leaning[:4])
    more = f"; and {len(s.leaning) - 4} smaller ones" if len(s.leaning) > 4 else ""
    verb = "leans" if len(s.leaning) == 1 else "lean"
    return f"Of {len(s.rounding)} events that round, {len(s.leaning)} {verb}: {first}{more}."


def _lean_words(e: Event) -> str:
    moved = e.counts["away"] + e.counts["toward"]
    away = e.counts["away"] / moved if moved else 0.5
    zero = f"{'away from' if away >= 0.5 else 'toward'} zero in {100 * max(away, 1 - away):.0f} % of its inexact events"
    small = ", a relative error below 1e-8" if e.relative < 1e-8 else ""
    return f"{e.name} {'up' if e.lean.mean > 0 else 'down'} by {_mean(e.lean)} {e.format.name} ulp, {zero}{small}"


def _mean(x: Lean) -> str:
    return f"{abs(x.mean):.2g} ± {x.se:.1g}"


def _cleared(s: Summary) -> str:
    if not s.cleared:
        return ""
    parts = ", ".join(f"{e.name} ({e.distinct:,})" for e in s.cleared)
    one = len(s.cleared) == 1
    return (
        f"{parts} {'looks' if one else 'look'} biased row by row, but many rows share few distinct arguments (their number in "
        f"brackets); with one coin per argument {'it does' if one else 'they do'} not lean."
    )


def _chain(s: Summary) -> str:
    """P V, O and OUT: signed, and away from zero."""
    if not s.away:
        return "P V, O and OUT are exact here." if s.rounding else ""
    leaning = {e.name for e in s.leaning}
    words = []
    for site, x in s.away.items():
        outward = abs(x.z) > s.away_limit
        direction = "away from" if x.mean > 0 else "toward"
        if outward:
            words.append(f"{site} leans {direction} zero by {_mean(x)} ulp")
        elif site not in leaning:
            words.append(f"{site} does not lean, up or down or away from zero ({x.mean:+.1g} ± {x.se:.1g} ulp away)")
    quiet = [site for site, x in s.away.items() if abs(x.z) <= s.away_limit and site not in leaning]
    if len(quiet) == len(s.away):
        largest = max(s.away.values(), key=lambda x: abs(x.mean))
        verb = "does" if len(quiet) == 1 else "do"
        return f"{_and(quiet)} {verb} not lean, neither up or down nor away from zero (at most {_mean(largest)} ulp)."
    return f"{'; '.join(words)}." if words else ""


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _delta(s: Summary) -> str:
    if s.drift is None:
        return "The file has no do, so there is no backward and no delta."
    z, head = float(s.drift.z[s.drift.worst]), s.drift.worst[1]
    if not s.drift.error.any():
        return f"delta equals that of {s.seen.request.against.name}."
    against = s.seen.request.against.name
    if s.drift.leans:
        sign = "positive" if z > 0 else "negative"
        return f"The error of delta against {against} adds up along tokens: head {head} ends {sign}, at {abs(z):.1f} deviations of random signs."
    return (
        f"The error of delta against {against} does not add up along tokens: the furthest head, {head}, ends at {abs(z):.1f} deviations of "
        f"random signs (threshold {s.drift.limit:.1f})."
    )


def _ones(s: Summary) -> str:
    if s.several is None:
        return "P was too large to keep, so rows with several P = 1 were not counted."
    some, rows = share_of_rows(s)
    return f"{some} of {rows} rows have several P = 1." if some else "No row has several P = 1."


def table(s: Summary) -> Any:
    """One line per event that rounds."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    t = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0), collapse_padding=True)
    t.add_column("event", style="bold", no_wrap=True)
    t.add_column("format", no_wrap=True)
    heads = ("count", "inexact %", "ties %", "carries %", "mean signed error, ulps", "", "mean |e|", "max", "ovf/unf/NaN", "worst head")
    for name in heads:
        t.add_column(name, justify="left" if not name else "right", no_wrap=True)
    stage = None
    for e in s.rounding:
        now = _stage(e)
        if stage not in (None, now):
            t.add_section()
        stage = now
        t.add_row(*(Text(c) for c in cells(e, s.seen.layer.q.shape[0])), style="bold red" if e.leans else None)
    return t


def _stage(e: Event) -> str:
    from attention.trace import site_of

    return site_of(e.name).stage


def cells(e: Event, batch: int) -> list[str]:
    """The line of one event."""
    bad = [int(e.counts[k]) for k in ("overflow", "underflow", "nan")]
    head = f"{e.worst[1]}" if batch == 1 else f"{e.worst[0]}/{e.worst[1]}"
    return [
        e.name, e.format.name, count(int(e.counts["n"])), *(f"{100 * e.share(k):.1f}" for k in ("inexact", "ties", "carries")),
        f"{e.lean.mean:+.5f} ±{e.lean.se:.5f}", mark(e), f"{e.mean_abs:.3f}", f"{e.peak:.3g}",
        "/".join(count(b) for b in bad) if any(bad) else "-", f"{head} {e.worst_mean:+.4f}",
    ]  # fmt: skip


def mark(e: Event) -> str:
    """▲ or ▼ beyond the null, = where only shared arguments explain it, · inside."""
    if e.leans:
        return "▲" if e.lean.mean > 0 else "▼"
    return "=" if e.distinct is not None else "·"


def count(n: int) -> str:
    """A count in at most five characters."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if n >= size:
            scale = 1000 if unit == "k" else size
            return f"{n / scale:.3g}{unit}"
    return str(n)


def folded(s: Summary) -> list[str]:
    """The events without a line of their own."""
    exact = [e.name for e in s.events if e not in s.rounding]
    absent = [n for n in s.seen.trace.stats if not int(s.seen.trace.stats[n].n.sum())]
    lines = [f"exact here: {' '.join(exact)}"] if exact else []
    lines += [f"did not occur: {' '.join(absent)}"] if absent else []
    return lines


def legend(s: Summary) -> str:
    """How to read the marks."""
    text = f"▲ ▼ mean beyond the null (rows' signs flipped, |z| > {s.limit:.1f})   · inside"
    return text + ("   = beyond by rows, inside by distinct arguments" if s.cleared else "")


def show(s: Summary, console: Any) -> None:
    """Sentence, table, and what was folded."""
    from rich.text import Text

    request, layer = s.seen.request, s.seen.layer
    tile = f"tile {request.block_q} x {request.block_k}{', causal' if request.causal else ''}"
    console.print(Text(f"{layer.name}: {request.plan.name}, {tile}", style="bold"))
    console.print(Text(sentence(s)))
    console.print(table(s))
    for line in (*folded(s), legend(s)):
        console.print(Text(line, style="dim"))
    console.print()
