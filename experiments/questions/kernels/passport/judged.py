"""What is said of the numbers that a kernel returned: finite first, then how far they are off."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import exact
from roundscope.emu.stats.comparison import deviations, gain, lost, relative_rms
from roundscope.experiments.questions.kernels.passport.outputs import Written
from roundscope.experiments.questions.kernels.passport.plans import (
    Twin,
    twin_of_attention,
    twin_of_operation,
)
from roundscope.experiments.questions.kernels.passport.writer import calls
from roundscope.operations.run import run

ROW = 2  # bytes of the checksum of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result beside the exact one.

    Attributes:
        digest: A hash of its bits.
        of: How many numbers it has.
        nan, infinite: How many of them are NaN or infinite; exact results are finite.
        error: |result - exact| / |exact|, norms over all numbers; infinite if one is not finite.
        gain: <result - exact, exact> / |exact|^2; below 0 it is too short.
        bias: The mean of result - exact over its rms; +-1 / sqrt(of) is chance.
        rows: A checksum of 16 bits for each row of features, in hexadecimal digits.
    """

    digest: str
    of: int
    nan: int
    infinite: int
    error: float
    gain: float
    bias: float
    rows: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is said of all results of a kernel.

    Attributes:
        operation: What was computed.
        type: The type of the numbers.
        results: By name: out, dq, dk, dv.
        drift: The rms of the row sums of dS over the rms of rowsum |dS|; NaN without dq.
        twin: The nearest plan; None if none is near.
    """

    operation: str
    type: str
    results: Mapping[str, Result]
    drift: float = math.nan
    twin: Twin | None = None


@cache
def _call() -> tuple[Inputs, dict[str, np.ndarray], float]:
    """Return the call of attention, its exact results, and the rms of its row sums of |dS|."""
    given = calls.inputs("attention")
    q, k, v, do = (given[name] for name in ("q", "k", "v", "do"))
    x = Inputs(q=q, k=k, v=v, do=do, scale=calls.SCALE, is_causal=True)
    found = exact(x)
    results = {name: getattr(found, name) for name in ("out", "dq", "dk", "dv")}
    return x, results, math.sqrt(float(np.square(found.rows).mean()))


@cache
def _exact_of(operation: str) -> dict[str, np.ndarray]:
    """Return the results of the call of an operation in binary64."""
    if operation == "attention":
        return _call()[1]
    settings = {"eps": calls.EPS[operation]} if operation in calls.EPS else {}
    return dict(run(operation, "exact", calls.inputs(operation), settings=settings).outputs)


def judge(written: Written, tell: Callable[[str], None]) -> Judged:
    """Judge what a kernel returned; the search of its plan takes seconds to a minute."""
    operation, kind = written.about["operation"], written.about["type"]
    wanted, results = _exact_of(operation), {}
    for name, x in written.results.items():
        results[name] = result_of(x, wanted[name], without_last=operation == "attention")
    found = Judged(operation=operation, type=kind, results=results)
    if not all(np.isfinite(x).all() for x in written.results.values()):
        return found  # no plan is looked for, since the exact results are finite
    return Judged(
        operation=operation,
        type=kind,
        results=results,
        drift=_drift(written.results.get("dq")) if operation == "attention" else math.nan,
        twin=_twin(written.about, written.results, tell),
    )


def result_of(x: np.ndarray, want: np.ndarray, *, without_last: bool = False) -> Result:
    """Return what is said of one result; without_last: its last feature is no part of the call."""
    strange = lost(x)
    own, exact = (x[..., :-1], want[..., :-1]) if without_last else (x, want)
    off = deviations(own, exact)
    size = float(np.sqrt(np.square(off).mean()))
    return Result(
        digest=calls.digest(x),
        of=x.size,
        nan=strange.nan,
        infinite=strange.infinite,
        error=relative_rms(own, exact),
        gain=gain(own, exact),
        bias=float(off.mean()) / size if 0.0 < size < math.inf else (0.0 if not size else math.nan),
        rows="".join(
            hashlib.blake2b(row.tobytes(), digest_size=ROW).hexdigest()
            for row in np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])
        ),
    )


def _drift(dq: np.ndarray | None) -> float:
    """Return the rms of the row sums of dS, which the last feature of dq has, over rowsum |dS|."""
    if dq is None:
        return math.nan
    rows = dq[..., -1].astype(np.float64) / calls.SCALE
    return math.sqrt(float(np.square(rows).mean())) / _call()[2]


def _twin(
    about: Mapping[str, Any], results: Mapping[str, np.ndarray], tell: Callable[[str], None]
) -> Twin | None:
    if about["operation"] == "attention":
        return twin_of_attention(_call()[0], Outputs(**results), about["type"], tell)
    x = calls.inputs(about["operation"])
    kind, settings = about["type"], about["settings"]
    return twin_of_operation(about["operation"], x, results, kind, settings, tell)
