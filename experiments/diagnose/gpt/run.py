"""`roundscope diagnose RUN`: the folder of a training run in; steps 1 to 6."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from roundscope.experiments.diagnose.gpt.case import Case, case
from roundscope.experiments.diagnose.gpt.states import RunPart, guilty_places, subjects, survivals
from roundscope.experiments.diagnose.replay.start import Counter, Replayed, replayed
from roundscope.experiments.diagnose.tensors.findings import Findings, Progress, findings
from roundscope.experiments.diagnose.tensors.measured import Subject
from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.step import arm


def diagnose_run(folder: Path, *, name: str | None, first: int | None, until: int | None, progress: Progress) -> Findings:
    """The diagnosis of one arm. Raises UsageError for a folder without a run, arms and steps that it has not, and a context too short."""
    from roundscope.experiments.compile_cache import keep_compilations

    keep_compilations()
    chosen = case(folder, arm=name, first=first, until=until)
    done = None if chosen.failure is None else replayed(chosen, progress)
    step, seen = _subjects(chosen, done)
    found = findings(seen, f"{folder.resolve().name}, arm {chosen.own.name}", progress, guilty_places(done, seen))
    count = Counter(progress)
    count.says(6, "replays of the repairs")
    origins = found.origin.origins if found.leaning else []
    return replace(found, run=RunPart(case=chosen, step=step, replayed=done, survivals=survivals(done, origins, count)))


def _subjects(chosen: Case, done: Replayed | None) -> tuple[int, list[Subject]]:
    """What steps 3 to 6 look at: the state before the failure, or that at the beginning of the replay if it has no finite dO any more; of a
    run that never failed the last one.
    """
    if done is None:
        return chosen.last, subjects(chosen, chosen.last, arm(checkpoint.load(chosen.folder, chosen.last)[0], chosen.arm))
    step, state = done.look
    seen = subjects(chosen, step, state)
    if all(np.isfinite(np.asarray(x)).all() for s in seen for x in (s.layer.q, s.layer.k, s.layer.v, s.layer.do, s.x)):
        return step, seen
    return done.start[0], subjects(chosen, *done.start)
