"""`roundscope train`: runs, continues or branches a training, and prints a summary."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roundscope.experiments.train import checkpoint, origins
from roundscope.experiments.train.config import JAX
from roundscope.experiments.train.origins import Origin
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.report.terminal import console, print_json
from roundscope.tools.signals import SIGNALLED, stopping


def run(
    words: Sequence[str],
    *,
    out: Path | None,
    resume: Path | None,
    first: int | None,
    at: Sequence[str],
    arms: Sequence[str],
    seeds: str | None,
    as_json: bool,
) -> int:
    """Train; return the exit code: 0, 130 after Ctrl-C, or 143 after SIGTERM.

    The arguments are those of `roundscope train --help`. Raises UsageError before anything is
    written, StorageError for a disk or a folder that cannot be used now.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    if resume is None:
        if first is not None:
            raise bad("--from", first, "a step of which run? Name it with --resume DIR")
        origin = origins.new(words, arms=arms, at=at, seeds=seeds)
    else:
        origin = origins.earlier(
            resume,
            words,
            first=first,
            arms=arms,
            at=at,
            seeds=seeds,
            is_branch=_differ(out, resume),
        )
        out = out or resume
    out = _place(out, origin, resume)
    for note in origin.notes:
        console(stderr=True).print(note, markup=False, soft_wrap=True)
    result, ended_by = _train(origin, out)
    if as_json:
        print_json(result)
    else:
        _show(result, emulated=origin.settings.config.plan != JAX)
    return SIGNALLED + ended_by if result["interrupted"] else 0


def _differ(out: Path | None, resume: Path) -> bool:
    return out is not None and out.resolve() != resume.resolve()


def _place(out: Path | None, origin: Origin, resume: Path | None) -> Path:
    if out is None:
        raise UsageError("--out is missing: name the folder of the run, as in  --out run1")
    if out.exists() and not out.is_dir():
        raise bad("--out", str(out), "is a file; name a folder")
    if not origin.in_place and checkpoint.steps(out):
        raise bad(
            "--out",
            str(out),
            f"holds a run already; go on with  roundscope train --resume {out}  or choose another"
            " folder",
        )
    return out


def _train(origin: Origin, out: Path) -> tuple[dict[str, Any], int]:
    """Return a summary of the run, and the signal that ended it, 0 for none."""
    from roundscope.experiments.train.record import writing
    from roundscope.experiments.train.run.live import screen
    from roundscope.experiments.train.run.training import Run

    out.mkdir(parents=True, exist_ok=True)
    begin = origin.beginning()
    with writing(out) as log, stopping(_told) as stop, screen() as show:
        log.begin(begin.step, **origins.recorded(origin))
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

    losses, alarms = rows(out, "steps"), rows(out, "alarms")
    last = {row["arm"]: row for row in losses}
    arms = [
        {
            "name": name,
            "loss": row["loss"],
            "gradient_norm": row["gradient_norm"],
            "alarms": [
                {k: a[k] for k in ("step", "series", "kind", "value", "bound")}
                for a in alarms
                if a["arm"] == name
            ],
        }
        for name, row in last.items()
    ]
    return {
        "folder": str(out),
        "step": step,
        "steps": steps,
        "interrupted": interrupted,
        "arms": arms,
    }


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
        say(
            f"interrupted, nothing is lost; go on with  roundscope train --resume {found['folder']}"
        )
