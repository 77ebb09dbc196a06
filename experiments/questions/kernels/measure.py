"""What is measured of a kernel on a family.

Errors are relative to the exact result; gains are the errors along it; and the rows of dS are
summed.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from roundscope.attention import examine
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import RESULTS, exact
from roundscope.attention.testing.foreign.user import Kernel
from roundscope.emu.testing.foreign import raised

TWIN_HEADS = 2  # the number of heads on which a kernel is compared with its twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over heads, which are independent, and its z: the mean over its standard error.

    z is NaN where there is one head.
    """

    mean: float
    z: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kernel on a family.

    error      result -> |kernel - exact| / |exact|, Frobenius norms over all heads
    gain       result -> <kernel - exact, exact> / |exact|^2 of a head; below 0 it is too short
    delta      <delta - exact delta, exact delta> / |exact delta|^2, with delta = rowsum(dO O) of
               the kernel's own O
    drift      rms of the row sums of dS over the rms of rowsum |dS|
    signed     the mean of the row sums of dS over the rms of rowsum |dS|
    same       result -> share of numbers equal to the twin's in every bit
    over       result -> error / the twin's error
    again      whether a second call gave the same bits
    failed     why there are no numbers
    """

    kernel: str
    family: str
    heads: int = 0
    error: dict[str, float] = field(default_factory=dict)
    gain: dict[str, Mean] = field(default_factory=dict)
    delta: Mean | None = None
    drift: float = math.nan
    signed: Mean | None = None
    twin: str = ""
    same: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    again: bool = True
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The exact results of a call, float64 (heads, T, H), and rowsum |dS| (heads, T)."""

    results: dict[str, np.ndarray]
    rows: np.ndarray


def by_head(x: Any, heads: int) -> np.ndarray:
    """Return the first heads of an array (B, T, N, H) as (heads, T, H) in float64."""
    x = np.asarray(x, np.float64)
    return np.ascontiguousarray(x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])[:heads])


def first(x: Inputs, heads: int) -> Inputs:
    """Return the inputs of the first heads, as one batch entry each."""
    q, k, v, do = (by_head(a, heads).astype(np.float32)[:, :, None] for a in (x.q, x.k, x.v, x.do))
    return replace(x, q=q, k=k, v=v, do=do)


def exact_of(x: Inputs, heads: int) -> Exact:
    """Return the exact results of the first heads."""
    results = exact(first(x, heads))
    return Exact(
        rows=results.rows[:, 0],
        results={name: by_head(getattr(results, name), heads) for name in RESULTS},
    )


def mean_of(values: np.ndarray) -> Mean:
    """Return the mean over heads and its z."""
    n = values.size
    spread = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    centre = float(values.mean())
    if centre == 0.0:
        return Mean(mean=centre, z=0.0)
    return Mean(mean=centre, z=float(centre / spread) if spread else math.inf)


def gains(own: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return <own - exact, exact> / |exact|^2 of every head; the arrays are (heads, ...)."""
    axes = tuple(range(1, own.ndim))
    along: np.ndarray = ((own - exact) * exact).sum(axes) / np.square(exact).sum(axes)
    return along


def measured(
    name: str,
    family: str,
    kernel: Kernel,
    x: Inputs,
    heads: int,
    exact: Exact,
    twin: str,
    twins: Outputs | None,
) -> Row:
    """Return the row of a kernel; if the kernel raises an error, the row says so."""
    try:
        outputs, again = kernel(x), kernel(x)
    except Exception as error:  # whatever a library raises
        return Row(kernel=name, family=family, failed=raised(error))
    if missing := [n for n in RESULTS if getattr(outputs, n) is None]:
        return Row(kernel=name, family=family, failed=f"returns no {', '.join(missing)}")
    same_bits = all(
        np.array_equal(a, getattr(again, n), equal_nan=True) for n, a in outputs.named()
    )
    own = {n: by_head(getattr(outputs, n), heads) for n in RESULTS}
    # without the feature of ones
    cut = {n: (own[n][..., :-1], exact.results[n][..., :-1]) for n in RESULTS}
    errors = {n: float(np.linalg.norm(a - b) / np.linalg.norm(b)) for n, (a, b) in cut.items()}
    do = by_head(x.do, heads)
    deltas = gains(*((do * y).sum(2) for y in (own["out"], exact.results["out"])))
    rows, size = own["dq"][..., -1] / x.scale, math.sqrt(float(np.square(exact.rows).mean()))
    row = Row(
        kernel=name,
        family=family,
        heads=heads,
        error=errors,
        gain={n: mean_of(gains(a, b)) for n, (a, b) in cut.items()},
        delta=mean_of(deltas),
        drift=math.sqrt(float(np.square(rows).mean())) / size,
        signed=mean_of(rows.mean(1) / size),
        twin=twin,
        again=same_bits,
    )
    return row if twins is None else _beside(row, own, exact, twins)


def _beside(row: Row, own: dict[str, np.ndarray], exact: Exact, twins: Outputs) -> Row:
    """Return the row with the comparison to the kernel's twin, on the heads that the twin has."""
    same, over = {}, {}
    for n in RESULTS:
        theirs = by_head(getattr(twins, n), TWIN_HEADS)
        ours, want = own[n][: len(theirs)], exact.results[n][: len(theirs), :, :-1]
        our_bits, their_bits = (a.astype(np.float32).view(np.int32) for a in (ours, theirs))
        same[n] = float((our_bits == their_bits).mean())
        our_error, their_error = (np.linalg.norm(a[..., :-1] - want) for a in (ours, theirs))
        over[n] = float(our_error / their_error)
    return replace(row, same=same, over=over)


def twin_outputs(twin: str, x: Inputs) -> Outputs:
    """Return what a twin gives on the first heads."""
    x = first(x, TWIN_HEADS)
    block_q, block_k = TWINS[twin].tiles(x.q.shape[-1])
    options: dict[str, Any] = {"record": None}  # no trace
    with np.errstate(all="ignore"):
        results = examine(
            x.q,
            x.k,
            x.v,
            x.do,
            plan=TWINS[twin].plan,
            block_q=block_q,
            block_k=min(block_k, x.k.shape[1]),
            scale=x.scale,
            is_causal=x.is_causal,
            engine="numpy",
            **options,
        )
    return Outputs(**{n: np.asarray(getattr(results, n), np.float32) for n in RESULTS})
