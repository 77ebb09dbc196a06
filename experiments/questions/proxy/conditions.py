"""The arms that `roundscope proxy` is asked for.

They are formats from the first step on, changes from some step on, or arms of the user's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from roundscope.emu.blocks.format import BLOCK_NAMED
from roundscope.emu.errors import unknown
from roundscope.experiments.framework.words import pairs, seeds_of
from roundscope.experiments.train.student.arms import EXACT, Arm, Changes, arm_of
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.plan import plan_of
from roundscope.experiments.train.student.presets import formats, interventions
from roundscope.tools.errors import UsageError, bad

MX = "mxfp8_e4m3"
STUDIES = ("formats", "interventions")
Reader = Callable[[str], Any]
BOOLEANS = {"true": True, "false": False}
READERS: dict[type, Reader] = {
    int: int,
    float: float,
    str: str,
    bool: lambda text: BOOLEANS[text.lower()],
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
# at these settings FP4 diverges, and FP32 does not
QUICK = Config(
    width=64, batch=64, steps=700, lr=0.1, min_lr=0.1, warmup=100, phi="swiglu", measure_every=100
)
SEEDS, QUICK_SEEDS = (0, 1, 2, 3, 4), (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arms of one config.

    first   the step from which interventions differ; None for arms that differ from the start
    """

    name: str
    config: Config
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    first: int | None = None


def asked(
    words: Sequence[str],
    *,
    name: str,
    own: Sequence[str] = (),
    first: int | None = None,
    at: Sequence[str] = (),
    seeds: str | None = None,
    quick: bool = False,
) -> Asked:
    """Return the arms that words and options ask for.

    words  KEY=VALUE of the config, and mx=FORMAT, the format of the interventions' base
    own    NAME=CHANGE[;CHANGE] in place of a study's arms; FP32 is always beside them
    first  the step of interventions
    at     STEP:CHANGE, for all arms but FP32

    Raises UsageError naming key, value and repair.
    """
    if name not in STUDIES:
        raise UsageError(unknown("study", name, STUDIES))
    given = pairs(words, ("mx", *(f.name for f in fields(Config))))
    mx = given.pop("mx", MX)
    config = configured(given, QUICK if quick else Config())
    if (name == "interventions") != (first is not None):
        repair = (
            "a step from which the interventions differ; it belongs to --study interventions, and"
            " that to it"
        )
        raise bad("--from", first, repair)
    if first is not None and not 0 < first < config.steps:
        raise bad("--from", first, f"a step after the first and before the last, {config.steps}")
    if mx not in BLOCK_NAMED:
        raise UsageError(unknown("block format", mx, BLOCK_NAMED))
    base: Changes = () if first is None else ((0, f"-> mx={mx}"),)
    presets = formats() if first is None else interventions(mx)
    texts = list(own) or [f"{n}={text}" for n, text in presets.items()]
    rounding = [text for text in texts if text.partition("=")[0].strip() != EXACT]
    arms = [_later(config, arm_of(config, text, first or 0, base), at) for text in rounding]
    if not arms:
        raise bad("--arm", EXACT, "is beside every study; give an arm that rounds, too")
    exact = [Arm(name=EXACT, lr=lr) for lr in dict.fromkeys(arm.lr for arm in arms)]
    chosen = seeds_of(seeds) or (QUICK_SEEDS if quick else SEEDS)
    every = tuple(replace(arm, seed=seed) for arm in (*exact, *arms) for seed in chosen)
    if len(set(every)) != len(every) or len({(a.name, a.lr) for a in arms}) != len(arms):
        raise UsageError("--arm: two arms have one name; give each its own")
    return Asked(name="arms" if own else name, config=config, arms=every, seeds=chosen, first=first)


def configured(given: dict[str, str], base: Config) -> Config:
    """Return the base with KEY=VALUE over it. Raises UsageError.

    With lr and without min_lr the rate is constant.
    """
    kinds = {f.name: type(getattr(base, f.name)) for f in fields(Config)}
    values = {}
    for name, text in given.items():
        try:
            values[name] = READERS[kinds[name]](text)
        except (ValueError, KeyError):
            raise bad(name, text, f"give {KINDS[kinds[name]]}") from None
    if "lr" in values and "min_lr" not in values:
        values["min_lr"] = values["lr"]
    return replace(base, **values)


def _later(config: Config, arm: Arm, at: Sequence[str]) -> Arm:
    changes = list(arm.changes)
    for text in at:
        step, given, change = text.partition(":")
        if not given or not step.strip().isdecimal():
            raise bad("--at", text, "write STEP CHANGE, such as  --at 300 'site=norm -> fp32'")
        changes.append((int(step), change.strip()))
    changed = replace(arm, changes=tuple(sorted(changes, key=lambda pair: pair[0])))
    for first in changed.firsts:
        plan_of(config, changed.texts(first))  # raises UsageError for a change that is none
    return changed
