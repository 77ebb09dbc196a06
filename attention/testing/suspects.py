"""Usual suspects: which mistake in the code of a kernel explains an output that is grossly wrong.

Each suspect is attention in binary64 with one mistake: another mask, another scale, another head,
scores that a tile shifts by a maximum of its own. An output that is as near to one of them as the
plan is to exact attention is explained by it. Only rows and heads beside the fault are computed,
so that all suspects together take a fraction of a second.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from roundscope.attention.inputs.alignment import Alignment
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.attention.testing.exact import exact, visible

ROWS, NUMBERS = 256, 2**19  # queries of a head, and scores in all, that are looked at
TILES = (16, 32, 64, 128, 256)  # keys of a tile
QUERY_TILES = (64, 128)
NEARER = 4.0  # times: a suspect is so much nearer to the output than exact attention is
AS_NEAR = 3.0  # times the plan's own error from exact attention: the output may be so far
LARGEST = {"FP32": math.log(2.0**128), "FP16": math.log(65520.0)}  # arguments where exp overflows
DOUBT = 0.05  # arguments of exp so near to these are not counted on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Some rows of some heads of one batch entry: what attention makes of them, in binary64.

    scores    scale Q K^T, and the softcap of it, (n, R, S)
    sees      which keys each row sees, (n, R, S)
    v         the values of each head, (n, S, H)
    sinks     a further score of each row, (n, 1, 1); None for none
    """

    scores: np.ndarray
    sees: np.ndarray
    v: np.ndarray
    sinks: np.ndarray | None

    @property
    def peaks(self) -> np.ndarray:
        """The largest score that each row sees, (n, R, 1); 0 in a row that sees none."""
        top = self.seen.max(-1, keepdims=True)
        return np.where(np.isfinite(top), top, 0.0)

    @property
    def seen(self) -> np.ndarray:
        """The scores, -inf where a row does not see the key."""
        return np.where(self.sees, self.scores, -np.inf)

    def weighed(self, above: np.ndarray, below: np.ndarray, more: float = 0.0) -> np.ndarray:
        """Return the rows of exp(scores - above) V over the sums of exp(scores - below) + more."""
        total = np.exp(self.seen - below).sum(-1, keepdims=True) + more
        if self.sinks is not None:
            total = total + np.exp(self.sinks - self.peaks)
        return np.asarray(np.exp(self.seen - above) @ self.v / total)

    @property
    def out(self) -> np.ndarray:
        """The output; rows that see no key are NaN."""
        return self.weighed(self.peaks, self.peaks)


def explained(x: Inputs, own: Outputs, theirs: Outputs, result: str, at: tuple[int, int]) -> str:
    """Return which mistake explains a result that is grossly wrong, in words; "" if none does.

    Args:
        x: The inputs.
        own: The kernel's results.
        theirs: The plan's results, whose errors say how near is near.
        result: The result that is wrong: "out", "lse", "dq", "dk" or "dv".
        at: The batch entry and the head where it is worst.
    """
    with np.errstate(all="ignore"):
        if result == "lse":
            return _of_sums(x, own, at)
        if result != "out":
            return _of_gradient(x, own, theirs, result, at)
        entry, (heads, rows) = at[0], _looked_at(x, at)
        got, plan = (
            np.asarray(a[entry][:, heads].swapaxes(0, 1)[:, rows], np.float64)
            for a in (own.out, theirs.out)
        )
        right = _rows(x, entry, heads, rows)
        if not np.isfinite(got).all():
            return _overflow(right, got, rows)
        limit = AS_NEAR * max(_apart(plan, right.out), 2.0**-9)
        far = _apart(got, right.out)
        for suspects in (
            _suspects(x, entry, heads, rows, right),
            _two_at_once(x, entry, heads, rows),
        ):
            near = [(_apart(got, out), words) for words, out in suspects]
            near = [pair for pair in near if pair[0] <= limit and pair[0] * NEARER <= far]
            if near:
                least = min(apart for apart, _ in near)
                # with few tokens several mistakes are the same one
                same = [words for apart, words in near if apart <= least * (1.0 + 1e-9)]
                words = " (or, the same here, ".join(same[:2]) + ")" * (len(same) > 1)
                return f"the output is what attention with {words} gives, to {least:.2%}"
        return ""


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the relative rms distance over rows that b has; infinite if it has less than half."""
    has = np.isfinite(b).all(-1)
    if 2 * has.sum() <= has.size:
        return math.inf
    size = float(np.square(b[has]).sum())
    return math.sqrt(float(np.square(a[has] - b[has]).sum()) / size) if size else math.inf


def _looked_at(x: Inputs, at: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return heads, the one that is asked about among them, and rows evenly from all queries."""
    (_, t, n, _), s = x.q.shape, x.k.shape[1]
    rows = np.unique(np.linspace(0, t - 1, min(t, ROWS, max(NUMBERS // s, 1))).astype(int))
    most = max(min(n, NUMBERS // (rows.size * s)), 1)
    return (at[1] + np.arange(most)) % n, rows


def _rows(
    x: Inputs,
    entry: int,
    heads: np.ndarray,
    rows: np.ndarray,
    key_heads: Callable[[np.ndarray], np.ndarray] | None = None,
) -> _Rows:
    """Return rows of a call; key_heads: the key head of each head, by default that of its group."""
    (_, t, n, _), (_, s, g, _) = x.q.shape, x.k.shape
    of_keys = heads * g // n if key_heads is None else key_heads(heads)
    q, k, v = (
        np.asarray(a[entry].swapaxes(0, 1), np.float64)[part]
        for a, part in ((x.q, heads), (x.k, of_keys), (x.v, of_keys))
    )
    scores = x.scale * (q[:, rows] @ k.swapaxes(1, 2))
    if x.softcap is not None:
        scores = x.softcap * np.tanh(scores / x.softcap)
    sees = visible(x)
    sees = sees[min(entry, len(sees) - 1)]
    sees = np.broadcast_to(sees, (n, t, s))[heads][:, rows]
    sinks = None if x.sinks is None else np.asarray(x.sinks, np.float64)[heads][:, None, None]
    return _Rows(scores=scores, sees=sees, v=v, sinks=sinks)


def _suspects(
    x: Inputs, entry: int, heads: np.ndarray, rows: np.ndarray, right: _Rows
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the output of every suspect with its words, the simplest first."""
    for words, wrong in _other_calls(x):
        yield words, _rows(wrong, entry, heads, rows).out
    for words, sees in _other_masks(x, rows):
        yield words, replace(right, sees=sees(right.sees)).out
    n, g = x.q.shape[2], x.k.shape[2]
    if g > 1:
        others = {
            f"query head j reading key head j mod {g}": lambda j: j % g,
            "every query head reading key head 0": lambda j: j * 0,
            "the key heads in reverse order": lambda j: g - 1 - j * g // n,
        }
        for words, key_heads in others.items():
            if g < n or "mod" not in words:
                yield words, _rows(x, entry, heads, rows, key_heads).out
    if entry:
        yield (
            "k and v of the first batch entry",
            _rows(
                replace(x, k=x.k[:1].repeat(entry + 1, 0), v=x.v[:1].repeat(entry + 1, 0)),
                *(entry, heads, rows),
            ).out,
        )
        yield (
            "k of the first batch entry",
            _rows(replace(x, k=x.k[:1].repeat(entry + 1, 0)), entry, heads, rows).out,
        )
    yield from _of_tiles(x, rows, right)


def _two_at_once(
    x: Inputs, entry: int, heads: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the output of another argument and another edge of the causal mask together."""
    if not x.is_causal:
        return
    for words, wrong in _other_calls(x):
        if wrong.is_causal:
            both = _rows(wrong, entry, heads, rows)
            for more, sees in _other_masks(wrong, rows):
                if "tile" not in more:
                    yield f"{words}, and {more}", replace(both, sees=sees(both.sees)).out
            full = replace(wrong, is_causal=False)
            yield f"{words}, and no causal mask", _rows(full, entry, heads, rows).out


def _other_calls(x: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield calls with one argument that is not the caller's."""
    h = x.q.shape[3]
    if x.is_causal:
        yield "no causal mask", replace(x, is_causal=False)
    else:
        yield "a causal mask, which nobody asked for", replace(x, is_causal=True)
    if x.is_causal and x.q.shape[1] != x.k.shape[1]:
        other: Alignment = "top-left" if x.alignment == "bottom-right" else "bottom-right"
        yield f"a causal mask aligned {other}", replace(x, alignment=other)
    scales = {
        f"the scale 1 / H = 1 / {h} in place of {x.scale:.4g}": 1 / h,
        f"no scale, that is 1 in place of {x.scale:.4g}": 1.0,
        f"the scale 1 / sqrt({h}) in place of {x.scale:.4g}": h**-0.5,
        f"the scale {x.scale:.4g} applied twice": x.scale**2,
        "2^x in place of e^x, as where a factor log2(e) is missing": x.scale * math.log(2),
        "scores times log2(e), as where e^x takes the place of 2^x": x.scale / math.log(2),
    }
    told = [x.scale]
    for words, scale in scales.items():
        if not any(math.isclose(scale, other) for other in told):
            told.append(scale)
            yield words, replace(x, scale=scale)
    if x.k.shape == x.v.shape:
        yield "k and v swapped", replace(x, k=x.v, v=x.k)
    if x.softcap is not None:
        yield "no softcap", replace(x, softcap=None)
    if x.sinks is not None:
        yield "no sinks", replace(x, sinks=None)
    if x.window is not None:
        yield "no window", replace(x, window=None)
        yield "a window of one key more", replace(x, window=x.window + 1)
        if x.window > 1:
            yield "a window of one key less", replace(x, window=x.window - 1)
    if x.mask is not None:
        yield "no mask", replace(x, mask=None)
        yield "the mask inverted", replace(x, mask=~np.asarray(x.mask, bool))
        if x.q.shape[1] == x.k.shape[1] == x.mask.shape[2]:
            yield "the mask transposed", replace(x, mask=np.swapaxes(x.mask, 2, 3))


Sees = Callable[[np.ndarray], np.ndarray]


def _other_masks(x: Inputs, rows: np.ndarray) -> Iterator[tuple[str, Sees]]:
    """Yield masks whose edge is beside the right one: causal ones, and of tiles left out."""
    keys = x.k.shape[1]
    first = keys - x.q.shape[1] if x.alignment == "bottom-right" else 0
    apart = rows[:, None] + first - np.arange(keys)
    if x.is_causal:
        yield "a causal mask that hides a query's own key", lambda sees: sees & (apart > 0)
        shown = replace(x, is_causal=False)
        free = visible(shown)[0, :, rows].swapaxes(0, 1) if x.mask is not None else True
        if x.window is None:
            yield (
                "a causal mask that shows one later key",
                lambda sees: np.broadcast_to(free & (apart >= -1), sees.shape),
            )
        for bq in QUERY_TILES:
            for bk in (b for b in TILES if b <= bq):
                start = rows[:, None] // bq * bq
                few = (start // bk + 1) * bk
                last = (-(-(start + bq) // bk) - 1) * bk
                words = f"the last key tiles of each query tile left out (tiles of {bq} x {bk})"
                for end in (few, last):
                    yield words, partial(_before, end=end)
    for tile in (t for t in TILES if keys % t and t < keys):
        yield (
            f"the last keys left out, which fill no tile of {tile}",
            partial(_before, end=np.array(keys // tile * tile)),
        )


def _before(sees: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return a mask without the keys from `end` on."""
    return np.asarray(sees & (np.arange(sees.shape[-1]) < end))


def _of_tiles(x: Inputs, rows: np.ndarray, right: _Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is made of scores from which a tile subtracts another maximum than the last one.

    With m the largest score of a row, a tile's own maximum c and the running maximum r, an online
    softmax has to multiply what came before by exp(r before - r).
    """
    keys, peaks = x.k.shape[1], right.peaks
    for tile in TILES:
        pad = -keys % tile
        if pad and not x.is_causal:
            yield (
                f"{pad} keys of padding counted, with scores 0",
                right.weighed(peaks, peaks, pad * np.exp(-peaks)),
            )
        if tile >= keys:
            continue
        own, running, before = maxima(right.seen, tile)
        of = f"(tiles of {tile} keys)"
        yield f"each tile's own maximum, and nothing rescaled {of}", right.weighed(own, own)
        yield f"running maxima, and nothing rescaled {of}", right.weighed(running, running)
        yield f"an output that is not rescaled {of}", right.weighed(running, peaks)
        yield f"a sum of the row that is not rescaled {of}", right.weighed(peaks, running)
        stale = peaks - running + before
        yield (
            f"a stale maximum, that of the tiles before {of}",
            right.weighed(stale, stale),
        )


def maxima(seen: np.ndarray, tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each score the maximum of its tile, of the tiles up to it, and of those before.

    In the first tile, which has none before, the last is its own.

    Args:
        seen: Scores (n, R, S), -inf where they are not seen.
        tile: The number of keys of a tile.

    Example:
        >>> import numpy as np
        >>> own, running, before = maxima(np.array([[[2.0, 1.0, 5.0, 3.0, 0.0]]]), 2)
        >>> own.tolist(), before.tolist()
        ([[[2.0, 2.0, 5.0, 5.0, 0.0]]], [[[2.0, 2.0, 2.0, 2.0, 5.0]]])
    """
    keys = seen.shape[-1]
    starts = np.arange(0, keys, tile)
    own = np.maximum.reduceat(seen, starts, axis=-1)
    running = np.maximum.accumulate(own, axis=-1)
    before = np.concatenate([running[..., :1], running[..., :-1]], axis=-1)
    before = np.where(np.isfinite(before), before, running)

    def spread(m: np.ndarray) -> np.ndarray:
        each = np.repeat(np.where(np.isfinite(m), m, 0.0), tile, axis=-1)
        return np.asarray(each[..., :keys])

    return spread(own), spread(running), spread(before)


def _overflow(right: _Rows, got: np.ndarray, rows: np.ndarray) -> str:
    """Return whose maximum makes exp overflow in just the rows that are not finite; "" if none."""
    lost = ~np.isfinite(got).all(-1)
    keys = right.scores.shape[-1]
    shifts: list[tuple[str, np.ndarray]] = [("no maximum", np.zeros_like(right.peaks))]
    for tile in (t for t in TILES if t < keys):
        _, running, before = maxima(right.seen, tile)
        of = f"(tiles of {tile} keys)"
        shifts.append((f"a stale maximum, that of the tiles before {of}", before))
        shifts.append((f"a stale maximum, that of the first tile {of}", running[..., :1]))
        last = (keys - 1) // tile * tile
        ends = {keys - 1: np.full(rows.size, last), rows[-1]: rows // tile * tile}
        for cut in ends.values():  # the last tile of all keys, or the one with a row's own key
            kept = np.where(np.arange(keys) < np.maximum(cut, tile)[:, None], right.seen, -np.inf)
            words = f"a stale maximum, that of all tiles but the last {of}"
            shifts.append((words, kept.max(-1, keepdims=True)))
    for words, shift in shifts:
        top = (right.seen - shift).max(-1)
        for name, limit in LARGEST.items():
            clear = np.abs(top - limit) > DOUBT
            if lost.any() and (lost == (top > limit))[clear].all():
                return (
                    f"the output has infinities or NaN in just the {int(lost.sum())} rows (of"
                    f" {lost.size} looked at) in which exp overflows in {name} under {words}"
                )
    return ""


def _of_gradient(x: Inputs, own: Outputs, theirs: Outputs, result: str, at: tuple[int, int]) -> str:
    """Return which factor too much or too little explains a gradient; "" if none does."""
    if x.q.shape[1] * x.k.shape[1] > NUMBERS:
        return ""
    entry = slice(at[0], at[0] + 1)
    one = replace(x, **{n: getattr(x, n)[entry] for n in ("q", "k", "v", "do")})
    if x.mask is not None and len(x.mask) > 1:
        one = replace(one, mask=x.mask[entry])
    want = getattr(exact(one), result)
    got, plan = (np.asarray(getattr(o, result)[entry], np.float64) for o in (own, theirs))
    if not np.isfinite(got).all():
        return ""
    limit = AS_NEAR * max(_apart(plan, want), 2.0**-9)
    factors = {
        "1 / scale, so that the scale is missing": 1 / x.scale,
        "the scale, which is applied twice": x.scale,
        "log2(e)": 1 / math.log(2),
        "ln(2)": math.log(2),
        "-1": -1.0,
        "2": 2.0,
        "1 / 2": 0.5,
    }
    for words, factor in factors.items():
        apart = _apart(got, want * factor)
        if apart <= limit and apart * NEARER <= _apart(got, want):
            return f"{result} is the exact gradient times {words}, to {apart:.2%}"
    if result in ("dk", "dv") and want.shape[2] > 1:
        apart = _apart(got, want[:, :, ::-1])
        if apart <= limit and apart * NEARER <= _apart(got, want):
            return f"{result} is that of the heads in reverse order, to {apart:.2%}"
    return ""


def _of_sums(x: Inputs, own: Outputs, at: tuple[int, int]) -> str:
    """Return what a kernel returned in place of the logarithms of the row sums; "" if unknown."""
    assert own.lse is not None
    heads, rows = _looked_at(x, at)
    right = _rows(x, at[0], heads, rows)
    got = np.asarray(own.lse[at[0]][heads][:, rows], np.float64)
    sums = np.exp(right.seen - right.peaks).sum(-1)
    peaks = right.peaks[..., 0]
    lse = peaks + np.log(sums)
    others = {
        "the logarithms in base 2": lse / math.log(2),
        "the largest score of each row": peaks,
        "the largest score plus log2 of the sum": peaks + np.log2(sums),
        "the sums of each row": sums,
        "the logarithms of the sums without the maximum": np.log(sums),
        "the logarithms with the opposite sign": -lse,
    }
    limit = 2.0**-6 * max(float(np.abs(lse).max()), 1.0)
    for words, other in others.items():
        apart = float(np.abs(got - other).max())
        if apart <= limit and apart * NEARER <= float(np.abs(got - lse).max()):
            return f"the second result is {words}, not the natural logarithm of the row sums"
    return ""
