"""`Rounding`: the format, mode and policies of one rounding, and how words name them.

The words are FORMAT[:MODE][:OVERFLOW], or for blocks FORMAT[:RULE][:MODE][:OVERFLOW]. Those after
the first may stand in any order. Functions of `emu`, plans, commands and files all read them here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from roundscope.emu.blocks.names import ScaleRule, is_of_blocks
from roundscope.emu.errors import known_arguments, tidy_errors, unknown
from roundscope.emu.formats.format import Format, format_named
from roundscope.emu.numbers import check_seed
from roundscope.emu.shown import shown

Member = TypeVar("Member", bound=StrEnum)


class RoundingMode(StrEnum):
    """The direction in which a number that the format does not hold is rounded.

    Such a number lies between two neighboring numbers of the format, and the mode chooses one of
    the two. A number that the format holds stays unchanged in every mode. The first five modes are
    those of IEEE 754-2019, 4.3; the last three go beyond the standard.

    Attributes:
        TIES_TO_EVEN: the nearer one; if both are equally near, the one with an even last bit.
        TIES_TO_AWAY: the nearer one; if both are equally near, the one farther from zero.
        TOWARD_ZERO: the one nearer to zero.
        TOWARD_POSITIVE: the larger one.
        TOWARD_NEGATIVE: the smaller one.
        AWAY_FROM_ZERO: the one farther from zero.
        TO_ODD: the one with an odd last bit. The odd bit is a sticky bit: it records that the
            number was inexact, so that a second rounding, to at least two bits fewer, gives what
            one rounding of the original number gives.
        STOCHASTIC: the upper one with probability (x - lower) / (upper - lower), which is accurate
            to 2^-31, and otherwise the lower one.

    Example:
        >>> from roundscope import emu
        >>> for mode in ("ties-to-even", "ties-to-away", "toward-positive", "to-odd"):
        ...     print(mode, emu.round_to([-2.25, 2.3], "e5m2", mode))  # neighbors are 2 and 2.5
        ties-to-even [-2.   2.5]
        ties-to-away [-2.5  2.5]
        toward-positive [-2.   2.5]
        to-odd [-2.5  2.5]
    """

    TIES_TO_EVEN = "ties-to-even"
    TIES_TO_AWAY = "ties-to-away"
    TOWARD_ZERO = "toward-zero"
    TOWARD_POSITIVE = "toward-positive"
    TOWARD_NEGATIVE = "toward-negative"
    AWAY_FROM_ZERO = "away-from-zero"
    TO_ODD = "to-odd"
    STOCHASTIC = "stochastic"

    @property
    def code(self) -> int:
        """The mode as a number, so that compiled code can take it as data."""
        return list(RoundingMode).index(self)


class Overflow(StrEnum):
    """What a finite number becomes when it rounds beyond the largest finite one.

    A mode that rounds the number toward zero gives the largest finite number under every policy
    (IEEE 754-2019, 7.4).

    Attributes:
        INF: infinity, in a format that has infinities.
        NAN: NaN, in a format that has NaN.
        SATURATE: the largest finite number. Infinities become that number too.

    Example:
        >>> from roundscope import emu
        >>> [emu.round_to(1e5, "fp16", overflow=policy).item() for policy in emu.Overflow]
        [inf, nan, 65504.0]
    """

    INF = "inf"
    NAN = "nan"
    SATURATE = "saturate"


class NanPolicy(StrEnum):
    """What a NaN becomes in a format without NaN. In a format with NaN it stays NaN.

    Events and the steps of sums obey it. A block with a NaN is NaN whatever its elements' policy
    (`BlockFormat`), and a tensor core keeps NaN.

    Attributes:
        KEEP: it stays a NaN of the array's type, so that nothing is lost.
        ZERO: it becomes +0, whatever its sign.

    Example:
        >>> from roundscope import emu
        >>> [emu.round_to(float("nan"), "e2m1fn", nan=policy).item() for policy in emu.NanPolicy]
        [nan, 0.0]
    """

    KEEP = "keep"
    ZERO = "zero"


_WORDS = {"mode": tuple(RoundingMode), "overflow": tuple(Overflow), "rule": tuple(ScaleRule)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """One rounding: how a number of binary32 or binary64 becomes a number of a format.

    `rounding` makes one from names. The text of a rounding, str(r), names the format, then a mode
    other than ties-to-even, then the overflow policy. The policy is left out only where it is that
    of IEEE 754 and also the format's default, as in "bf16". "e4m3fn:saturate" and "fp16:saturate"
    differ from IEEE 754; "e4m3fn:nan" and "e5m2:inf" differ from the format's default.

    Args:
        format: the `Format` that a number is rounded to.
        mode: the direction, a `RoundingMode`; ties-to-even by default.
        overflow: the `Overflow` policy, which says what overflow becomes; by default
            `Format.saturates` decides.
        nan: the `NanPolicy`, which says what a NaN becomes in a format without NaN; KEEP by
            default.
        seed: the seed of the stochastic mode's random bits, a whole number from 0 to 2^32 - 1; 0 by
            default. `roundscope.emu.roundings.random` says which seeds share bits.

    Raises:
        ValueError: for an overflow to infinity or NaN in a format without it, an unknown name, or a
            seed that is not a whole number from 0 to 2^32 - 1.
        TypeError: for a format that is not a `Format`.

    Example:
        >>> from roundscope import emu
        >>> r = emu.Rounding(format=emu.format_named("bf16"), mode=emu.RoundingMode.TOWARD_ZERO)
        >>> str(r), r == emu.rounding("bf16", "toward-zero")
        ('bf16:toward-zero', True)
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
                f"format={shown(f)}: give a Format; rounding({shown(f)}) makes a Rounding of a name"
            )
        object.__setattr__(self, "mode", mode_named(self.mode))
        object.__setattr__(self, "nan", member(NanPolicy, "nan policy", self.nan))
        if self.overflow is not None:
            object.__setattr__(self, "overflow", member(Overflow, "overflow", self.overflow))
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
        """Whether every number stays unchanged: the format is binary64, which carries all.

        A policy that changes infinities or NaN is none that changes nothing.
        """
        return self.format.is_binary64 and self.keeps_specials

    @property
    def keeps_specials(self) -> bool:
        """Return whether 0, -0, infinities and NaN stay unchanged."""
        f = self.format
        return self.overflow is Overflow.INF and f.nan and f.zero and f.negative_zero and f.signed


def _unsaturated(f: Format) -> Overflow:
    """Return the overflow policy of IEEE 754, infinity, where the format has infinities.

    Without infinities it is NaN, and without NaN it is saturation.
    """
    return Overflow.INF if f.inf else Overflow.NAN if f.nan else Overflow.SATURATE


def without_saturation(r: Rounding) -> Rounding:
    """Return the rounding with overflow to infinity, or to NaN in a format without infinity.

    ml_dtypes' conversions do the same. A format with neither infinity nor NaN still saturates.
    """
    return replace(r, overflow=_unsaturated(r.format))


def mode_named(name: str | RoundingMode) -> RoundingMode:
    """Return the rounding mode with a name; raise ValueError for an unknown name."""
    return member(RoundingMode, "rounding mode", name)


@known_arguments
@tidy_errors
def rounding(
    format: str | Format | Rounding,
    mode: str | RoundingMode | None = None,
    *,
    overflow: str | Overflow | None = None,
    nan: str | NanPolicy | None = None,
    seed: int | None = None,
) -> Rounding:
    """Return a `Rounding` from names.

    Args:
        format: the name of a format ("bf16", "e5m10" ...), a `Format`, a `Rounding`, or a rounding
            in words, FORMAT[:MODE][:OVERFLOW], such as "e5m10:toward-zero:saturate". A `Rounding`
            and words keep their mode, policies and seed unless another argument replaces them.
        mode: a `RoundingMode` or its name; ties-to-even by default.
        overflow: an `Overflow` or its name; by default `Format.saturates` decides.
        nan: a `NanPolicy` or its name; "keep" by default.
        seed: the seed of the stochastic mode, a whole number from 0 to 2^32 - 1; 0 by default.

    Returns:
        The rounding to that format.

    Raises:
        ValueError: for an unknown name (the message has the nearest one), or as `Rounding` does.
        TypeError: for a format that is not a name, a `Format` or a `Rounding`.

    Example:
        >>> from roundscope import emu
        >>> r = emu.rounding("bf16", "stochastic", seed=7)
        >>> str(r), r.seed, str(emu.rounding(r, "toward-zero"))
        ('bf16:stochastic', 7, 'bf16:toward-zero')
        >>> emu.rounding("fp16:saturate") == emu.rounding("fp16", overflow="saturate")
        True
    """
    base = _plain(format)
    changes: dict[str, Any] = {}
    if mode is not None:
        changes["mode"] = mode_named(mode)
    if overflow is not None:
        changes["overflow"] = member(Overflow, "overflow", overflow)
    if nan is not None:
        changes["nan"] = member(NanPolicy, "nan policy", nan)
    if seed is not None:
        changes["seed"] = seed
    return replace(base, **changes) if changes else base


def _plain(format: Any) -> Rounding:
    """Return a rounding unchanged, and for a format or its name the rounding to nearest even."""
    if isinstance(format, Rounding):
        return format
    if not isinstance(format, (str, Format)):
        if isinstance(element := getattr(format, "element", None), Rounding):  # a BlockFormat
            raise TypeError(
                f"format={format}: a block format of {element.format.name} numbers that"
                " share a scale; emu.round_blocks rounds an array to it"
            )
        raise TypeError(
            f"format={shown(format)}: give a name such as 'bf16', a Format or a Rounding"
        )
    if isinstance(format, Format):
        return Rounding(format=format)
    if ":" not in format:
        return Rounding(format=format_named(format))
    name, words = parted(format)
    f, rule = format_named(name), words.pop("rule", None)
    if rule is not None:
        raise ValueError(f"'{format}': {name} has no scale, so no rule; leave out {rule}")
    return rounding(f, words.get("mode"), overflow=words.get("overflow"))


def parted(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of a format and the further words by kind: mode, overflow or rule.

    Raises ValueError for an unknown word, and for two words of one kind.
    """
    name, *rest = text.strip().split(":")
    known = _WORDS if is_of_blocks(name) else {k: v for k, v in _WORDS.items() if k != "rule"}
    found: dict[str, str] = {}
    for word in rest:
        if not word.strip():
            raise ValueError(
                f"'{text}': a word is missing behind a colon; leave the colon out, or write a"
                f" {' or '.join(known)}, as in bf16:toward-zero"
            )
        kind, plain = _kind(word, known)
        if kind in found:
            raise ValueError(f"'{text}': {found[kind]} and {plain} both set the {kind}; give one")
        found[kind] = plain
    return name, found


def _kind(word: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """Return the kind of a word and its one spelling; `known` has the words for the message."""
    plain = word.strip().lower().replace("_", "-")
    for kind, names in _WORDS.items():
        if plain in list(names):
            return kind, plain
    raise ValueError(
        unknown(" or ".join(known), word, [name for names in known.values() for name in names])
    )


def member(enum: type[Member], what: str, name: Any) -> Member:
    """Return a member of an enumeration by its name, in either case, with - or _."""
    if isinstance(name, enum):
        return name
    if not isinstance(name, str):
        raise TypeError(f"{what}={shown(name)}: give one of {', '.join(enum)}")
    try:
        return enum(name.lower().replace("_", "-"))
    except ValueError:
        raise ValueError(unknown(what, name, enum)) from None


# The most common roundings to nearest even; overflow is the format's default.
BINARY64 = rounding("fp64")
BINARY32 = rounding("fp32")
BF16 = rounding("bf16")
FP16 = rounding("fp16")
E4M3 = rounding("e4m3fn")
E5M2 = rounding("e5m2")
