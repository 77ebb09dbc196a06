"""What happens at one rounding event: format, direction, overflow and NaN, gathered in
`Rounding`.
"""

import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from roundscope.emu.formats.format import Format, format_named, unknown
from roundscope.emu.numbers import check_seed


class RoundingMode(StrEnum):
    """Which neighbour a number between two neighbours goes to (IEEE 754-2019, 4.3, and three
    more).
    """

    TIES_TO_EVEN = "ties-to-even"
    TIES_TO_AWAY = "ties-to-away"
    TOWARD_ZERO = "toward-zero"
    TOWARD_POSITIVE = "toward-positive"
    TOWARD_NEGATIVE = "toward-negative"
    AWAY_FROM_ZERO = "away-from-zero"  # inexact results take the neighbour farther from zero
    TO_ODD = "to-odd"  # inexact results take the odd neighbour: a sticky bit in the number itself
    STOCHASTIC = "stochastic"  # up with probability (x - below) / (above - below), to 2^-31

    @property
    def code(self) -> int:
        """The mode as a number, so that compiled code takes it as data."""
        return list(RoundingMode).index(self)


class Overflow(StrEnum):
    """What a finite number becomes when it rounds beyond the largest finite one."""

    INF = "inf"
    NAN = "nan"
    SATURATE = "saturate"


class NanPolicy(StrEnum):
    """What a NaN becomes in a format that has none. Where the format has NaN, it stays NaN."""

    KEEP = "keep"  # the carrier's NaN: nothing is lost
    ZERO = "zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """One rounding: a number of the carrier becomes a number of `format`.

    format    the target
    mode      direction
    overflow  INF, NAN or SATURATE; by default the format's own (`Format.saturates`). SATURATE takes
              infinities to the largest finite number too
    nan       what NaN becomes where the format has none
    seed      of the stochastic mode's counter-based bits (`emu.rounding.random`: which seeds share)

    Its text says overflow where it is not what IEEE 754 would have ("e4m3fn:saturate",
    "fp16:saturate"), or not the format's own ("e4m3fn:nan", "e5m2:inf").

    Raises ValueError if the format cannot hold what a policy asks for.
    """

    format: Format
    mode: RoundingMode = RoundingMode.TIES_TO_EVEN
    overflow: Overflow | None = None
    nan: NanPolicy = NanPolicy.KEEP
    seed: int = 0

    def __post_init__(self) -> None:
        f = self.format
        if not isinstance(f, Format):
            raise TypeError(
                f"format={f!r}: give a Format; rounding({f!r}) makes a Rounding of a name"
            )
        object.__setattr__(self, "mode", mode_named(self.mode))
        object.__setattr__(self, "nan", _member(NanPolicy, "nan policy", self.nan))
        if self.overflow is not None:
            object.__setattr__(self, "overflow", _member(Overflow, "overflow", self.overflow))
        if self.overflow is None:
            object.__setattr__(
                self, "overflow", Overflow.SATURATE if f.saturates else _unsaturated(f)
            )
        if self.overflow is Overflow.INF and not f.inf:
            raise ValueError(f"overflow=inf: {f.name} has no infinity; use overflow='saturate'")
        if self.overflow is Overflow.NAN and not f.nan:
            raise ValueError(f"overflow=nan: {f.name} has no NaN; use overflow='saturate'")
        check_seed("seed", self.seed)

    def __str__(self) -> str:
        mode = "" if self.mode is RoundingMode.TIES_TO_EVEN else f":{self.mode}"
        is_plain = self.overflow is _unsaturated(self.format) and not self.format.saturates
        return f"{self.format.name}{mode}{'' if is_plain else f':{self.overflow}'}"

    @property
    def is_identity(self) -> bool:
        """True for binary64, the carrier of every computation: such an event rounds nothing."""
        f = self.format
        return (f.precision, f.emin, f.max_finite) == (53, -1022, sys.float_info.max)

    @property
    def keeps_specials(self) -> bool:
        """Whether 0, -0, infinities and NaN stay what they are."""
        f = self.format
        return self.overflow is Overflow.INF and f.nan and f.zero and f.negative_zero and f.signed


def _unsaturated(f: Format) -> Overflow:
    return Overflow.INF if f.inf else Overflow.NAN if f.nan else Overflow.SATURATE


def without_saturation(r: Rounding) -> Rounding:
    """The rounding with overflow to infinity, or to NaN in a format without infinity: what
    ml_dtypes' conversions do.
    """
    return replace(r, overflow=_unsaturated(r.format))


def mode_named(name: str | RoundingMode) -> RoundingMode:
    """The rounding mode of that name. Raises ValueError with the nearest name."""
    if isinstance(name, RoundingMode):
        return name
    try:
        return RoundingMode(str(name).lower().replace("_", "-"))
    except ValueError:
        raise ValueError(unknown("rounding mode", name, RoundingMode)) from None


def rounding(
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | Overflow | None = None,
    nan: str | NanPolicy | None = None,
    seed: int | None = None,
) -> Rounding:
    """A `Rounding` from names: rounding("bf16", "stochastic", seed=7).

    Given a `Rounding`, returns it with what else is given replaced. Raises ValueError for unknown
    names.
    """
    base = _plain(format)
    changes: dict[str, Any] = {}
    if mode is not None:
        changes["mode"] = mode_named(mode)
    if overflow is not None:
        changes["overflow"] = _member(Overflow, "overflow", overflow)
    if nan is not None:
        changes["nan"] = _member(NanPolicy, "nan policy", nan)
    if seed is not None:
        changes["seed"] = seed
    return replace(base, **changes) if changes else base


def _plain(format: Any) -> Rounding:
    """A rounding as it is, or the plain one to a format."""
    if isinstance(format, Rounding):
        return format
    if not isinstance(format, (str, Format)):
        raise TypeError(f"format={format!r}: give a name such as 'bf16', a Format or a Rounding")
    return Rounding(format=format if isinstance(format, Format) else format_named(format))


def _member(enum: type[StrEnum], what: str, name: str) -> StrEnum:
    if isinstance(name, enum):
        return name
    try:
        return enum(str(name).lower())
    except ValueError:
        raise ValueError(unknown(what, name, enum)) from None


BINARY64 = rounding("fp64")
BINARY32 = rounding("fp32")
BF16 = rounding("bf16")
FP16 = rounding("fp16")
E4M3 = rounding("e4m3fn")
E5M2 = rounding("e5m2")
