"""`Arm`, one run among several on the same rows, and which arms run in one executable."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from roundscope.experiments.train.mx import linear
from roundscope.experiments.train.mx.linear import How
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.plan import Plan, plan_of
from roundscope.tools.errors import UsageError, bad
from roundscope.tools.results.run import key_of

EXACT = "fp32"
# pairs of (step, text): the text holds from this step on, after all texts of earlier steps
Changes = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run.

    changes   as `plan.plan_of` reads them, each from its step on
    lr        the peak;  seed: added to the config's
    """

    name: str
    changes: Changes = ()
    lr: float
    seed: int = 0

    def texts(self, step: int) -> tuple[str, ...]:
        """Return the changes that hold at a step."""
        return tuple(text for first, text in self.changes if first <= step)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The steps from which something changes, 0 among them, in ascending order."""
        return tuple(sorted({0, *(first for first, _ in self.changes)}))


def arm_of(config: Config, text: str, first: int = 0, before: Changes = ()) -> Arm:
    """Return the arm of NAME=CHANGE[;CHANGE], each change from step `first` on.

    They apply after those of `before`; lr=... is a change too. Raises UsageError.
    """
    name, given, rest = text.partition("=")
    if not given or not name.strip() or "->" in name:
        raise bad("--arm", text, "write NAME=CHANGE, such as  floor='-> mx=mxfp8_e4m3'")
    parts = [part.strip() for part in rest.split(";") if part.strip()]
    rates = [part for part in parts if part.startswith("lr=")]
    changes = tuple((first, part) for part in parts if part not in rates)
    arm = Arm(
        name=name.strip(), changes=(*before, *changes), lr=_rate(rates[-1]) if rates else config.lr
    )
    for step in arm.firsts:
        plan_of(config, arm.texts(step))
    return arm


def _rate(text: str) -> float:
    try:
        rate = float(text.removeprefix("lr="))
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < float("inf"):
        raise UsageError(f"{text}: give a positive number, such as lr=1e-3")
    return rate


def groups(config: Config, arms: Sequence[Arm]) -> list[list[Arm]]:
    """Return the arms by executable: the same events round and draw random bits, at all times."""
    needs: dict[Changes, How] = {}  # arms that differ in seed and rate have one plan
    found: dict[How, list[Arm]] = {}
    for arm in arms:
        if arm.changes not in needs:
            needs[arm.changes] = how_of(config, [arm])
        found.setdefault(needs[arm.changes], []).append(arm)
    return list(found.values())


def how_of(config: Config, arms: Sequence[Arm]) -> How:
    """Return what all arms need of an executable."""
    return linear.how_of(config.block, [plan for arm in arms for plan in plans_of(config, arm)])


def plans_of(config: Config, arm: Arm) -> list[Plan]:
    """Return the plans of an arm, in the order of their steps."""
    return [plan_of(config, arm.texts(step)) for step in arm.firsts]


def key(config: Config, arm: Arm) -> str:
    """Return the name of a result.

    It depends on all that decides the result but versions, device, and the arm's own name.
    """
    own = {k: v for k, v in asdict(arm).items() if k != "name"}
    return key_of(asdict(config) | {"lr": 1.0, "min_lr": config.min_lr / config.lr}, own)
