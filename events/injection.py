"""`InjectionBase`: a controlled error at chosen entries of one site, and the kinds of errors.

The kinds of errors are `AddUlps`, `Bias`, `Noise`, `SetTo`, `FlipBit` and `Exact`. `What` is the
union of these classes.
"""

import hashlib
import math
import operator
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Self, SupportsIndex, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from roundscope.emu.numbers import as_float, check_array
from roundscope.emu.shown import shown
from roundscope.events.sites import SiteBase

Where = int | range | tuple[int, ...] | None
"""A selection of indices, counted from 0; None selects all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddUlps:
    """An error that adds units in the last place of the number after rounding.

    The result may lie between two neighboring numbers of the site's format.

    Args:
        ulps: How many units are added, a finite number. The unit is the spacing of the site's
            format at the number. In a block, it is the spacing of the element format at the
            element, times the scale of the block.

    Raises:
        TypeError: `ulps` is not a number.
        ValueError: `ulps` is infinite or NaN.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import AddUlps, Injection, attend
        >>> x = np.ones((1, 2, 1, 4), np.float32)
        >>> error = Injection(site="OUT", what=AddUlps(ulps=0.5), rows=1)
        >>> attend(x, x, x, plan="fa2-bf16", inject=error)[0, :, 0, 0].tolist()
        [1.0, 1.00390625]
    """

    ulps: float

    def __post_init__(self) -> None:
        _finite("AddUlps: ulps", self.ulps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """An error that adds a constant to the number after rounding.

    Args:
        value: The constant, a finite number.

    Raises:
        TypeError: `value` is not a number.
        ValueError: `value` is infinite or NaN.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import Bias, Injection, attend
        >>> x = np.ones((1, 2, 1, 4), np.float32)
        >>> error = Injection(site="OUT", what=Bias(value=0.25), rows=1)
        >>> attend(x, x, x, plan="fa2-bf16", inject=error)[0, :, 0, 0].tolist()
        [1.0, 1.25]
    """

    value: float

    def __post_init__(self) -> None:
        _finite("Bias: value", self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBit:
    """An error that flips one bit of the code that the rounded number has in the site's format.

    Args:
        bit: Number of the bit, 0 or more. Bit 0 is the last fraction bit, and the highest bit is
            the sign. `attend` and `examine` refuse a bit that the format does not have, and a site
            in binary64.

    Raises:
        TypeError: `bit` is not a whole number.
        ValueError: `bit` is negative.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import FlipBit, Injection, attend
        >>> x = np.ones((1, 2, 1, 4), np.float32)
        >>> error = Injection(site="OUT", what=FlipBit(bit=15), rows=1)
        >>> attend(x, x, x, plan="fa2-bf16", inject=error)[0, :, 0, 0].tolist()
        [1.0, -1.0]
    """

    bit: int

    def __post_init__(self) -> None:
        _whole("FlipBit: bit", self.bit, "0 is the last fraction bit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTo:
    """An error that replaces the number by a value.

    Args:
        value: The value. It may be NaN or infinite, unlike the numbers in the other kinds of
            errors. `attend` and `examine` refuse a finite value that the site's format does not
            have.

    Raises:
        TypeError: `value` is not a real number (NaN, as a float, counts as one).

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import Injection, SetTo, attend
        >>> x = np.ones((1, 2, 1, 4), np.float32)
        >>> error = Injection(site="OUT", what=SetTo(value=3.0), rows=1)
        >>> attend(x, x, x, plan="fa2-bf16", inject=error)[0, :, 0, 0].tolist()
        [1.0, 3.0]
    """

    value: float

    def __post_init__(self) -> None:
        _number("SetTo: value", self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The opposite of an error: the number is replaced by what it was before rounding.

    For a sum of products, the number before rounding is the sum in binary64, so the rounding of its
    single additions is undone too.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import Exact, Injection, Plan, attend
        >>> x = np.full((1, 2, 1, 4), 1.001, np.float32)
        >>> plan = Plan.preset("fp32").at("V", "bf16")  # no BF16 number is nearer to 1.001 than 1
        >>> float(attend(x, x, x, plan=plan).max())
        1.0
        >>> out = attend(x, x, x, plan=plan, inject=Injection(site="V", what=Exact()))
        >>> bool((out == x).all())
        True
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """An error that adds or subtracts units in the last place, with a random sign per number.

    Every number moves by exactly `ulps` units, and a fair coin of its own decides which way. The
    mean of the error is zero, and its root mean square is that of `AddUlps` with the same `ulps`.

    Args:
        ulps: How many units are added or subtracted, a finite number.
        seed: Seed of the random signs, a whole number from 0 to 2^32 - 1.

    Raises:
        TypeError: `ulps` is not a number, or `seed` is not a whole number.
        ValueError: `ulps` is infinite or NaN, or `seed` is out of its range.

    Example:
        >>> import numpy as np
        >>> from roundscope.attention import Injection, Noise, attend
        >>> x = np.ones((1, 16, 1, 4), np.float32)
        >>> error = Injection(site="OUT", what=Noise(ulps=1.0, seed=3))
        >>> np.unique(attend(x, x, x, plan="fa2-bf16", inject=error)).tolist()
        [0.9921875, 1.0078125]
    """

    ulps: float
    seed: int = 0

    def __post_init__(self) -> None:
        _finite("Noise: ulps", self.ulps)
        _seed("Noise: seed", self.seed)


What = AddUlps | Bias | FlipBit | SetTo | Exact | Noise

SHARES = 2**31  # a share is a whole number of these parts, since random integers are below it
MASK_AXES = 4  # batch entry, head, row, and column or feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A boolean array of chosen entries that can be compared and hashed, as plans are.

    Args:
        shape: The four axes: batch entry, head, row, and column or feature; 1 stands for all.
        bits: The entries in this order, eight in a byte (`numpy.packbits`).
        name: What it is called in words, such as the file that it was read from.
    """

    shape: tuple[int, ...]
    bits: bytes
    name: str = field(default="", compare=False)

    @classmethod
    def of(cls, entries: NDArray[np.bool_], axes: int, name: str = "") -> Self:
        """Return the mask of an array whose last axes are the `axes` of the event."""
        whole = entries if axes == 2 else entries[..., None]
        whole = whole.reshape((1,) * (MASK_AXES - whole.ndim) + whole.shape)
        told = name or f"<{int(whole.sum())} of {whole.size} entries>"
        return cls(shape=whole.shape, bits=np.packbits(whole).tobytes(), name=told)

    @property
    def digest(self) -> str:
        """A digest of shape and entries."""
        return hashlib.sha256(repr(self.shape).encode() + self.bits).hexdigest()[:32]

    @property
    def entries(self) -> NDArray[np.bool_]:
        """The array, with all four axes."""
        packed = np.frombuffer(self.bits, np.uint8)
        return np.unpackbits(packed, count=math.prod(self.shape)).astype(bool).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionBase:
    """An error at one site, at the entries that all of its selections name.

    The arguments `batch` to `tiles` are selections. A selection is an int, a range, a slice with a
    stop, an iterable of ints, or None (default), which selects all. Indices count from 0. `share`
    and `mask` select among these entries.

    Args:
        site: The site at which the error happens.
        what: The error: `AddUlps`, `Bias`, `FlipBit`, `SetTo`, `Exact` or `Noise`.
        batch, heads: The indices of a part of the call, by batch entry and head.
        rows: Rows of the event.
        columns: Columns, for events that have one entry per score (`SiteBase.has_columns`).
        features: Features, for events that have one entry per feature.
        tiles: Tiles, for events that are computed anew at each tile.
        share: The part of the entries that is hit, above 0 and at most 1; None hits all. Each entry
            is chosen or not by a random number of its own, from `seed` and the place of the entry
            in the call. So the choice is the same on every engine, for query tiles of any size (and
            key tiles, for events that have one entry per score), and however the other selections
            are divided among injections. A smaller share with the same seed is a part of a larger
            one. It is the expected part: of n entries about share * n are hit.
        seed: Seed of `share`, a whole number from 0 to 2^32 - 1. `Noise` has a seed of its own.
        mask: A boolean array; entries are hit where it is True. Its last axes are those of the
            event: rows, and columns or features if the event has them. Axes of heads, or of batch
            entries and heads, may precede them.

    Raises:
        TypeError: `what` is not one of these errors, or `mask` is no array of booleans.
        ValueError: A selection is empty, has a negative index, or is not of a type listed above; a
            share is not above 0 and at most 1; a mask names nothing or has too many axes.
    """

    site: SiteBase
    what: What
    batch: Where = None
    heads: Where = None
    rows: Where = None
    columns: Where = None
    features: Where = None
    tiles: Where = None
    share: float | None = None
    seed: int = 0
    mask: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.what, What):
            raise TypeError(
                f"what={shown(self.what)}: give AddUlps, Bias, FlipBit, SetTo, Exact or"
                " Noise, such as"
                " AddUlps(ulps=0.5)"
            )
        for name in ("batch", "heads", "rows", "columns", "features", "tiles"):
            object.__setattr__(self, name, _selection(name, getattr(self, name)))
        if self.share is not None:
            object.__setattr__(self, "share", _share(self.share))
        _seed("seed", self.seed)
        if self.mask is not None:
            object.__setattr__(self, "mask", self._masked(self.mask))

    def _masked(self, mask: Any) -> Any:
        """Return a mask of four axes. Raise TypeError or ValueError if it cannot be one.

        The site may still be a name, of which `operations.run` makes the operation's own.
        """
        if isinstance(mask, Mask):
            return mask
        check_array("mask", mask)
        entries = np.asarray(mask)
        if entries.dtype != bool:
            raise TypeError(
                f"mask: an array of {entries.dtype}; give booleans, as in mask=array > 0"
            )
        if not isinstance(self.site, SiteBase):
            return entries
        least = 2 if self.site.has_second else 1
        if not least <= entries.ndim <= least + 2:
            raise ValueError(
                f"mask of shape {entries.shape}: {self.site} has one entry per {self.site.axes}, so"
                f" give {least} axes, with axes of heads or of batch entries and heads before them"
            )
        if not entries.any():
            raise ValueError("mask: is False everywhere, and the injection would do nothing")
        return Mask.of(entries, least)


def _share(share: object) -> float:
    """Return a share of entries as a float. Raise TypeError or ValueError if it is none."""
    _number("share", share)
    x = float(cast(float, share))
    if not (0.0 < x <= 1.0 and round(x * SHARES)):
        raise ValueError(
            f"share={shown(share)}: give a part of the entries above 0 and at most 1, such as 0.01"
        )
    return x


def _seed(name: str, seed: int) -> None:
    """Raise TypeError or ValueError for what is no seed."""
    _whole(name, seed, "a seed is below 2^32")
    if seed >= 2**32:
        raise ValueError(f"{name}={shown(seed)}: a seed is a whole number from 0 to 2^32 - 1")


def _selection(name: str, where: object) -> range | tuple[int, ...] | None:
    """Return a selection as a range or a tuple; it must not be empty or have a negative index."""
    chosen = _as_where(name, where)
    if chosen is not None and not chosen:
        raise ValueError(
            f"{name}={shown(where)}: names nothing, and the injection would do nothing; None"
            " names all"
        )
    if chosen is not None and min(chosen) < 0:
        raise ValueError(f"{name}={shown(where)}: indices count from 0; negative ones name nothing")
    if chosen is not None and max(chosen) >= 2**63:
        raise ValueError(f"{name}={shown(where)}: give indices below 2^63")
    return chosen


def _as_where(name: str, where: object) -> range | tuple[int, ...] | None:
    """Return a selection as a range or a tuple. Raise ValueError if it is not a selection."""
    if where is None or isinstance(where, range):
        return where
    if _is_index(where):
        return (operator.index(where),)
    if isinstance(where, slice):
        if where.stop is None:
            raise ValueError(f"{name}={where}: give a slice with a stop")
        if (
            not all(x is None or _is_index(x) for x in (where.start, where.stop, where.step))
            or where.step == 0
        ):
            raise ValueError(
                f"{name}={where}: give a slice of whole numbers, with a step other than 0, such as"
                " slice(0, 64)"
            )
        return range(where.start or 0, where.stop, where.step or 1)
    check_array(name, where)
    try:
        indices = None if isinstance(where, (str, bytes)) else list(cast(Any, where))
    except TypeError:  # no collection, or an array without axes
        indices = None
    if indices is not None and all(map(_is_index, indices)):
        return tuple(map(operator.index, indices))
    raise ValueError(
        f"{name}={shown(where)}: give an int, a range, a tuple of ints, or None for all"
    )


def _is_index(x: object) -> TypeGuard[SupportsIndex]:
    """Return whether x is a whole number, of Python or of NumPy."""
    return isinstance(x, Integral) and not isinstance(x, bool)


def _number(name: str, x: object) -> None:
    """Raise TypeError if x is not a real number."""
    if not isinstance(x, Real) or isinstance(x, bool):
        raise TypeError(f"{name}={shown(x)}: give a number, such as 0.5")
    if isinstance(x, Integral) and not math.isfinite(as_float(x)):
        raise ValueError(f"{name}={shown(x)}: beyond binary64; give a number that it holds")


def _finite(name: str, x: float) -> None:
    """Raise TypeError if x is not a real number, and ValueError if it is an infinity or NaN."""
    _number(name, x)
    if not math.isfinite(as_float(x)):
        raise ValueError(
            f"{name}={shown(x)}: give a finite number, such as 0.5; SetTo(value={shown(x)})"
            " puts this one in the"
            " place of others"
        )


def _whole(name: str, x: int, hint: str) -> None:
    """Raise TypeError if x is not a whole number, and ValueError if it is negative."""
    if not _is_index(x):
        raise TypeError(f"{name}={shown(x)}: give a whole number from 0 on; {hint}")
    if not 0 <= x < 2**63:
        raise ValueError(f"{name}={shown(x)}: give a whole number from 0 on; {hint}")
