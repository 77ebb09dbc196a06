"""`roundscope identify`: find the arithmetic of a kernel from its inputs and outputs.

The kernel is called, or its numbers are read from a file; the answer is printed and written to
identify.json.
"""

import hashlib
from typing import Any

import numpy as np

from roundscope.emu.stats.comparison import share_words
from roundscope.tools.identify import operations
from roundscope.tools.identify.compare import ROWS, Counted, Nearness, Part
from roundscope.tools.identify.identify import Identified, Kind, identify
from roundscope.tools.identify.options import IdentifyOptions
from roundscope.tools.identify.probes.kernel import Probed, probed
from roundscope.tools.identify.reading import Call, read
from roundscope.tools.identify.search import Found, check_budget
from roundscope.tools.report.progress import telling
from roundscope.tools.report.terminal import console, plain, print_json, table
from roundscope.tools.results.folder import (
    as_word,
    checked_folder,
    free_folder,
    tell_replaced,
    write_json,
)
from roundscope.tools.results.machine import all_versions, command_line
from roundscope.tools.results.machine import digest as of_array

RECORD = "identify.json"
SCHEMA = "roundscope-identify-1"
FEW = 5  # how many further changes are shown
STRUCTURES = 8  # how many structures are shown
TILES = 6  # how many tiles of rows are shown
PLACE = ("batch", "head", "token")
COLOURS = {
    Kind.SAME: "bold green",
    Kind.NEAR: "bold yellow",
    Kind.LOW_BITS: "bold yellow",
    Kind.NO_ROUNDING: "bold red",
    Kind.NOT_FOUND: "bold red",
    Kind.MEANING: "bold yellow",
}
Steps = list[tuple[str, Nearness]]


def run(options: IdentifyOptions) -> None:
    """Identify the arithmetic of a kernel, or of the outputs in a file.

    Raises:
        UsageError: bad usage.
    """
    if operations.is_of_operations(options.source):
        operations.run(options)
        return
    check_budget(options.budget)
    checked_folder(options.out, RECORD)
    with telling("identify") as tell, np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        tell("reading")
        call = read(options)
        probes = []
        if call.kernel is not None and options.probe:
            has_gradients = call.returned.dq is not None
            probes = probed(call.kernel, call.given, tell, gradients=has_gradients)
        found = identify(
            call.given, call.returned, tell, options.budget, call.head, probes, call.machine
        )
    digest = _digest(options.source, call)
    word = as_word(f"{call.name}-causal" if call.x.is_causal else call.name)
    folder = options.out or free_folder(f"identify-{word}", digest, RECORD)
    data = plain(document(call, found) | {"request": digest})
    tell_replaced(folder, digest, RECORD)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, data)
    if options.json:
        print_json(data)
    else:
        show(call, found, console())
        print(f"written: {folder / RECORD}")


def _digest(source: str, call: Call) -> str:
    """Return a hash of everything that decides an answer, except the version of the program."""
    arrays = [of_array(getattr(call.given, n)) for n in ("q", "k", "v", "do")] + [
        f"{n}{of_array(a)}" for n, a in call.returned.named()
    ]
    return hashlib.sha256(repr((source, call.about, arrays)).encode()).hexdigest()[:16]


def document(call: Call, found: Identified) -> dict[str, Any]:
    """Return the contents of identify.json as data."""
    best = found.best
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "versions": all_versions("numpy"),
        "name": call.name,
        "about": call.about,
        "verdict": found.kind,
        "sentence": found.verdict,
        "plan": found.plan,
        "base": found.base,
        "words": found.words,
        "ties": found.ties,
        "arithmetic": best.plan.describe(),
        "block_q": best.block_q,
        "block_k": best.block_k,
        "key_order": best.plan.key_order,
        "query_order": best.plan.query_order,
        "scale_ulps": best.scale_ulps,
        "meaning": _meaning(found),
        "compared": found.whole.about,
        "numbers": {n: _numbers(c) for n, c in found.whole.counts.items()},
        "equal": {n: c.equal for n, c in found.whole.counts.items()},
        "parts": {n: _part(p) for n, p in found.parts.items()},
        "parts_of": {"batch": 0, "key_head": call.head},
        "errors": _errors(found),
        "forward": _search(found.forward),
        "backward": None if found.backward is None else _search(found.backward),
        "notes": [*call.notes, *found.notes],
        "probes": [_probe(p) for p in found.probes],
        "seconds": round(found.seconds, 1),
    }


def _probe(p: Probed) -> dict[str, Any]:
    order = p.order
    return {
        "sum": p.name,
        "terms": p.terms,
        "words": p.words,
        "block": None if order is None else order.block,
        "order": None if order is None else order.order,
        "accumulator": None
        if order is None or order.accumulator is None
        else str(order.accumulator),
        "tiles": [] if order is None else order.tiles,
    }


def _meaning(found: Identified) -> dict[str, Any]:
    m = found.meant
    return {
        "error_as_given": m.given,
        "error_of_a_cast": m.cast,
        "tried": m.tried,
        "explains": m.words or None,
        "error": m.error if m.words else None,
        "nearest": m.nearest[0] or None,
        "error_of_nearest": m.nearest[1] if m.nearest[0] else None,
    }


def _numbers(c: Counted) -> dict[str, Any]:
    return {
        "of": c.of,
        "differ": c.differ,
        "equal": c.equal,
        "heads": len(c.heads),
        "heads_that_differ": [list(place) for place in c.wrong],
        "first": None if c.first is None else dict(zip(PLACE, c.first, strict=True)),
        "most_ulps": c.most,
        "nan": c.strange.nan,
        "infinite": c.strange.infinite,
        "not_finite_unlike_the_plan": c.lost,
    }


def _part(p: Part) -> dict[str, Any]:
    rows = [{"first": first, "rows": ROWS, "equal": share} for first, share in p.rows]
    return {
        "equal": p.near.equal,
        "mean_ulps_where_not": -p.near.distance,
        "at_most_one_ulp_where_not": p.one,
        "rows": rows,
    }


def _errors(found: Identified) -> dict[str, Any]:
    e = found.errors
    return {
        "kernel_from_exact": e.kernel,
        "plan_from_exact": e.plan,
        "kernel_from_plan": e.between,
        "bf16_cast_of_exact": e.cast,
        "ratio": e.ratio,
    }


def _search(f: Found) -> dict[str, Any]:
    return {
        "tried": f.tried,
        "stopped": f.stopped,
        "structures": _steps(f.structures),
        "changes": _steps(f.changes),
        "others": _steps(f.others),
    }


def _steps(steps: Steps) -> list[dict[str, Any]]:
    return [
        {"what": what, "equal": near.equal, "mean_ulps_where_not": -near.distance}
        for what, near in steps
    ]


def show(call: Call, found: Identified, screen: Any) -> None:
    """Print the verdict on the first line, then what it rests on."""
    from rich.text import Text

    best, plan = found.best, found.best.plan
    screen.print(Text(found.verdict, style=COLOURS[found.kind]))
    tiles = (
        "whole rows"
        if best.block_k >= call.x.k.shape[1]
        else f"tiles of {best.block_k}, {plan.key_order}"
    )
    queries = f"; queries of the backward: tiles of {best.block_q}, {plan.query_order}"
    lines = [
        f"{call.name}: {call.about}",
        f"nearest plan: {found.base}" + "".join(f"\n  --set {word}" for word in found.words),
        f"keys: {tiles}" + (queries if found.backward else ""),
        (
            f"errors of this head, relative to the exact result: the kernel"
            f" {found.errors.kernel:.3g}, the plan {found.errors.plan:.3g}; the kernel from the"
            f" plan {found.errors.between:.3g}"
        ),
        *call.notes,
        *found.notes,
        *(p.words for p in found.probes),
    ]
    for line in lines:
        screen.print(Text(line))
    screen.print(_parts(found))
    _tables(found, screen)


def _tables(found: Identified, screen: Any) -> None:
    forward, back = found.forward, found.backward
    screen.print(
        _steps_table(
            "structures tried on the last rows, nearest first",
            forward.structures[:STRUCTURES],
        )
    )
    for name, f in (("", forward), (" of the backward", back)):
        if f is not None and f.changes:
            screen.print(_steps_table(f"changes found on the way{name}", f.changes))
        if f is not None and f.others:
            screen.print(_steps_table(f"what each further change{name} would give", f.others[:FEW]))


def _parts(found: Identified) -> Any:
    t = table(f"the nearest plan in all heads: {found.whole.about}")
    for name in (
        "result",
        "equal bits",
        "differ",
        "where not: mean ulps",
        "at most one ulp",
        f"rows that differ, by {ROWS}",
    ):
        t.add_column(name, justify="left" if name == "result" or "rows" in name else "right")
    for name, c in found.whole.counts.items():
        rest = _rest(c.part) if c.differ else ("", "", "")
        t.add_row(name, share_words(c.equal), f"{c.differ:,}", *rest)
    return t


def _rest(p: Part) -> tuple[str, str, str]:
    least = sorted(p.rows, key=lambda row: row[1])[:TILES]
    more = f" and {len(p.rows) - TILES} more" if len(p.rows) > TILES else ""
    return (
        f"{-p.near.distance:.3g}",
        f"{100 * p.one:.1f}%",
        ", ".join(f"{lo}: {share_words(share, 4)}" for lo, share in sorted(least)) + more,
    )


def _steps_table(title: str, steps: Steps) -> Any:
    t = table(title)
    t.add_column("", justify="left")
    t.add_column("equal bits", justify="right")
    t.add_column("mean ulps where not", justify="right")
    for what, near in steps:
        t.add_row(
            what, share_words(near.equal), "" if near.equal == 1.0 else f"{-near.distance:.3g}"
        )
    return t
