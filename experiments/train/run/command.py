"""`roundscope train`: runs, continues or branches a training, and prints a summary."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundscope.experiments.options import TrainOptions
from roundscope.experiments.train import checkpoint, origins
from roundscope.experiments.train.config import JAX
from roundscope.experiments.train.origins import Origin
from roundscope.experiments.train.run.training import View
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.progress import SECONDS, every, left
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.signals import SIGNALLED, stopping

MOST = 20  # arms that are shown


def run(options: TrainOptions) -> int:
    """Train; return the exit code: 0, 130 after Ctrl-C, or 143 after SIGTERM.

    Raises UsageError before anything is written, StorageError for a disk or a folder that cannot be
    used now.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    out, resume = options.out, options.resume
    if resume is None:
        if options.first is not None:
            raise bad("--from", options.first, "a step of which run? Name it with --resume DIR")
        origin = origins.new(options)
    else:
        is_branch = out is not None and out.resolve() != resume.resolve()
        origin = origins.earlier(resume, options, is_branch=is_branch)
        out = out or resume
    out = _place(out, origin)
    for note in origin.notes:
        console(stderr=True).print(note, markup=False, soft_wrap=True)
    result, ended_by = train(origin, out)
    if options.json:
        print_json(result)
    else:
        _show(result, emulated=origin.settings.config.plan != JAX)
    return SIGNALLED + ended_by if result["interrupted"] else 0


def _place(out: Path | None, origin: Origin) -> Path:
    if out is None:
        raise UsageError("--out is missing: name the folder of the run, as in  --out run1")
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    if not origin.in_place and checkpoint.steps(out):
        again = f"holds a run already; go on with  roundscope train --resume {out}"
        raise bad("--out", str(out), f"{again}  or choose another folder")
    return out


def train(origin: Origin, out: Path) -> tuple[dict[str, Any], int]:
    """Return a summary of the run, and the signal that ended it, 0 for none."""
    from roundscope.experiments.train.record import writing
    from roundscope.experiments.train.run.training import Run

    out.mkdir(parents=True, exist_ok=True)
    begin = origin.beginning()
    with writing(out) as log, stopping(_told) as stop, screen() as show:
        log.begin(begin.step, **origins.recorded(origin))
        if begin.step:
            console(stderr=True).print(f"going on from step {begin.step}")
        run = Run(origin.settings, out, log, begin)
        if not origin.in_place:
            run.save(pinned="the beginning")
        done = run.go(show, lambda: bool(stop()))
        ended_by = stop()
    return summary(out, run.number, origin.settings.config.steps, interrupted=not done), ended_by


def _told() -> None:
    console(stderr=True).print("stopping after this step, with a checkpoint")


def summary(out: Path, step: int, steps: int, *, interrupted: bool) -> dict[str, Any]:
    """Return what came of a run as data: per arm its last loss and its alarms."""
    from roundscope.experiments.train.record import rows

    arms: dict[str, dict[str, Any]] = {}
    for row in rows(out, "steps"):  # the last of each arm
        numbers = {k: row[k] for k in ("loss", "gradient_norm")}
        arms[row["arm"]] = {"name": row["arm"], **numbers, "alarms": []}
    for a in rows(out, "alarms"):
        own = {k: a[k] for k in ("step", "series", "kind", "value", "bound")}
        if a["arm"] in arms:
            arms[a["arm"]]["alarms"].append(own)
    about = {"folder": str(out), "step": step, "steps": steps, "interrupted": interrupted}
    return about | {"arms": list(arms.values())}


def _show(found: dict[str, Any], *, emulated: bool) -> None:
    def say(text: str) -> None:
        console().print(text, markup=False, soft_wrap=True)

    say(f"step {found['step']} of {found['steps']}, in {found['folder']}")
    for arm in found["arms"]:
        loss = "not finite" if arm["loss"] is None else f"{arm['loss']:.4f}"
        alarms = "".join(
            f"; {a['kind']} of {a['series']} at step {a['step']}" for a in arm["alarms"][:3]
        )
        left = len(arm["alarms"]) - 3
        more = f"; {left} more alarm{'s' * (left > 1)}" if left > 0 else ""
        say(f"{arm['name']}: loss {loss}{alarms}{more}")
    if emulated and any(arm["alarms"] for arm in found["arms"]):
        say(f"to find the roundings behind it: roundscope diagnose {found['folder']}")
    say(f"to draw it: roundscope report {found['folder']}")
    if found["interrupted"]:
        again = f"roundscope train --resume {found['folder']}"
        say(f"interrupted, nothing is lost; go on with  {again}")


@contextmanager
def screen(clock: Callable[[], float] = time.monotonic) -> Iterator[Callable[[View], None]]:
    """Yield a function that shows where the run is, on a terminal only until the end."""
    where = console(stderr=True)
    if not where.is_terminal:
        tell = every(SECONDS, lambda text: where.print(text, markup=False, soft_wrap=True), clock)
        yield lambda view: tell(lambda: line(view))
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=where, transient=True, auto_refresh=False) as live:
        yield lambda view: live.update(Group(headline(view), table(view)), refresh=True)


def line(view: View) -> str:
    """Return the headline, and how many arms have an alarm."""
    alarms = sum(alarm for *_, alarm in view.arms)
    return headline(view) + (f"; {alarms} of {len(view.arms)} arms with an alarm" if alarms else "")


def table(view: View) -> Any:
    """Return the arms as rich's table, those with an alarm first."""
    from rich.table import Table

    found = Table(box=None)
    for name in ("arm", "loss", "lr", ""):
        found.add_column(name, justify="left" if name in ("arm", "") else "right")
    arms = sorted(view.arms, key=lambda arm: not arm[3])
    for name, loss, lr, alarm in arms[:MOST]:
        shown = "-" if math.isnan(loss) and not alarm else f"{loss:.4f}"
        found.add_row(name, shown, f"{lr:.2e}", "alarm" if alarm else "")
    if len(arms) > MOST:
        found.add_row(f"and {len(arms) - MOST} more", "", "", "")
    return found


def headline(view: View) -> str:
    """Return the steps done, the steps per second and the time left at that rate."""
    done = f"step {view.step} of {view.steps}"
    if not view.rate > 0.0:
        return f"{done}, compiling"
    return f"{done}, {view.rate:.3g} steps/s, {left(view.steps - view.step, view.rate)}"
