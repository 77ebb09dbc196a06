"""The trial of what a call may have meant: which meaning explains a kernel's output.

Each meaning is tried in binary64 on some rows of one head, those with one number that is fitted
too. It explains the numbers if the error falls to what a rounding makes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import visible
from roundscope.emu import round_to
from roundscope.emu.stats.comparison import lost, relative_rms
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.candidates import cast_of
from roundscope.tools.identify.meanings import (
    CALLED,
    LOG2_E,
    TILES,
    Change,
    How,
    Meaning,
    but,
    exact_rows,
    first_key,
    meanings,
    missing,
    scores,
    weights,
)
from roundscope.tools.identify.reading import of_key_head

ROUNDED = 4.0  # an error of at most so many casts to BF16 is a rounding's
FALLS = 3.0  # a meaning explains if the error is so many times smaller than that of the call
BETTER = 1.5  # a meaning with which the error falls so much is tried together with others
AS_WELL = 1.05  # two meanings explain equally well if their errors differ by no more
EVEN, WORST, FIT_ROWS = 48, 16, 12  # rows: at even distances, those that differ most, of a fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What the trial of meanings found.

    given    the error of the output from the exact result of the call as it was given
    cast     the error of that exact result, cast to BF16 or to the fewer bits of the output
    tried    how many meanings were tried
    words    the meaning that explains the output; empty if the call's own does, or none does
    error    the error from the exact result of that meaning
    nearest  the words of the meaning that is nearest, with its error
    x, outputs  the call of that meaning, of all heads
    is_call  whether the meaning is a call of attention, whose roundings can be looked for
    """

    given: float
    cast: float
    tried: int = 0
    words: str = ""
    error: float = 0.0
    nearest: tuple[str, float] = ("", np.inf)
    x: Inputs
    outputs: Outputs
    is_call: bool = True

    @property
    def is_rounded(self) -> bool:
        """Whether the call as it was given explains the output, but for roundings."""
        return self.given <= ROUNDED * self.cast


def trial(x: Inputs, outputs: Outputs, head: int = 0) -> Meant:
    """Try meanings of a call on one key head, and return what they explain.

    Args:
        x: the call of all heads.
        outputs: what the kernel returned.
        head: the number of the key head.
    """
    part, kept, _ = of_key_head(x, outputs, 0, head)
    want = kept.out.astype(np.float64)
    every = exact_rows(part, np.arange(part.q.shape[1]))
    rows = _chosen(every, want)
    given = relative_rms(want[:, rows], every[:, rows])
    narrow = cast_of(want, every)
    cast = relative_rms(np.asarray(round_to(every[:, rows], narrow)), every[:, rows])
    meant = Meant(given=given, cast=cast, x=x, outputs=outputs)
    if meant.is_rounded or not rows.size:
        return meant
    tried = [
        (m, _error(m, x, outputs, head, rows))
        for m in (*meanings(x), *_fitted(x, part, want, rows, every))
    ]
    bar = min(ROUNDED * cast, given / FALLS)
    if not any(e <= bar for _, e in tried):
        begun = sorted((p for p in tried if p[1] * BETTER < given), key=lambda p: p[1])[:3]
        begun += [p for p in tried if "aligned" in p[0].words and p not in begun]
        for first, _ in begun:
            moved, theirs = first.of(x, outputs)
            inside, kept, _ = of_key_head(moved, theirs, 0, head)
            if kept.out.shape[1] != want.shape[1]:
                continue  # other queries see no key
            every = exact_rows(inside, np.arange(inside.q.shape[1]), first.how)
            more = (*meanings(moved), *_fitted(moved, inside, want, rows, every))
            both = [
                Meaning(
                    words=f"{first.words} and {second.words}",
                    of=partial(_both, first.of, second.of),
                    how=second.how if first.how == CALLED else first.how,
                )
                for second in more
                if CALLED in (first.how, second.how)
            ]
            tried += [(m, _error(m, x, outputs, head, rows)) for m in both]
    meant = replace(meant, tried=len(tried))
    if not tried:
        return meant
    # the first of those that explain it as well: what has a name comes before what was fitted, and
    # one meaning before two
    least = min(error for _, error in tried)
    best, error = next(pair for pair in tried if pair[1] <= AS_WELL * least)
    meant = replace(meant, nearest=(best.words, error))
    if least > bar:
        return meant
    moved, theirs = best.of(x, outputs)
    is_call = (
        best.how in (CALLED, How(factor=best.how.factor)) and np.frexp(best.how.factor)[0] == 0.5
    )
    if is_call and best.how.factor != 1.0:
        given_ = np.float32(1.0 / best.how.factor)
        theirs = replace(theirs, out=theirs.out * given_, dq=None, dk=None, dv=None)
    return replace(
        meant, words=best.words, error=error, x=moved, outputs=theirs, is_call=bool(is_call)
    )


def _both(first: Change, second: Change, x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
    return second(*first(x, outputs))


def _chosen(every: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return the rows on which meanings are tried, among those whose numbers are finite."""
    fine = np.flatnonzero(np.isfinite(want).all((0, 2, 3)) & np.isfinite(every).all((0, 2, 3)))
    if not fine.size:
        return fine
    away = np.square(want[:, fine] - every[:, fine]).sum((0, 2, 3))
    size = np.square(every[:, fine]).sum((0, 2, 3))
    far = fine[np.argsort(-away / np.maximum(size, 1e-300), kind="stable")[:WORST]]
    even = fine[np.linspace(0, fine.size - 1, min(EVEN, fine.size)).round().astype(int)]
    return np.unique((*far, *even))


def _error(m: Meaning, x: Inputs, outputs: Outputs, head: int, rows: np.ndarray) -> float:
    """Return the error of the output from the exact result of a meaning."""
    try:
        part, kept, blind = of_key_head(*m.of(x, outputs), 0, head)
    except UsageError:
        return np.inf  # no query sees a key
    if blind.any():
        rows = (np.cumsum(~blind) - 1)[rows[rows < blind.size]][~blind[rows[rows < blind.size]]]
    if not rows.size:
        return np.inf
    return relative_rms(kept.out[:, rows].astype(np.float64), exact_rows(part, rows, m.how))


def _fitted(
    x: Inputs, part: Inputs, want: np.ndarray, rows: np.ndarray, every: np.ndarray
) -> Iterator[Meaning]:
    """Yield meanings with one number that is fitted: what is missing, a window, scale, factor.

    The scale and a factor are fitted together too, as with scales of a call that nobody gave.

    Args:
        x: the call of all heads.
        part: the call of one key head.
        want: its output.
        rows: the rows that are looked at.
        every: the exact output of every row.
    """
    size = float(np.square(every[:, rows]).sum())
    if size:
        factor = float((want[:, rows] * every[:, rows]).sum() / size)
        yield but(f"the output is multiplied by {factor:.4g}", How(factor=factor))
    if part.q.shape[1] == x.q.shape[1]:
        yield from _of_intervals(part, want, rows)
    few = rows[np.linspace(0, rows.size - 1, min(FIT_ROWS, rows.size)).astype(int)]

    def off(**changes: float) -> float:
        got = exact_rows(replace(part, **changes), few)  # type: ignore[arg-type]
        return relative_rms(want[:, few], got)

    scale = _least(lambda log: off(scale=x.scale * 2.0**log), -6.0, 6.0)
    yield but(f"scale = {_root(x.scale * 2.0**scale)}", scale=_snapped(x.scale * 2.0**scale))
    cap = float(2.0 ** _least(lambda log: off(softcap=2.0**log), -2.0, 8.0))
    cap = round(cap) if abs(cap / max(round(cap), 1) - 1.0) < 2e-3 else cap
    yield but(f"softcap = {cap:.4g}", softcap=float(cap))

    def with_factor(scale: float, rows: np.ndarray) -> tuple[float, float]:
        """Return the factor of the output that fits best with a scale, and the error with it."""
        got = exact_rows(replace(part, scale=scale), rows)
        factor = float((want[:, rows] * got).sum() / max(np.square(got).sum(), 1e-300))
        return factor, relative_rms(want[:, rows], factor * got)

    scale = x.scale * 2.0 ** _least(lambda log: with_factor(x.scale * 2.0**log, few)[1], -6.0, 6.0)
    factor, _ = with_factor(scale, rows)
    words = f"scale = {_root(scale)}, which is {scale / x.scale:.4g} times the call's"
    words += f", and the output is multiplied by {factor:.4g}"
    yield but(words, How(factor=factor), scale=_snapped(scale))


def _snapped(scale: float) -> float:
    """Return 1/sqrt(n) for a scale near it, n a whole number, or a number of three digits.

    If neither is near, return the scale.
    """
    n = round(scale**-2) if scale > 1e-4 else 0
    if n and abs(scale**-2 / n - 1.0) < min(5e-4, 0.2 / n):
        return float(n**-0.5)
    short = float(f"{scale:.3g}")
    return short if abs(short / scale - 1.0) < 3e-4 else scale


def _root(scale: float) -> str:
    snapped = _snapped(scale)
    n = round(snapped**-2) if snapped > 1e-4 else 0
    is_root = bool(n) and snapped == float(n**-0.5)
    return f"1/sqrt({n}) = {snapped:.6g}" if is_root else f"{snapped:.6g}, fitted"


def _least(f: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one variable is least: on a grid, then by the golden section."""
    grid = np.linspace(low, high, 49)
    at = int(np.argmin([f(float(t)) for t in grid]))
    a, b = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, grid.size - 1)]))
    golden = (5**0.5 - 1) / 2
    c, d = b - golden * (b - a), a + golden * (b - a)
    fc, fd = f(c), f(d)
    for _ in range(32):
        if fc <= fd:
            b, d, fd = d, c, fc
            c = b - golden * (b - a)
            fc = f(c)
        else:
            a, c, fc = c, d, fd
            d = a + golden * (b - a)
            fd = f(d)
    return (a + b) / 2


def _of_intervals(part: Inputs, want: np.ndarray, rows: np.ndarray) -> Iterator[Meaning]:
    """Yield the window, the missing key and the missing tile that fit a few rows best.

    With the sums of exp(S - m) v over the first keys, the output without any interval of keys is a
    difference of two sums.
    """
    late = rows[-min(FIT_ROWS, rows.size) :]
    part = replace(part, window=None)
    e, total = weights(part, late)
    e, total, v = e[0, 0], total[0, 0], np.asarray(part.v[0, :, 0], np.float64)
    goal, keys = want[0, late, 0], v.shape[0]
    ones = np.concatenate([np.zeros((late.size, 1)), e.cumsum(1)], 1)
    sums = np.einsum("ts,sh->tsh", e, v).cumsum(1)
    sums = np.concatenate([np.zeros((late.size, 1, v.shape[1])), sums], 1)

    def error(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the squared error of each row without keys `begin` to `end`, (rows, cases)."""
        o = sums[:, -1:] - sums[:, end] + sums[:, begin]
        l = total - ones[:, end] + ones[:, begin]
        o = o / np.where(l > 0.0, l, 1.0)[..., None]
        return np.asarray(np.square(o - goal[:, None]).sum(-1))

    def least(begin: np.ndarray, end: np.ndarray) -> tuple[int, int]:
        at = int(error(begin, end).sum(0).argmin())
        return int(begin[at]), int(end[at])

    size = int(_of_windows(part, late, sums, ones, total, goal).argmin()) + 1
    if size < keys:
        yield but(f"window = {size}", window=size)
    every = np.arange(keys)
    yield missing(*least(every, every + 1), words=f"key {least(every, every + 1)[0]} is missing")
    tiles = [(a, min(a + t, keys)) for t in TILES for a in range(0, keys, t)]
    begin, end = (np.array(side) for side in zip(*tiles, strict=True))
    a, b = least(begin, end)
    yield missing(a, b, f"the tile of keys {a} to {b - 1} is missing")


def _of_windows(
    part: Inputs,
    late: np.ndarray,
    sums: np.ndarray,
    ones: np.ndarray,
    total: np.ndarray,
    goal: np.ndarray,
) -> np.ndarray:
    """Return the squared error of some rows with a window of 1, 2, ... keys."""
    place = late + first_key(part) if part.is_causal else late
    keys = part.k.shape[1]
    first = np.clip(place[:, None] + 1 - np.arange(1, keys + 1), 0, keys)
    o = sums[:, -1:] - np.take_along_axis(sums, first[..., None], 1)
    l = total - np.take_along_axis(ones, first, 1)
    o = o / np.where(l > 0.0, l, 1.0)[..., None]
    return np.asarray(np.square(o - goal[:, None]).sum((0, 2)))


def blind_rows(x: Inputs, outputs: Outputs) -> str:
    """Return what a kernel returns for queries that see no key, in words; empty if there are none.

    They are left out of every comparison.
    """
    shape = (x.q.shape[0], x.q.shape[2], x.q.shape[1], x.k.shape[1])
    blind = ~np.broadcast_to(visible(x), shape).any(-1)
    if not blind.any():
        return ""
    rows = outputs.out.swapaxes(1, 2)[blind].astype(np.float64)
    share = x.q.shape[2] // x.k.shape[2]
    mean = np.asarray(x.v, np.float64).mean(1).repeat(share, 1)  # (B, N, H)
    means = np.broadcast_to(mean[:, :, None], (*blind.shape, mean.shape[-1]))[blind]
    if not rows.any():
        what = "0"
    elif np.isnan(rows).all():
        what = "NaN"
    elif relative_rms(rows, means) < 0.05:
        what = "the mean of V: a finite number stands for -inf"
    else:
        what = "neither 0 nor NaN nor the mean of V"
    return (
        f"{int(blind.sum()):,} of {blind.size:,} rows see no key and were not compared; the kernel"
        f" returns {what} there"
    )


def base_of_lse(x: Inputs, lse: np.ndarray) -> str:
    """Return what the logarithms of the row sums are, in words; lse: (B, N, T)."""
    part = replace(x, q=x.q[:1, :, :1], k=x.k[:1, :, :1], v=x.v[:1, :, :1])
    mask = part.mask if part.mask is None else part.mask[:1, :1]
    part = replace(part, mask=mask, sinks=None if x.sinks is None else x.sinks[:1])
    s = scores(part, np.arange(x.q.shape[1]))[0, 0]
    peak = s.max(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        l = peak + np.log(np.exp(s - peak[:, None]).sum(1))
        natural = l if part.sinks is None else np.logaddexp(l, float(part.sinks[0]))
    fine = np.isfinite(natural) & np.isfinite(lse[0, 0])
    strange = lost(lse[0, 0], natural)
    own, natural, peak = lse[0, 0][fine].astype(np.float64), natural[fine], peak[fine]
    forms = {
        "in base e": natural,
        "in base 2": natural * LOG2_E,
        "m + log2 l, two bases": peak + (natural - peak) * LOG2_E,
        "without the maximum": natural - peak,
        "without the sink": l[fine],
    }
    errors = {words: relative_rms(own, form) for words, form in forms.items()}
    words = min(errors, key=lambda w: errors[w])
    if not own.size or errors[words] > 1e-2:
        return "lse is not the logarithm of the row sums in any form that was tried"
    error = f"relative rms error {errors[words]:.2g}"
    if strange:
        error += f" of the others; {strange.words('row sums')}"
    return f"lse of head 0 is {words} ({error}); its bits were not compared"
