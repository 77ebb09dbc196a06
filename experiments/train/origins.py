"""Where a run comes from: nowhere, itself (it continues), or a step of another one.

In the last case it is a branch of that run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from roundscope.experiments.options import TrainOptions
from roundscope.experiments.train import checkpoint, devices, groups
from roundscope.experiments.train.config import WORD
from roundscope.experiments.train.gpt import linear, offset
from roundscope.experiments.train.gpt.engines import has_device
from roundscope.experiments.train.gpt.interventions import described
from roundscope.experiments.train.run import training
from roundscope.experiments.train.settings import Arm, Settings, plain, settings, settings_of
from roundscope.experiments.train.step import pick
from roundscope.tools.errors import bad
from roundscope.tools.results.machine import device, versions

# the fields that may change when a run continues
FREE = ("steps", "checkpoint_every", "keep", "monitor_every", "drift_alarm")
# the fields that a state depends on; of the last two, whether they are 0
SIZES = (
    *("layers", "heads", "width", "context", "vocab", "position", "qk_norm", "tied", "mlp_ratio"),
    *("gated", "llama", "optimizer"),
)
FIXED = (*SIZES, "clip", "weight_decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What to run and how it begins.

    settings   of the run;  beginning: makes its first state; nothing is computed before it is
               called
    in_place   whether the run continues in the folder that it comes from
    words      the folder, checkpoint and step that a branch comes from, for the log
    notes      what the user should know before it runs
    """

    settings: Settings
    beginning: Callable[[], training.Beginning]
    in_place: bool
    words: dict[str, Any]
    notes: tuple[str, ...] = ()


def new(options: TrainOptions) -> Origin:
    """Return a run from its first weights. Raises UsageError for a bad request, data included."""
    asked = settings(options.words, arms=options.arms, at=options.at, seeds=options.seeds)
    # with decay_steps given, a later steps= leaves the schedule as it is
    asked = replace(asked, config=replace(asked.config, decay_steps=asked.config.cosine_end))
    if asked.config.parts is None:  # kept, so that the run goes on with the same bits elsewhere
        parts = devices.parts_here(asked.config, groups.numbers(asked))
        asked = replace(asked, config=replace(asked.config, parts=parts))
    _check(asked, 0, asked.at)
    return Origin(settings=asked, beginning=partial(_first, asked), in_place=False, words={})


def earlier(folder: Path, options: TrainOptions, *, is_branch: bool) -> Origin:
    """Return a run from a checkpoint of `folder`, in place or as a branch. Raises UsageError."""
    first, arms, at, every = options.first, options.arms, options.at, checkpoint.steps(folder)
    known = [s for s in every if first is None or s <= first]
    if every and not known:
        raise bad("--from", first, f"{folder} has checkpoints from step {every[0]} on")
    state, meta = checkpoint.load(folder, known[-1] if known else None)
    before = settings_of(meta)
    step = meta["step"] if first is None else first
    if options.seeds:
        raise bad("--seeds", options.seeds, "a branch keeps the seeds of its run; leave it out")
    asked = settings(options.words, arms=arms, at=at, before=plain(before.config))
    # a run that went on has more steps than its early checkpoints say
    last = max(before.config.steps, *every)
    if step > last:
        raise bad("--from", step, f"{folder} ends at step {last}")
    if step > meta["step"] and not has_device(before.config):
        repair = (
            f"the steps from {meta['step']} on would be done again, with"
            f" engine={before.config.engine}, and JAX sees no GPU; give --from {meta['step']}"
        )
        raise bad("--from", step, repair)
    if asked.config.steps < step:
        done = f"the first {step} are done; give more, or an earlier --from STEP with --out NEW"
        raise bad("steps", asked.config.steps, done)
    if is_branch:
        found, chosen = _branch(before, asked, step, has_arms=bool(arms), folder=folder)
    else:
        if first is not None:
            repair = (
                f"a branch needs a folder of its own: --resume {folder} --from {first} --out NEW;"
                " to go on in place leave --from out"
            )
            raise bad("--from", first, repair)
        own = {name: getattr(before.config, name) for name in FREE}
        if arms or at or replace(asked.config, **own) != before.config:
            repair = (
                f"a run that goes on keeps all but {', '.join(FREE)}; for a branch add --out NEW"
            )
            raise bad("--resume", str(folder), repair)
        found, chosen = replace(before, config=asked.config), list(range(len(before.arms)))
    _check(found, step, asked.at)
    now, then = next(iter(groups.batches_of(found).values())).about, meta["data"]
    other = now.get("fingerprint") != then.get("fingerprint")
    if found.config.data == meta["config"]["data"] and other:
        repair = f"is not what {folder} was trained on; its batches would differ"
        raise bad("data", found.config.data, repair)
    words = {"folder": str(folder), "checkpoint": meta["step"], "step": step} if is_branch else {}
    return Origin(
        settings=found,
        beginning=partial(_later, before, state, meta, step, chosen),
        in_place=not is_branch,
        words=words,
        notes=_notes(before, found, step, folder),
    )


def _notes(before: Settings, found: Settings, step: int, folder: Path) -> tuple[str, ...]:
    """Return what a user would not expect of a run that goes on, each with what to do about it."""
    end, steps, notes = found.config.cosine_end, found.config.steps, []
    again = f"roundscope train --resume {folder} --from {step} --out NEW"
    if steps > before.config.steps and end < steps and end == before.config.cosine_end:
        notes.append(
            f"decay_steps stays {end}: from there to step {steps} the learning rate is min_lr ="
            f" {found.config.min_lr:g}; for a longer schedule: {again} steps={steps}"
            f" decay_steps={steps}"
        )
    if found.config.parts is None:
        parts = devices.parts_here(found.config, groups.numbers(found))
        if parts > 1:
            notes.append(
                "the run was begun by a version whose batches had no parts, so it goes on on one"
                f" device; to use more: {again} parts={parts}"
            )
    return tuple(notes)


def recorded(origin: Origin) -> dict[str, Any]:
    """Return the columns of the log's table runs."""
    found = origin.settings
    arms = [
        {
            "name": a.name,
            "lr": a.lr,
            "seed": a.seed,
            "plans": described(groups.plans_at(found, a, 0)),
            "offsets": offset.described(groups.wrongs_at(found, a, 0)),
            "linears": linear.described(groups.formats_at(found, a, 0)),
        }
        for a in found.arms
    ]
    own = versions("xla") | {name: metadata.version(name) for name in ("optax", "safetensors")}
    places = {devices.place(found.config, numbers).words for numbers in groups.numbers(found)}
    about = next(iter(groups.batches_of(found).values())).about
    return {
        "config": plain(found.config),
        "arms": {"arms": arms, "at": found.at},
        "data": about,
        "versions": own,
        "device": f"{device('xla')}; {', '.join(sorted(places))}; sums {found.config.sums}",
        "origin": origin.words,
    }


def _first(found: Settings) -> training.Beginning:
    from roundscope.experiments.train.gpt.step import start

    seeds = [(found.config.init_seed + arm.seed) % WORD for arm in found.arms]
    return training.Beginning(step=0, state=start(found.config, len(found.arms), seeds))


def _later(
    before: Settings, state: Any, meta: dict[str, Any], step: int, chosen: list[int]
) -> training.Beginning:
    state = groups.replayed(before, state, meta["step"], step) if step > meta["step"] else state
    return training.Beginning(
        step=step, state=pick(state, chosen), watch=meta["watch"], arms=chosen
    )


def _branch(
    before: Settings, asked: Settings, step: int, *, has_arms: bool, folder: Path
) -> tuple[Settings, list[int]]:
    """Return a branch's settings, earlier changes in its arms, and the arms that go on in it."""
    for name in FIXED:
        old, now = getattr(before.config, name), getattr(asked.config, name)
        if old != now and (name not in ("clip", "weight_decay") or bool(old) != bool(now)):
            raise bad(name, now, f"{folder} has {old}, and a branch keeps it; start a new run")
    rate = asked.config.lr if asked.config.lr != before.config.lr else None
    past = tuple(text for first, text in before.at if first <= step)
    names = [arm.name for arm in before.arms]
    wanted = asked.arms if has_arms else tuple(replace(arm, changes=()) for arm in before.arms)
    arms, chosen = [], []
    for arm in wanted:
        if len(names) > 1 and arm.name not in names:
            repair = f"{folder} has several arms; name those that go on: {' '.join(names)}"
            raise bad("--arm", arm.name, repair)
        source = names.index(arm.name) if len(names) > 1 else 0
        old_arm = before.arms[source]
        lr = arm.lr if has_arms and arm.lr != asked.config.lr else rate or old_arm.lr
        changes = (*old_arm.changes, *past, *arm.changes)
        arms.append(Arm(name=arm.name, changes=changes, lr=lr, seed=old_arm.seed))
        chosen.append(source)
    later = [pair for pair in before.at if pair[0] > step]
    at = tuple(sorted((*later, *asked.at), key=lambda pair: pair[0]))
    return Settings(config=asked.config, arms=tuple(arms), at=at), chosen


def _check(found: Settings, step: int, asked: Sequence[tuple[int, str]]) -> None:
    """Check what only a run can: plans, data, and that it reaches the steps of its changes."""
    groups.numbers(found)
    for batches in groups.batches_of(found).values():
        batches.batch(step)
    for first, text in asked:
        if not step <= first < found.config.steps:
            steps = f"from step {step} to {found.config.steps - 1}"
            raise bad("--at", f"{first} '{text}'", f"give a step that the run takes, {steps}")
