"""The command `bench`: our speed against what a user would use instead, as ratios from one run."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from roundscope.emu.errors import unknown
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.folder import can_replace


def run(
    what: str,
    as_json: bool = False,
    out: Path | None = None,
    *,
    quick: bool = False,
    more: Mapping[str, Callable[..., None]],
) -> None:
    """Run one benchmark by its name; `out` is a folder for its numbers and its picture.

    quick: a smaller measurement, whose ratios are rough. more: benchmarks of other layers, which
    print their numbers, by name; as_json and quick are given to them.
    Raises UsageError for what it cannot do, before it measures anything.
    """
    from roundscope.tools.bench import attention as bench_attention
    from roundscope.tools.bench import dot as bench_dot
    from roundscope.tools.bench import mx, round
    from roundscope.tools.bench import sweep as bench_sweep

    drawn: dict[str, Callable[..., None]] = {
        "round": partial(round.run, round.ROUNDING),
        "mx": partial(round.run, mx.BLOCKS),
        "dot": bench_dot.run,
        "attention": bench_attention.run,
    }
    printed: dict[str, Callable[..., None]] = {"sweep": bench_sweep.run, **more}
    if what not in (*drawn, *printed):
        raise UsageError(unknown("benchmark", what, (*drawn, *printed)))
    if out is not None and what in printed:
        repair = f"bench {what} has no picture; use --json, or bench {', '.join(drawn)}"
        raise bad("--out", str(out), repair)
    if out is not None and out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    if out is not None:
        can_replace(out, f"bench-{what}.json", f"bench-{what}.png")
        out.mkdir(parents=True, exist_ok=True)  # which may fail, and better before minutes of work
    if what in printed:
        printed[what](as_json, quick=quick)
    else:
        drawn[what](as_json, out, quick=quick)
