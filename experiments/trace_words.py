"""What a trace says, in words: the sentence that opens the table and the report."""

from experiments.analysis import Event, Lean
from experiments.trace_summary import Summary, share_of_rows

COINS = "deviations of random signs"


def sentence(s: Summary) -> str:
    """Which events lean, which way, how much, and what follows for P V, O, OUT and delta."""
    return " ".join(part for part in (_leaning(s), _cleared(s), _chain(s), _delta(s), _ones(s)) if part)


def _leaning(s: Summary) -> str:
    if not s.rounding:
        return "Nothing rounds: every event of this plan is exact on these tensors."
    if not s.leaning:
        return f"Nothing leans: of {len(s.rounding)} events that round, none has a mean beyond the sign-flip null (|z| > {s.limit:.1f})."
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
    outward = [site for site, x in s.away.items() if abs(x.z) > s.away_limit]
    quiet = [site for site in s.away if site not in outward and site not in leaning]
    parts = [f"{n} leans {'away from' if s.away[n].mean > 0 else 'toward'} zero by {_mean(s.away[n])} ulp." for n in outward]
    if quiet:
        largest = max((s.away[n] for n in quiet), key=lambda x: abs(x.mean))
        verb = "does" if len(quiet) == 1 else "do"
        size = f"{largest.mean:+.1g} ± {largest.se:.1g} ulp away from zero"
        most = "at most " if len(quiet) > 1 else ""
        parts.append(f"{_and(quiet)} {verb} not lean, neither up or down nor away from zero ({most}{size}).")
    return " ".join(parts)


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
        return f"The error of delta against {against} adds up along tokens: head {head} ends {sign}, at {abs(z):.1f} {COINS}."
    return (
        f"The error of delta against {against} does not add up along tokens: the furthest head, {head}, ends at {abs(z):.1f} "
        f"{COINS} (threshold {s.drift.limit:.1f})."
    )


def _ones(s: Summary) -> str:
    if s.several is None:
        return "P was too large to keep, so rows with several P = 1 were not counted."
    some, rows = share_of_rows(s)
    if not some:
        return "No row has several P = 1."
    text = f"{some} of {rows} rows have several P = 1"
    apart = [x.site for x in s.shares if abs(x.z) > s.away_limit]
    if apart:
        return f"{text}, and the errors of {_and(apart)} away from zero differ there from those of other rows."
    if not s.shares:
        return f"{text}."
    return f"{text}; the errors of {_and([x.site for x in s.shares])} are no more one-sided there than in other rows."
