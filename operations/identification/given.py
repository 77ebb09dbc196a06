"""The numbers of a call that `identify` explains, and how near a plan is to them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.errors import unknown
from roundscope.emu.stats.comparison import agree
from roundscope.events.plan import BasePlan
from roundscope.events.recorder import RecordBase
from roundscope.operations.identification.plans_tried import type_of
from roundscope.operations.operation import Operation, Shape
from roundscope.operations.run import arrays_of, computed, settings_of

BITS = {"bf16": 8, "fp16": 11, "fp32": 24, "e4m3fn": 4, "e5m2": 3}  # of a significand


class Score(NamedTuple):
    """How near a plan is to the numbers of a call: the share that is equal, how many zeros have
    the other sign, and the mean distance of all in octaves of units in the last place.
    """

    share: float
    signs: int
    distance: float

    @property
    def is_exact(self) -> bool:
        """Whether every bit is equal, but for those of NaN."""
        return self.share == 1.0 and not self.signs

    @property
    def rank(self) -> tuple[float, int, float]:
        """Return the key by which scores are sorted, the nearest plan first."""
        return -self.share, self.signs, self.distance


class Watched:
    """A plan that notes which of its attributes are read."""

    def __init__(self, plan: Any) -> None:
        self.plan, self.read = plan, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.plan, name)

    def __getitem__(self, site: Any) -> Any:
        return self.plan[site]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A call whose numbers are to be explained, as the equations take it.

    arrays   the inputs, in binary64
    wanted   the outputs by their place among those of the operation, rows flattened
    types    the types of inputs and outputs
    by_rows  whether a row of the inputs makes a row of the outputs, so that some can stand for all
    """

    own: Operation
    settings: tuple[tuple[str, Any], ...]
    arrays: tuple[Any, ...]
    wanted: Mapping[int, np.ndarray]
    types: tuple[str, ...]
    outputs: Mapping[str, str]
    by_rows: bool

    @property
    def rows(self) -> int:
        """The number of rows."""
        pairs = zip(self.own.inputs, self.arrays, strict=True)
        return next((len(x) for v, x in pairs if x is not None and v.shape is not Shape.SHARED), 1)

    @property
    def results(self) -> int:
        """The number of results of a row that can be computed alone; 1 if there are none."""
        pairs = zip(self.own.inputs, self.arrays, strict=True)
        return next((len(x) for v, x in pairs if x is not None and v.name in self.own.by_result), 1)

    @property
    def features(self) -> int:
        """The number of features of a row."""
        pairs = zip(self.own.inputs, self.arrays, strict=True)
        return next((x.shape[1] for v, x in pairs if x is not None and v.shape is Shape.ROWS), 1)

    @property
    def numbers(self) -> int:
        """The number of numbers that the call returned."""
        return sum(x.size for x in self.wanted.values())

    @property
    def work(self) -> int:
        """The number of products, or of numbers, of a call."""
        return self.rows * self.features * self.results

    def within(self, work: int) -> "Given":
        """Return as much of the call as some work computes."""
        if self.work <= work or not self.by_rows:
            return self
        results = min(self.results, max(16, math.isqrt(work // self.features)))
        return self.part(max(1, work // (self.features * results)), results)

    def part(self, rows: int, results: int) -> "Given":
        """Return so many rows and results of the call, evenly spaced."""
        if not self.by_rows or (rows >= self.rows and results >= self.results):
            return self
        r = np.unique(np.linspace(0, self.rows - 1, min(rows, self.rows)).astype(int))
        g = np.unique(np.linspace(0, self.results - 1, min(results, self.results)).astype(int))
        has_results = any(v.name in self.own.by_result for v in self.own.inputs)

        def kept(v: Any, x: Any) -> Any:
            if x is None:
                return None
            if v.shape is Shape.SHARED:
                return x[g] if v.name in self.own.by_result else x
            return x[r]

        pairs = zip(self.own.inputs, self.arrays, strict=True)
        wanted = {n: x[r][:, g] if has_results else x[r] for n, x in self.wanted.items()}
        return replace(self, arrays=tuple(kept(v, x) for v, x in pairs), wanted=wanted)

    def found(self, plan: Any) -> dict[int, np.ndarray] | None:
        """Return the outputs under a plan; None if it cannot run."""
        try:
            with np.errstate(all="ignore"):
                out = computed(
                    self.own, plan, self.settings, (), None, numpy_ops(), self.arrays, None
                )[0]
        except ValueError:  # a choice that does not go with these shapes
            return None
        return {n: np.asarray(out[n]) for n in self.wanted if out[n] is not None}

    def reached(self, plan: Any) -> tuple[list[str], list[str]]:
        """Return the events that the call has under a plan, and the choices that it reads."""
        one, watched = self.part(1, 1), cast(BasePlan, own := Watched(plan))
        with np.errstate(all="ignore"):
            seen = computed(
                one.own, watched, one.settings, (), RecordBase(), numpy_ops(), one.arrays, None
            )[2]
        read = [name for name in plan.choices() if name in own.read]
        return [site for site in plan.SITES if site in seen], read


def calls_given(
    own: Operation, inputs: Any, outputs: Any, settings: Mapping[str, Any]
) -> list[Given]:
    """Return the calls that `identify` was given.

    Raises:
        ValueError: As `identify` says.
    """
    many_in = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    many_out = [outputs] if isinstance(outputs, Mapping) else list(outputs)
    if len(many_in) != len(many_out) or not many_in:
        raise ValueError(
            f"outputs: of {len(many_out)} calls, and inputs of {len(many_in)}; give both of each"
        )
    told = settings_of(own, settings)
    return [_given(own, told, i, o) for i, o in zip(many_in, many_out, strict=True)]


def _given(
    own: Operation,
    settings: tuple[tuple[str, Any], ...],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
) -> Given:
    arrays, lead = arrays_of(own, inputs)
    known = {v.name: n for n, v in enumerate(own.outputs)}
    if not outputs:
        raise ValueError(f"outputs: none given; {own.name} returns {' '.join(known)}")
    wanted: dict[int, np.ndarray] = {}
    sites: dict[str, str] = {}
    by_rows = True
    for name, x in outputs.items():
        if name not in known:
            raise ValueError(unknown(f"output of {own.name}", name, known))
        v, x = own.outputs[known[name]], np.asarray(x)
        sites[str(v.site)] = type_of(x)
        rows = math.prod(lead)
        if x.shape[: len(lead)] == lead:
            x = x.reshape(rows, *x.shape[len(lead) :])
        elif v.shape is Shape.ROWS or x.size != 1:
            raise ValueError(
                f"{name} of shape {x.shape}: its rows are not {lead}, as of the inputs"
            )
        else:
            by_rows = False
        wanted[known[name]] = x
    shared = [v.name for v in own.inputs if v.shape is Shape.SHARED and v.name not in own.by_result]
    if own.by_result and any(inputs.get(name) is not None for name in shared):
        by_rows = False  # scales of rows or of results
    types = [type_of(x) for x in (*inputs.values(), *outputs.values()) if x is not None]
    given = Given(
        own=own,
        settings=settings,
        arrays=arrays,
        wanted=wanted,
        types=tuple(dict.fromkeys(t for t in types if t)),
        outputs=sites,
        by_rows=by_rows,
    )
    return given


def score_of(calls: Sequence[Given], plan: Any) -> Score | None:
    """Return how near a plan is; None if it cannot run."""
    equal = total = signs = 0
    distance = 0.0
    for call in calls:
        found = call.found(plan)
        if found is None or len(found) < len(call.wanted):
            return None
        for n, x in call.wanted.items():
            own, want = found[n], x.astype(np.float64)
            if own.shape != want.shape and own.size != want.size:
                raise ValueError(
                    f"{call.own.outputs[n].name} of shape {want.shape}: {call.own.name} returns"
                    f" {own.shape}"
                )
            own = own.reshape(want.shape)
            same = agree(own, want)
            equal, total = equal + int(same.sum()), total + want.size
            zeros = (own == 0) & (want == 0) & (np.signbit(own) != np.signbit(want))
            signs += int(zeros.sum())
            apart = ~same
            if apart.any():
                ulps = ulps_of(own[apart], want[apart], type_of(x))
                distance += float(np.log2(1.0 + np.minimum(ulps, 2.0**40)).sum())
    return Score(equal / max(total, 1), signs, distance / max(total, 1))


def ulps_of(own: np.ndarray, want: np.ndarray, kind: str) -> np.ndarray:
    """Return differences in units in the last place of a type; infinite where one is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        top = np.maximum(np.abs(own), np.abs(want))
        away = np.abs(own - want) / np.ldexp(1.0, np.frexp(top)[1] - BITS.get(kind, 53))
    return np.where(np.isfinite(away), away, np.inf)
