"""`roundscope diagnose RUN`: steps 1 to 6 for the folder of a training run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from roundscope.attention.plans.presets import exact
from roundscope.experiments.diagnose.gpt.case import Case, case
from roundscope.experiments.diagnose.gpt.replay import Gpt
from roundscope.experiments.diagnose.gpt.units import Edit, by_head, everywhere, is_random
from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.linear import LinearPlans
from roundscope.experiments.train.gpt.plans import Tables, by_layer
from roundscope.experiments.train.gpt.step import plans_at
from roundscope.experiments.train.groups import batches_of, linears_at
from roundscope.experiments.train.spikes import RULE
from roundscope.experiments.train.step import arm
from roundscope.tools.diagnose.options import DiagnoseOptions
from roundscope.tools.diagnose.replay.replayer import Clock, Outcome, Trial
from roundscope.tools.diagnose.replay.start import Cause, Replayed, RunPart, replayed
from roundscope.tools.diagnose.replay.store import Store
from roundscope.tools.diagnose.search import REPEATS
from roundscope.tools.diagnose.tensors.carrier import shares
from roundscope.tools.diagnose.tensors.findings import Findings, Progress, Stopped, findings
from roundscope.tools.diagnose.tensors.measured import Measured, Subject
from roundscope.tools.diagnose.tensors.repairs import SHAM, changes, noise
from roundscope.tools.tensors.layers import Layer
from roundscope.tools.trace.request import Request

TOKENS = 1024  # tokens of a head that are examined


def subjects(case: Case, step: int, state: Any) -> list[Subject]:
    """Return every layer at a state, by plan, on the batch of its step and those after it."""
    config, plans = case.settings.config, case.plans(step)
    batches = batches_of(case.settings)[case.own.seed]
    count = max(1, TOKENS // (config.batch * config.context))
    tokens = np.concatenate([batches.batch(step + i) for i in range(count)])
    table = plans_at(by_layer(plans), np.int32(step))
    assert table is not None
    linears = linears_at(case.settings, case.own, step)
    do, (x, q, k, v) = _reading(config)(state.params, tokens, table, linears)
    x, *rest = (np.asarray(a)[:, : max(1, TOKENS // config.context)] for a in (x, q, k, v, do))
    found = []
    for i, row in enumerate(plans):
        different = list(dict.fromkeys(row))
        for number, plan in enumerate(different):
            heads = tuple(n for n, own in enumerate(row) if own == plan)
            q, k, v, do = (np.ascontiguousarray(leaf[i][:, :, list(heads)]) for leaf in rest)
            name = f"layer {i}" + (f", plan {number + 1}" if len(different) > 1 else "")
            layer, tile = Layer(name=name, q=q, k=k, v=v, do=do), config.tile
            how = Request(plan=plan, against=exact(), block_q=tile, block_k=tile, causal=True)
            found.append(Subject(layer=layer, request=how, x=x[i], numbers=heads))
    return found


@lru_cache(16)
def _reading(config: Config) -> Any:
    """Return a function that returns dO of every layer, and what its attention read."""

    def read(params: Any, tokens: Any, plans: Tables, linears: LinearPlans | None) -> Any:
        return model.read(params, tokens, plans, config, linears=linears)

    return jax.jit(read)


def guilty_places(replayed: Replayed | None, subjects: list[Subject]) -> list[tuple[int, int]]:
    """Return (subject, head) for every head in which some event must be exact."""
    if replayed is None or replayed.guilty is None or not replayed.holds:
        return []
    names = by_head(replayed.guilty.found)

    def own(x: Subject, head: str) -> str:
        return f"{x.layer.name.partition(',')[0]}, head {head}"

    return [
        (i, n)
        for i, x in enumerate(subjects)
        for n, head in enumerate(x.heads)
        if own(x, head) in names
    ]


def survivals(replayed: Replayed | None, origins: list[str]) -> dict[str, Outcome]:
    """Return the outcome of the window under each repair and the sham; {} for other causes."""
    if replayed is None or replayed.cause is not Cause.ROUNDING:
        return {}
    plans = replayed.case.plans(replayed.case.until)
    flat = list(dict.fromkeys(plan for row in plans for plan in row))
    known = changes(flat, origins)
    edits: dict[str, Edit] = {name: everywhere(change) for name, change in known.items()}
    if noise(plans) is not None:
        edits[SHAM] = lambda plans: noise(plans) or plans
    often = 1 if replayed.guilty is None else replayed.guilty.repeats
    times = {name: REPEATS if is_random(edit(plans)) else often for name, edit in edits.items()}
    trials = [Trial(edit, r) for name, edit in edits.items() for r in range(times[name])]
    fates = iter(replayed.replayer(trials))
    each = {name: tuple(next(fates) for _ in range(times[name])) for name in edits}
    return {name: Outcome(units=frozenset(), fates=own) for name, own in each.items()}


def repaired_rows(
    replayed: Replayed | None, measured: Sequence[Measured], step: int
) -> list[np.ndarray]:
    """Return `carrier.shares` of each layer with the set of step 2 exact, [] without one."""
    if replayed is None or replayed.guilty is None or not replayed.holds:
        return []
    plans, found = replayed.model.exactly(replayed.guilty.found)(replayed.case.plans(step)), []
    for m in measured:
        layer = plans[int(m.layer.name.partition(",")[0].removeprefix("layer "))]
        own = [layer[int(name)] for name in m.heads]
        of = {plan: shares(m, plan) for plan in set(own)}
        found += [np.array([x[i] for i, plan in enumerate(own) if (x := of[plan]) is not None])]
    return found


def diagnose_run(
    folder: Path, options: DiagnoseOptions, out: Path, progress: Progress
) -> Findings | Stopped:
    """Return the diagnosis of one arm; out: where its replays are kept.

    Raises UsageError for a folder without a run, arms and steps that it lacks, and a context that
    is too short; StorageError for results that cannot be kept.
    """
    from roundscope.tools.compile_cache import keep_compilations

    keep_compilations()
    chosen = case(folder, options)
    clock = Clock(progress)
    done = None
    if chosen.failure is not None:
        done = replayed(Gpt(case=chosen, store=Store(out), clock=clock), out, clock)
    step, seen = _subjects(chosen, done)
    name = f"{folder.resolve().name}, arm {chosen.own.name}"
    found = findings(seen, name, progress, guilty_places(done, seen))
    if isinstance(found, Stopped):
        return found
    clock.says(6, "replays of the repairs")
    origins = found.origin.origins if found.biased else []
    rows, matmul = repaired_rows(done, found.measured, step), chosen.settings.config.matmul
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
                f"Other arithmetic: the linear layers stay as they are (matmul={matmul}), and so do"
                " the order of sums and the optimizer."
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
        state = arm(checkpoint.load(chosen.folder, chosen.last)[0], chosen.arm)
        return chosen.last, subjects(chosen, chosen.last, state)
    states: dict[int, Any] = done.model.states
    seen = subjects(chosen, chosen.looked, states[chosen.looked])
    read: Any = (x for s in seen for x in (s.layer.q, s.layer.k, s.layer.v, s.layer.do, s.x))
    if all(np.isfinite(x).all() for x in read):
        return chosen.looked, seen
    first = chosen.known[0]
    return first, subjects(chosen, first, states[first])
