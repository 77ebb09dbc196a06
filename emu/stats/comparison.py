"""The comparison of a result with the result that it should be: infinite and NaN come first.

One rule serves every summary. Two numbers agree if they are equal, or if both are NaN. Where they
do not agree and one of them is not finite, no finite number measures their distance: it is
infinite. So an error is infinite as soon as one such entry exists, a gain is NaN, and `lost`
says how many entries there are and where the first one stands. Means over the other entries are
never reported in their place.

Everything is computed in binary64.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The entries of a result that are not finite, and are not the same in the other result.

    Attributes:
        nan: How many of them are NaN in the result.
        infinite: How many of them are infinite in the result.
        missed: How many of them are finite in the result, and not finite in the other one.
        of: The number of all entries.
        first: The index of the first of them, in the order of the array; None if there is none.
    """

    nan: int
    infinite: int
    missed: int
    of: int
    first: tuple[int, ...] | None

    def __bool__(self) -> bool:
        return self.first is not None

    @property
    def count(self) -> int:
        """The number of such entries."""
        return self.nan + self.infinite + self.missed

    def words(self, what: str) -> str:
        """Return the counts in words; what: the name of the entries, such as "outputs".

        Example:
            >>> import numpy as np
            >>> lost(np.array([1.0, np.inf, np.nan]), np.ones(3)).words("outputs")
            '1 of 3 outputs is NaN and 1 is infinite'
        """
        kinds = {
            "NaN": self.nan,
            "infinite": self.infinite,
            "finite where they should not be": self.missed,
        }
        (kind, n), *more = [(kind, n) for kind, n in kinds.items() if n] or [("not finite", 0)]
        first = f"{n:,} of {self.of:,} {what} {'is' if n == 1 else 'are'} {kind}"
        return " and ".join(
            [first, *(f"{n:,} {'is' if n == 1 else 'are'} {kind}" for kind, n in more)]
        )


def share_words(share: float, digits: int = 6) -> str:
    """Return a share between 0 and 1 in decimal, in which only a share of 1 reads as 1.

    Example:
        >>> share_words(1.0), share_words(131066 / 131072), share_words(1.0 - 1e-9)
        ('1.000000', '0.999954', '0.999999')
    """
    most = 1.0 if share >= 1.0 else 1.0 - 10.0**-digits
    return f"{min(share, most):.{digits}f}"


def agree(own: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return where two arrays have the same number, or both NaN."""
    own, want = np.asarray(own), np.asarray(want)
    return np.asarray((own == want) | (np.isnan(own) & np.isnan(want)))


def is_lost(own: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return where the two results differ, and one of them is not finite."""
    return np.asarray(~agree(own, want) & ~(np.isfinite(own) & np.isfinite(want)))


def lost(own: np.ndarray, want: np.ndarray | None = None) -> Lost:
    """Return the count and first place of the entries that are not finite as they should be.

    own   the result
    want  the result that it should be, of the same shape; None if all of it should be finite

    Example:
        >>> import numpy as np
        >>> want = np.array([[0.5, 1.0], [1.0, np.nan]])
        >>> found = lost(np.array([[0.5, np.inf], [np.nan, np.nan]]), want)
        >>> found.nan, found.infinite, found.of, found.first
        (1, 1, 4, (0, 1))
    """
    own = np.asarray(own, np.float64)
    there = ~np.isfinite(own) if want is None else is_lost(own, np.asarray(want, np.float64))
    nan, infinite = int((there & np.isnan(own)).sum()), int((there & np.isinf(own)).sum())
    total = int(there.sum())
    first = np.unravel_index(int(there.argmax()), there.shape) if total else None
    return Lost(
        nan=nan,
        infinite=infinite,
        missed=total - nan - infinite,
        of=own.size,
        first=None if first is None else tuple(int(i) for i in first),
    )


def deviations(own: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return own - want in binary64: 0 where the two agree, infinite where an entry is lost."""
    own, want = np.asarray(own, np.float64), np.asarray(want, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.where(agree(own, want), 0.0, own - want)
    return np.where(is_lost(own, want), math.inf, off)


def relative_rms(own: np.ndarray, want: np.ndarray, of: np.ndarray | None = None) -> float:
    """Return the rms of own - want over that of want: infinite if an entry is lost.

    Entries in which both results are the same infinity, or NaN, have no error, and no size. Where
    the size of want is 0, the result is 0; where all of want and own is NaN, it is NaN.

    of: the result whose size the error is divided by, if that is not want

    Example:
        >>> import numpy as np
        >>> relative_rms(np.array([1.0, 2.5]), np.array([1.0, 2.0])) == (0.25 / 5) ** 0.5
        True
        >>> relative_rms(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
        inf
    """
    off = deviations(own, want)
    if not np.isfinite(off).all():
        return math.inf
    if off.size and np.isnan(want).all():
        return math.nan
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.square(_finite(want if of is None else of)).sum())
        return float(np.sqrt(np.square(off).sum() / size)) if size else 0.0


def gain(own: np.ndarray, want: np.ndarray, of: np.ndarray | None = None) -> float:
    """Return <own - want, want> / |want|^2: by which part of its length a result is too long.

    It is NaN if an entry is lost, and 0 where want is 0.

    of: the result along which the error is measured, if that is not want
    """
    off = deviations(own, want)
    if not np.isfinite(off).all():
        return math.nan
    along = _finite(want if of is None else of)
    with np.errstate(over="ignore", invalid="ignore"):
        size = float(np.square(along).sum())
        return float((off * along).sum() / size) if size else 0.0


def _finite(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return np.where(np.isfinite(x), x, 0.0)
