"""What a call may have meant: the meanings that `identify` tries before roundings.

A kernel may compute another attention than the one its call says: a window of 129 keys and not 128,
a causal mask that is aligned at the other corner, another scale. Each meaning is tried in binary64
on some rows of one head. It explains the numbers if the error falls to what a rounding makes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import visible
from roundscope.emu import round_to
from roundscope.emu.roundings.modes import BF16
from roundscope.emu.stats.comparison import lost, relative_rms
from roundscope.tools.errors import UsageError
from roundscope.tools.identify.reading import of_key_head

ROUNDED = 4.0  # an error of at most so many casts to BF16 is a rounding's
FALLS = 3.0  # a meaning explains if the error is so many times smaller than that of the call
BETTER = 1.5  # a meaning with which the error falls so much is tried together with others
EVEN, WORST, FIT_ROWS = 48, 16, 12  # rows: at even distances, those that differ most, of a fit
TILES = (16, 32, 64, 96, 128, 192, 256)  # keys of a tile that may be missing
CAPS = (50.0, 30.0, 20.0, 15.0, 10.0, 5.0)  # softcaps of published models, and others
LOG2_E = math.log2(math.e)
HEADS = 32  # at most so many other key heads are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What a meaning does that no argument of a call says.

    masked     the score that a masked key has, in place of -inf
    factor     a factor of the output
    undivided  whether the output is not divided by the row sum
    over       "queries" if the softmax runs over the queries of a key
    """

    masked: float | None = None
    factor: float = 1.0
    undivided: bool = False
    over: str = "keys"


CALLED = How()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One meaning of a call.

    words    what is so, as in "window = 129"
    of       the call as this meaning has it, of all heads, with its outputs
    how      what it does beyond that
    """

    words: str
    of: Callable[[Inputs, Outputs], tuple[Inputs, Outputs]]
    how: How = CALLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """What the trial of meanings found.

    given    the error of the output from the exact result of the call as it was given
    cast     the error of that exact result, cast to BF16
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
    cast = relative_rms(np.asarray(round_to(every[:, rows], BF16)), every[:, rows])
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
    best, error = min(tried, key=lambda pair: pair[1], default=(None, np.inf))
    meant = replace(meant, tried=len(tried))
    if best is None:
        return meant
    meant = replace(meant, nearest=(best.words, error))
    if error > bar:
        return meant
    # the first of those that explain it as well: what has a name comes before what was fitted
    best, error = next(pair for pair in tried if pair[1] <= max(1.05 * error, 0.0))
    moved, theirs = best.of(x, outputs)
    is_call = best.how in (CALLED, How(factor=best.how.factor)) and _is_power(best.how.factor)
    if is_call and best.how.factor != 1.0:
        given_ = np.float32(1.0 / best.how.factor)
        theirs = replace(theirs, out=theirs.out * given_, dq=None, dk=None, dv=None)
    return replace(
        meant, words=best.words, error=error, x=moved, outputs=theirs, is_call=bool(is_call)
    )


Change = Callable[[Inputs, Outputs], tuple[Inputs, Outputs]]


def _both(first: Change, second: Change, x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
    return second(*first(x, outputs))


def _is_power(factor: float) -> bool:
    return bool(factor > 0 and np.frexp(factor)[0] == 0.5)


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


def scores(x: Inputs, rows: np.ndarray, masked: float | None = None) -> np.ndarray:
    """Return the scores of some rows in binary64, (B, N, rows, S), of a call of one key head."""
    q = np.asarray(x.q[:, rows], np.float64)
    s = x.scale * np.einsum("btnh,bsgh->bnts", q, np.asarray(x.k, np.float64), optimize=True)
    if x.softcap:
        s = x.softcap * np.tanh(s / x.softcap)
    sees = visible(x)
    sees = sees[:, :, rows] if sees.shape[2] > 1 else sees
    return np.where(sees, s, -np.inf if masked is None else masked)


def exact_rows(x: Inputs, rows: np.ndarray, how: How = CALLED) -> np.ndarray:
    """Return the output of some rows in binary64, (B, rows, N, H), of a call of one key head."""
    if how.over == "queries":
        s = scores(x, np.arange(x.q.shape[1]), how.masked)
        with np.errstate(invalid="ignore"):
            e = np.exp(s - s.max(2, keepdims=True))
        e = np.nan_to_num(e / e.sum(2, keepdims=True))[:, :, rows]
        v = np.asarray(x.v, np.float64)
        return np.asarray(np.einsum("bnts,bsgh->btnh", e, v, optimize=True))
    e, total = _weights(x, rows, how)
    out = np.einsum("bnts,bsgh->btnh", e, np.asarray(x.v, np.float64), optimize=True)
    if not how.undivided:
        out = out / np.where(total > 0.0, total, 1.0).swapaxes(1, 2)
    return np.asarray(out * how.factor)


def _weights(x: Inputs, rows: np.ndarray, how: How = CALLED) -> tuple[np.ndarray, np.ndarray]:
    """Return exp(S - m) of some rows and its sums, with the sinks."""
    s = scores(x, rows, how.masked)
    peak = s.max(3, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    sink = None if x.sinks is None else np.asarray(x.sinks, np.float64)[None, :, None, None]
    if sink is not None:
        peak = np.maximum(peak, sink)
    e = np.exp(s - peak)
    total = e.sum(3, keepdims=True) + (0.0 if sink is None else np.exp(sink - peak))
    return e, total


def _but(words: str, how: How = CALLED, **changes: object) -> Meaning:
    """Return the meaning that some arguments of the call are others."""

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        return replace(x, **changes), outputs  # type: ignore[arg-type]

    return Meaning(words=words, of=changed, how=how)


def _seen(words: str, sees: Callable[[Inputs], np.ndarray]) -> Meaning:
    """Return the meaning that a mask says which keys a query sees, (T, S) or (B, N, T, S)."""

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        mask = np.asarray(sees(x), bool)
        mask = np.broadcast_to(mask, (1, 1, *mask.shape)) if mask.ndim == 2 else mask
        return replace(x, mask=mask, is_causal=False, window=None), outputs

    return Meaning(words=words, of=changed)


def _places(x: Inputs, first: int = 0) -> np.ndarray:
    """Return how far before its query each key stands, where query 0 stands at key `first`."""
    return np.arange(x.q.shape[1])[:, None] + first - np.arange(x.k.shape[1])


def _causal(x: Inputs, first: int) -> np.ndarray:
    """Return which keys a causal call sees whose query 0 sees the keys up to `first`."""
    apart = _places(x, first)
    sees = (apart >= 0) & (apart < (x.window or 2**40))
    return sees if x.mask is None else sees & x.mask


def meanings(x: Inputs) -> Iterator[Meaning]:
    """Yield the meanings that a call can have, likely ones first."""
    queries, keys = x.q.shape[1], x.k.shape[1]
    yield from _of_causality(x, queries, keys)
    if x.window is not None:
        for size in (x.window + 1, x.window - 1, 2 * x.window, x.window // 2):
            if size >= 1:
                yield _but(f"window = {size}", window=size)
        yield _but("the call has no window", window=None)
    if x.softcap is not None:
        yield _but("the call has no softcap", softcap=None)
    for cap in CAPS:
        if cap != x.softcap:
            yield _but(f"softcap = {cap:g}", softcap=cap)
    if x.sinks is not None:
        yield _but("the call has no sinks", sinks=None)
    else:
        zeros = np.zeros(x.q.shape[2], np.float32)
        yield _but("every row has a sink of score 0 (one is added to its sum)", sinks=zeros)
    for words, scale in _scales(x).items():
        if abs(scale / x.scale - 1.0) > 1e-5:
            yield _but(f"scale = {words}", scale=scale)
    for factor in (0.5, 2.0, 0.25, 4.0, -1.0):
        yield _but(f"the output is multiplied by {factor:g}", How(factor=factor))
    yield _but("the output is not divided by the row sum", How(undivided=True))
    yield _but("the softmax runs over the queries of a key", How(over="queries"))
    sees = visible(x)
    if not sees.all():
        for score in (0.0, -1.0, -100.0, -1e4, -5e4):
            yield _but(f"masked scores are {score:g} and not -inf", How(masked=score))
    if x.mask is not None:
        yield _seen("the mask is inverted", lambda x: _inverted(x))
        if queries == keys:
            yield _seen("the mask is transposed", lambda x: np.swapaxes(visible(x), 2, 3))
        yield _but("the call has no mask", mask=None)
    yield from _of_keys(x, keys)
    yield from _of_heads(x)


def _of_causality(x: Inputs, queries: int, keys: int) -> Iterator[Meaning]:
    if x.is_causal:
        if queries != keys:
            for corner in ("bottom-right", "top-left"):
                yield _but(f"the causal mask is aligned {corner}", alignment=corner)
        begin = _first(x)
        for words, first in (
            ("a query sees one key more than its own position allows", 1),
            ("a query does not see the key at its own position", -1),
        ):
            yield _seen(words, partial(_causal, first=begin + first))
        yield _but("the call is full, not causal", is_causal=False)
        if queries == keys:
            yield _seen("the causal mask is transposed", lambda x: _places(x) <= 0)
    else:
        yield _but("the call is causal, not full", is_causal=True)
        if queries != keys:
            words = "the call is causal, not full, and aligned bottom-right"
            yield _but(words, is_causal=True, alignment="bottom-right")


def _first(x: Inputs) -> int:
    """Return the last key that query 0 of a causal call sees."""
    sees = visible(replace(x, mask=None, window=None))
    return int(sees[0, 0, 0].sum()) - 1


def _inverted(x: Inputs) -> np.ndarray:
    assert x.mask is not None
    others = visible(replace(x, mask=None))
    return np.asarray(~x.mask & others)


def _scales(x: Inputs) -> dict[str, float]:
    """Return the scales that code may have taken, by their words."""
    h, hv, n = x.q.shape[3], x.v.shape[3], x.q.shape[2]
    scales = {
        f"1/sqrt({h})": h**-0.5,
        f"1/{h}": 1.0 / h,
        "1": 1.0,
        f"1/sqrt({hv})": hv**-0.5,
        f"1/sqrt({n * h}), of all heads": (n * h) ** -0.5,
        "the call's times log2 e": x.scale * LOG2_E,
        "the call's times ln 2": x.scale * np.log(2.0),
        "the call's with the other sign": -x.scale,
        "the call's squared": x.scale**2,
        "the root of the call's": abs(x.scale) ** 0.5,
    }
    for k in range(3, 11):
        scales.setdefault(f"1/sqrt({2**k})", 2.0 ** (-k / 2))
        scales.setdefault(f"1/sqrt({3 * 2**k})", (3 * 2**k) ** -0.5)
    scales.setdefault("1/sqrt(576)", 1 / 24)
    return scales


def _of_keys(x: Inputs, keys: int) -> Iterator[Meaning]:
    """Yield the meanings in which keys are missing, or K and V are changed."""
    yield _missing(0, 1, "the first key is missing")
    yield _missing(keys - 1, keys, "the last key is missing")
    for size in TILES:
        if keys % size and keys > size:
            begin = keys - keys % size
            words = f"the last keys from {begin} on, not a whole tile of {size}, are missing"
            yield _missing(begin, keys, words)
    if x.q.shape == x.k.shape:
        yield Meaning(
            words="q and k are exchanged",
            of=lambda x, o: (replace(x, q=x.k, k=x.q), replace(o, dq=o.dk, dk=o.dq)),
        )
    if x.k.shape == x.v.shape:
        yield Meaning(
            words="k and v are exchanged",
            of=lambda x, o: (replace(x, k=x.v, v=x.k), replace(o, dk=o.dv, dv=o.dk)),
        )


def _missing(begin: int, end: int, words: str) -> Meaning:
    """Return the meaning that no query sees the keys from `begin` to `end`."""

    def sees(x: Inputs) -> np.ndarray:
        keys = np.arange(x.k.shape[1])
        return visible(x) & ((keys < begin) | (keys >= end))

    def changed(x: Inputs, outputs: Outputs) -> tuple[Inputs, Outputs]:
        return replace(x, mask=_with_queries(sees(x), x), is_causal=False, window=None), outputs

    return Meaning(words=words, of=changed)


def _with_queries(mask: np.ndarray, x: Inputs) -> np.ndarray:
    shape = (*mask.shape[:2], x.q.shape[1], x.k.shape[1])
    return np.ascontiguousarray(np.broadcast_to(mask, shape))


def _of_heads(x: Inputs) -> Iterator[Meaning]:
    """Yield the meanings in which query heads have other key heads."""
    heads, groups = x.q.shape[2], x.k.shape[2]
    if groups == 1:
        return
    if 1 < groups < heads:
        order = np.argsort(np.arange(heads) % groups, kind="stable")
        yield Meaning(
            words=f"query head n has key head n mod {groups}",
            of=lambda x, o: _of_query_heads(x, o, order),
        )
    yield Meaning(
        words="the key heads are in reverse order", of=lambda x, o: _of_keys_from(x, o, -1)
    )
    for by in range(1, min(groups, HEADS)):
        yield Meaning(
            words=f"query heads have k and v of {by} key head{'s' * (by > 1)} further on",
            of=partial(_of_keys_from, by=by),
        )


def _of_query_heads(x: Inputs, o: Outputs, order: np.ndarray) -> tuple[Inputs, Outputs]:
    mask = x.mask if x.mask is None or x.mask.shape[1] == 1 else x.mask[:, order]
    sinks = None if x.sinks is None else x.sinks[order]
    moved = replace(x, q=x.q[:, :, order], do=x.do[:, :, order], mask=mask, sinks=sinks)
    dq = None if o.dq is None else o.dq[:, :, order]
    return moved, replace(o, out=o.out[:, :, order], dq=dq, lse=None)


def _of_keys_from(x: Inputs, o: Outputs, by: int) -> tuple[Inputs, Outputs]:
    """Return the call with the key heads moved on, or in reverse order for by = -1."""
    groups = x.k.shape[2]
    order = np.arange(groups)[::-1] if by == -1 else (np.arange(groups) + by) % groups
    dk, dv = (None if a is None else a[:, :, order] for a in (o.dk, o.dv))
    return replace(x, k=x.k[:, :, order], v=x.v[:, :, order]), replace(o, dk=dk, dv=dv)


def _fitted(
    x: Inputs, part: Inputs, want: np.ndarray, rows: np.ndarray, every: np.ndarray
) -> Iterator[Meaning]:
    """Yield meanings with one number that is fitted: what is missing, a window, scale, factor.

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
        yield _but(f"the output is multiplied by {factor:.4g}", How(factor=factor))
    if part.q.shape[1] == x.q.shape[1]:
        yield from _of_intervals(part, want, rows)
    few = rows[np.linspace(0, rows.size - 1, min(FIT_ROWS, rows.size)).astype(int)]

    def off(**changes: float) -> float:
        got = exact_rows(replace(part, **changes), few)  # type: ignore[arg-type]
        return relative_rms(want[:, few], got)

    scale = _least(lambda log: off(scale=x.scale * 2.0**log), -6.0, 6.0)
    yield _but(f"scale = {_root(x.scale * 2.0**scale)}", scale=_snapped(x.scale * 2.0**scale))
    cap = float(2.0 ** _least(lambda log: off(softcap=2.0**log), -2.0, 8.0))
    cap = round(cap) if abs(cap / max(round(cap), 1) - 1.0) < 2e-3 else cap
    yield _but(f"softcap = {cap:.4g}", softcap=float(cap))


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
    e, total = _weights(part, late)
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
        yield _but(f"window = {size}", window=size)
    every = np.arange(keys)
    yield _missing(*least(every, every + 1), words=f"key {least(every, every + 1)[0]} is missing")
    tiles = [(a, min(a + t, keys)) for t in TILES for a in range(0, keys, t)]
    begin, end = (np.array(side) for side in zip(*tiles, strict=True))
    a, b = least(begin, end)
    yield _missing(a, b, f"the tile of keys {a} to {b - 1} is missing")


def _of_windows(
    part: Inputs,
    late: np.ndarray,
    sums: np.ndarray,
    ones: np.ndarray,
    total: np.ndarray,
    goal: np.ndarray,
) -> np.ndarray:
    """Return the squared error of some rows with a window of 1, 2, ... keys."""
    place = late + _first(part) if part.is_causal else late
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
