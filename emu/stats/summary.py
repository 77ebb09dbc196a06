"""`Stats`: a summary of rounding events that can be merged with others.

One object can hold many summaries: every field is an array, and all fields have the same shape. The
fields of a single summary are 0-d; those of a trace have one entry per batch and head. Counts merge
exactly and in any order; sums are binary64 sums of exact errors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from roundscope.emu.stats.classify import COUNTS, SUMS


def record_type(rows: int) -> Any:
    """Return NumPy's type of the statistics of a tile of so many rows as one record."""
    return np.dtype(
        [
            ("counts", np.int64, (len(COUNTS),)),
            ("sums", np.float64, (len(SUMS),)),
            ("peak", np.float64),
            ("place", np.int64),
            ("rows", np.float64, (rows,)),
        ]
    )


def records_type(rows: Sequence[int]) -> Any:
    """Return NumPy's type of the records of several events, named by their numbers."""
    return np.dtype([(str(n), record_type(size)) for n, size in enumerate(rows)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A summary of a set of rounding events: counts, sums of errors, and the largest error.

    `stats_of` and `round_with_stats` make one; `+` merges the summaries of two sets of events. All
    fields are NumPy arrays of the same shape, 0-d for a single summary; the first eleven are
    counts.

    Attributes:
        n: all events.
        inexact: finite numbers whose result is finite and differs from the number. Numbers that
            become infinite or NaN are not counted.
        ties: numbers exactly half way between two neighbors.
        ties_away: ties that went away from zero.
        away: numbers that went away from zero.
        toward: numbers that went toward zero.
        carries: results in the next binade.
        overflow: finite numbers beyond the largest finite one that became infinite, NaN, or a
            number more than half an ulp away. In rounding to nearest these are the overflows of
            IEEE 754-2019, 7.4, except that a tie that saturates is not counted, such as 61440 in
            e5m2. In other modes the two differ, as two examples with saturating e5m2 show. 65000
            toward zero is counted, but IEEE 754 does not call it an overflow. 60000 toward positive
            is not counted, but IEEE 754 calls it an overflow.
        underflow: numbers other than zero that became zero.
        subnormal: subnormal results.
        nan: results that are NaN.
        error: the sum of the signed errors, after - before. In rounding to nearest each error is
            exact unless a number saturates (`roundscope.emu.stats.classify`).
        abs_error: the sum of the absolute errors.
        sq_error: the sum of the squared errors.
        ulps: the sum of the signed errors in ulps of the target format.
        abs_ulps: the sum of the absolute errors in ulps.
        sq_ulps: the sum of the squared errors in ulps.
        peak: the largest absolute error in ulps.
        place: the flat index of the event with the largest error; -1 if there are no events.

    Example:
        >>> import numpy as np
        >>> from roundscope import emu
        >>> x = np.array([1.0, 1.00390625, 1.01171875, 3.0], np.float32)
        >>> _, stats = emu.round_with_stats(x, "bf16")
        >>> int(stats.ties), int(stats.ties_away), float(stats.mean_ulps), float(stats.peak)
        (2, 1, 0.0, 0.5)
        >>> int((stats + stats).n)
        8
    """

    n: Any
    inexact: Any
    ties: Any
    ties_away: Any
    away: Any
    toward: Any
    carries: Any
    overflow: Any
    underflow: Any
    subnormal: Any
    nan: Any
    error: Any
    abs_error: Any
    sq_error: Any
    ulps: Any
    abs_ulps: Any
    sq_ulps: Any
    peak: Any
    place: Any

    @classmethod
    def of(cls, counts: Any, sums: Any, peak: Any, place: Any) -> "Stats":
        """Return the summary from arrays of counts and sums.

        Args:
            counts: the fields named in COUNTS, along the last axis.
            sums: the fields named in SUMS, along the last axis.
            peak: the largest absolute error in ulps.
            place: the flat index of the event with that error.
        """
        counted = {name: np.asarray(counts)[..., i] for i, name in enumerate(COUNTS)}
        summed = {name: np.asarray(sums)[..., i] for i, name in enumerate(SUMS)}
        return cls(**counted, **summed, peak=np.asarray(peak), place=np.asarray(place))

    def __add__(self, other: "Stats") -> "Stats":
        """Return the summary of both sets of events."""
        total = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        here = self.peak >= other.peak
        total["peak"] = np.where(here, self.peak, other.peak)
        total["place"] = np.where(here, self.place, other.place)
        return Stats(**total)

    def __repr__(self) -> str:
        """Return the numbers that are read first, of all entries together."""
        all_of, shape = self.total(), np.shape(self.n)
        of = f", {shape} summaries together" if shape else ""
        return (
            f"Stats(n={int(all_of.n):,}, inexact={int(all_of.inexact):,},"
            f" mean_ulps={float(all_of.mean_ulps):.3g}, peak={float(all_of.peak):.3g}{of})"
        )

    def total(self) -> "Stats":
        """Return one 0-d summary of the events of all entries, such as all batches and heads."""
        values = {f.name: np.asarray(getattr(self, f.name)).sum() for f in fields(self)}
        peak = np.asarray(self.peak).reshape(-1)
        worst = int(peak.argmax()) if peak.size else 0
        values["peak"] = peak[worst] if peak.size else 0.0
        values["place"] = np.asarray(self.place).reshape(-1)[worst] if peak.size else -1
        return Stats(**values)

    @property
    def mean_ulps(self) -> Any:
        """The mean signed error in ulps, which is the bias of the rounding."""
        return self.ulps / np.maximum(self.n, 1)

    @property
    def mean_abs_ulps(self) -> Any:
        """The mean absolute error in ulps."""
        return self.abs_ulps / np.maximum(self.n, 1)

    @property
    def standard_error(self) -> Any:
        """The standard error of `mean_ulps` if the events are independent."""
        n = np.maximum(self.n, 1)
        variance = np.maximum(self.sq_ulps / n - self.mean_ulps**2, 0.0)
        return np.sqrt(variance / n)

    @property
    def coherence(self) -> Any:
        """The ratio `|sum of errors|` / sqrt(sum of squared errors), with errors in ulps.

        It is about 1 or less if the signs of the errors are independent and random.
        """
        root = np.sqrt(self.sq_ulps)
        return np.abs(self.ulps) / np.where(root > 0.0, root, math.inf)

    def as_dict(self) -> dict[str, float]:
        """Return the fields as plain numbers, for JSON; the summary must be 0-d."""
        return {f.name: np.asarray(getattr(self, f.name)).item() for f in fields(self)}
