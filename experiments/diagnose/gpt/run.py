"""`roundscope diagnose RUN`: steps 1 to 6 for the folder of a training run."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from roundscope.experiments.diagnose.gpt.case import Case, case
from roundscope.experiments.diagnose.gpt.replay import Gpt, gpt
from roundscope.experiments.diagnose.gpt.states import (
    guilty_places,
    repaired_rows,
    subjects,
    survivals,
)
from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.state import arm
from roundscope.tools.diagnose.replay.clock import Clock
from roundscope.tools.diagnose.replay.run_part import RunPart
from roundscope.tools.diagnose.replay.start import Replayed, replayed
from roundscope.tools.diagnose.tensors.findings import (
    Findings,
    Progress,
    Stopped,
    findings,
)
from roundscope.tools.diagnose.tensors.measured import Subject


def diagnose_run(
    folder: Path,
    *,
    name: str | None,
    first: int | None,
    until: int | None,
    out: Path,
    progress: Progress,
) -> Findings | Stopped:
    """Return the diagnosis of one arm; out: where its replays are kept.

    Raises UsageError for a folder without a run, arms and steps that it lacks, and a context that
    is too short; StorageError for results that cannot be kept.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    chosen = case(folder, arm=name, first=first, until=until)
    clock = Clock(progress)
    done = None if chosen.failure is None else replayed(gpt(chosen, out, clock), out, clock)
    step, seen = _subjects(chosen, done)
    found = findings(
        seen, f"{folder.resolve().name}, arm {chosen.own.name}", progress, guilty_places(done, seen)
    )
    if isinstance(found, Stopped):
        return found
    clock.says(6, "replays of the repairs")
    origins = found.origin.origins if found.leaning else []
    rows = repaired_rows(done, found.measured, step)
    return replace(
        found,
        run=RunPart(
            arm=chosen.own.name,
            arms=len(chosen.settings.arms),
            failure=chosen.failure,
            grown=chosen.grown,
            last=chosen.last,
            losses=chosen.losses,
            rule=RULE,
            rest=(
                "Other arithmetic: the linear layers stay as they are"
                f" (matmul={chosen.settings.config.matmul}), and so do the order of sums and the"
                " optimizer."
            ),
            step=step,
            replayed=done,
            survivals=survivals(done, origins),
            rows=rows,
        ),
    )


def _subjects(chosen: Case, done: Replayed | None) -> tuple[int, list[Subject]]:
    """Return (step, subjects) of the state that steps 3 to 6 examine.

    It is the state before the failure, or that at the beginning of the replay if dO is no longer
    finite; for a run that never failed it is the last one.
    """
    if done is None:
        return chosen.last, subjects(
            chosen, chosen.last, arm(checkpoint.load(chosen.folder, chosen.last)[0], chosen.arm)
        )
    model: Gpt = done.model
    seen = subjects(chosen, chosen.looked, model.states[chosen.looked])
    if all(
        np.isfinite(np.asarray(x)).all()
        for s in seen
        for x in (s.layer.q, s.layer.k, s.layer.v, s.layer.do, s.x)
    ):
        return chosen.looked, seen
    first = chosen.known[0]
    return first, subjects(chosen, first, model.states[first])
