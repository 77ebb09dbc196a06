"""`Trace`: what was recorded of a call's rounding events, per site, per head and per row.

The functions of this module put together the heads of a call, from what engines recorded
(`attention.trace.parts`).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundscope.attention.sites import Axes, Site
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.trace.parts import (
    Part,
    by_row,
    features_of,
    site_of,
    summaries,
    tiles_added,
)
from roundscope.emu.stats.summary import Stats
from roundscope.events.recorder import Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What was recorded of a call's rounding events, by the name of their site, such as "P".

    `examine` returns a trace, and so does `attend` with a record. A trace has the sites that the
    plan has, in the order of `Site`. It has those of the backward only if `do` was given. All
    arrays are NumPy arrays. Entries that do not exist (masked scores, padding, rows without a key)
    are part of the arrays in `events`, and of nothing else in a trace; `exists` and `masked` leave
    them out.

    Attributes:
        stats: For every site, and for every "<SITE>.step" asked for, a `Stats` whose fields have
            the shape (batch, heads). The heads are key heads for K, V and the final gradients
            (DK_OUT, DV_OUT), and query heads for all other sites.
        rows: For the same names, the signed errors in ulps, summed over the events of each row:
            (batch, heads, queries), or (batch, heads, keys) where rows are keys (K, V, dK, dV).
        away: The same sums with every error counted away from zero: the errors of negative numbers
            have their signs changed. Empty unless `Record.away` asks for them.
        events: For every site in `Record.events`, the values before and after the rounding, two
            arrays of float64. With B batch entries, N heads, T queries and S keys, events of scores
            are (B, N, T, S). Events of query rows are repeated at every key tile, and events of
            keys at every query tile. Such events have an axis for that tile before the row: (B, N,
            tiles, T) with one entry per row, and (B, N, tiles, T or S, features) with one per
            feature. Events that a head has only once do not have this axis. The values at entries
            that do not exist have no meaning.
        ones: For every site in `Record.ones`, how many results of a row equal 1 at each tile at
            which the event is repeated: (batch, heads, tiles, queries or keys). Events that a head
            has only once have one tile.
        hits: For every site with injections, how many entries of a row at least one of them hit, at
            each tile at which the event is repeated, shaped as `ones`. Entries that do not exist
            are not counted. Fused kernels (engine "pallas") count those of events that a head has
            once, and no others.
        exists: For every site of `events` with one entry per score, which entries exist, neither
            masked nor of a row without keys: of bool, in the shape of its events.

    How to read a site, with s = trace.stats["P"], or its `s.total()` over batch entries and heads:

    - Counts: s.n is the number of events, and s.inexact is the number of those that changed their
      value. s.ties, s.away, s.toward, s.overflow, s.underflow, s.subnormal and s.nan count other
      kinds of events (see `Stats`).
    - Bias: s.mean_ulps is the mean signed error (after - before) in ulps of the site's format, and
      s.standard_error is the standard error of that mean, if events were independent. A mean of
      several standard errors is a bias; trace.rows shows the rows in which it occurs.
    - Errors: s.error, s.abs_error and s.sq_error are sums of the signed, absolute and squared
      errors, and s.ulps, s.abs_ulps and s.sq_ulps are the same sums in ulps. s.peak is the largest
      absolute error in ulps. s.place says where it happened, as the flat index row * columns +
      column in its head. The columns are the keys for scores, and the features for other events.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import Record, examine
        >>> rng = np.random.default_rng(0)
        >>> q, k, v = (rng.standard_normal((1, 8, 1, 16)).astype(np.float32) for _ in range(3))
        >>> record = Record(events=("P",), ones=("P",))
        >>> trace = examine(q, k, v, plan="fa2-bf16", block_q=4, block_k=4, record=record).trace
        >>> p = trace.stats["P"].total()
        >>> int(p.n), int(p.inexact), int(p.overflow)  # 8 queries x 8 keys
        (64, 50, 0)
        >>> f"bias {p.mean_ulps:.3f} +- {p.standard_error:.3f} ulps"
        'bias -0.027 +- 0.030 ulps'
        >>> row, column = divmod(int(p.place), 8)  # of the largest error
        >>> before, after = trace.events["P"]
        >>> f"{before[0, 0, row, column]:.6f} to {after[0, 0, row, column]:.6f}: {p.peak:.3f} ulps"
        '0.068602 to 0.068359: 0.496 ulps'
        >>> trace.rows["P"].shape, int(trace.ones["P"].sum())
        ((1, 1, 8), 14)
    """

    stats: dict[str, Stats]
    rows: dict[str, NDArray[np.float64]]
    events: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
    ones: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    away: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    hits: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    exists: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def masked(self, name: str) -> tuple[Any, Any]:
        """Return the events of a site of scores, as masked arrays without what does not exist.

        Args:
            name: A site of `Record.events` with one entry per score, such as "P".

        Returns:
            The values before and after the rounding, two `numpy.ma.MaskedArray` (B, N, T, S), whose
            sums and means are of the entries that exist.

        Raises:
            ValueError: The trace has no such events.

        Example:
            >>> import numpy as np
            >>> from roundscope.attention import Record, examine
            >>> q = np.ones((1, 4, 1, 8), np.float32)
            >>> seen = examine(q, q, q, plan="fa2", is_causal=True, record=Record(events=("S",)))
            >>> trace = seen.trace
            >>> before, after = trace.masked("S")
            >>> int(after.count()), float(after.mean()), int(trace.stats["S"].n.sum())
            (10, 8.0, 10)
        """
        if name not in self.exists:
            known = " ".join(self.exists) or "none"
            raise ValueError(
                f"name={name!r}: no events of scores were recorded there; here are {known}; give"
                " examine a record=Record(events=(...))"
            )
        before, after = (np.ma.array(x, mask=~self.exists[name]) for x in self.events[name])
        return before, after

    def __repr__(self) -> str:
        """Return a line for each site with events: number, share inexact, mean error and z."""
        lines = [f"{'event':10} {'count':>10} {'inexact':>8} {'mean error, ulps':>17} {'z':>7}"]
        for name, stats in self.stats.items():
            total, rows = stats.total(), self.rows[name]
            if not int(total.n):
                continue
            # the signs of rows flipped by coins: errors inside a row may depend on each other
            null = float(np.sqrt(max(np.square(rows).sum(), float(total.sq_ulps))))
            z = float(rows.sum()) / null if null > 0.0 else 0.0
            inexact = f"{100 * float(total.inexact) / int(total.n):.1f} %"
            mean = f"{float(total.mean_ulps):+.5g}"
            lines.append(f"{name:10} {int(total.n):>10} {inexact:>8} {mean:>17} {z:>+7.1f}")
        return "\n".join(lines)

    def __add__(self, other: "Trace") -> "Trace":
        """Return one trace with the events of two different stages of one call."""
        parts = {f.name: getattr(self, f.name) | getattr(other, f.name) for f in fields(self)}
        return Trace(**parts)

    def in_order(self) -> "Trace":
        """Return the trace with sites in the order of `Site` and the steps of a sum after it."""
        place = {str(site): n for n, site in enumerate(Site)}

        def ordered(x: dict[str, Any]) -> dict[str, Any]:
            return {
                name: x[name]
                for name in sorted(x, key=lambda name: (place[str(site_of(name))], name))
            }

        return Trace(**{f.name: ordered(getattr(self, f.name)) for f in fields(self)})


def trace_of(setup: Setup, parts: Sequence[Part], features: tuple[int, int]) -> Trace:
    """Return the trace of a call from all its parts.

    Arrays on JAX's device are copied to the host once, at the end.

    features: how many features q and k have, and how many v has.
    """
    if "jax" in sys.modules:
        from roundscope.attention.trace.from_device import fetched

        parts = fetched(setup, parts, features)
    found = (
        _of_whole(setup, p.whole, p.lead) + _of_tiles(setup, p.tiles, p.lead, features, p.backward)
        for p in parts
    )
    return sum(found, Trace(stats={}, rows={}, events={})).in_order()


def with_existing(trace: Trace, setup: Setup, mask: Any) -> Trace:
    """Return a trace that says which entries of events of scores exist.

    mask: that of the call, which broadcasts to (B, N, T, S), or None
    """
    names = [name for name in trace.events if site_of(name).axes is Axes.TS]
    if not names:
        return trace
    gap = np.arange(setup.queries)[:, None] + setup.shift - np.arange(setup.keys)
    sees = gap >= 0 if setup.is_causal else np.ones(gap.shape, bool)
    if setup.plan.window:
        sees = sees & (np.abs(gap) < setup.plan.window)
    if mask is not None:
        sees = sees & np.asarray(mask)
    own = {name: np.broadcast_to(sees, trace.events[name][0].shape) for name in names}
    return replace(trace, exists=own)


def _of_whole(setup: Setup, seen: Seen, lead: tuple[int, ...]) -> Trace:
    """Return the trace of what was recorded of whole heads.

    Counts of rows may be (heads, rows), or by the tile of the other side (heads, tiles, rows).
    """
    stats, rows, away = {}, {}, {}
    counts_of: dict[str, dict[str, NDArray[np.int64]]] = {"ones": {}, "hits": {}}
    events: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for name, value in seen.items():
        bare, _, kind = name.rpartition(".")
        if kind in counts_of:
            tiles = value.shape[1] if value.ndim == 3 else 1
            by_tile = np.asarray(value).reshape(*lead, tiles, -1)
            counts_of[kind][bare] = by_tile[..., : _size(setup, name)]
            continue
        if name.endswith(".events"):
            size = _size(setup, name)
            before, after = (np.asarray(v).reshape(*lead, *v.shape[1:])[:, :, :size] for v in value)
            events[name.removesuffix(".events")] = (before, after)
            continue
        counts, sums, peak, place, row = (np.asarray(v) for v in value)
        row = row.reshape(*lead, -1)[..., : _size(setup, name)]
        if name.endswith(".away"):
            away[name.removesuffix(".away")] = row
            continue
        stats[name] = Stats.of(
            *(v.reshape(*lead, *v.shape[1:]) for v in (counts, sums, peak, place))
        )
        rows[name] = row
    more: dict[str, Any] = {"away": away, **counts_of}
    return Trace(stats=stats, rows=rows, events=events, **more)


def _of_tiles(
    setup: Setup,
    seen: Seen,
    lead: tuple[int, ...],
    features: tuple[int, int],
    backward: bool,
) -> Trace:
    """Return the trace of what was recorded of tiles; features: how many q and k, and v, have."""
    events, own = {}, summaries(seen)
    counts_of: dict[str, dict[str, NDArray[np.int64]]] = {"ones": {}, "hits": {}}
    for name in (name for name in seen if name not in own):
        bare, _, kind = name.rpartition(".")
        if kind in counts_of:
            v = by_row(site_of(bare), seen[name].swapaxes(1, 2) if backward else seen[name])
            counts_of[kind][bare] = v.reshape(*lead, *v.shape[1:])[..., : _size(setup, name)]
        else:
            before, after = (
                _gather(setup, site_of(bare), v.swapaxes(1, 2) if backward else v, lead)
                for v in seen[name]
            )
            events[bare] = (before, after)
    of = {name: (site_of(name), features_of(site_of(name), features)) for name in own}
    whole = {name: tiles_added(setup, *of[name], backward, own[name]) for name in own}
    own_counts: dict[str, Any] = dict(counts_of)
    return _of_whole(setup, whole, lead) + Trace(stats={}, rows={}, events=events, **own_counts)


def _size(setup: Setup, name: str) -> int:
    """Return how many rows a head has for a name in a trace: queries, or keys."""
    return setup.keys if site_of(name).axes is Axes.SH else setup.queries


def _gather(
    setup: Setup, site: Site, v: NDArray[np.float64], lead: tuple[int, ...]
) -> NDArray[np.float64]:
    """Return events of a site (heads, query tile, key tile, ...) as arrays of a call.

    They are shaped as `Trace.events` says.
    """
    _, nq, nk = v.shape[:3]
    if site.axes is Axes.TS:
        whole = v.transpose(0, 1, 3, 2, 4).reshape(*lead, nq * setup.block_q, nk * setup.block_k)
        return whole[:, :, : setup.queries, : setup.keys]
    if site.axes is Axes.SH:
        whole = v.reshape(*lead, nq, nk * setup.block_k, *v.shape[4:])
        return whole[:, :, :, : setup.keys]
    whole = v.swapaxes(1, 2).reshape(*lead, nk, nq * setup.block_q, *v.shape[4:])
    return whole[:, :, :, : setup.queries]
