"""Number formats as data: a `Format` is a finite set of floating-point numbers and nothing else.

A finite positive number of a format is  k * 2^(e - p + 1)  with  e >= emin  and  0 < k < 2^p. The
precision `p` counts the leading bit. The numbers below 2^emin are subnormal, and their spacing is
that at 2^emin. Sources: IEEE 754-2019 (bf16's layout is the top half of binary32), OCP OFP8 1.0
(e4m3fn, e5m2), Noune et al. arXiv 2206.02915 (fnuz), ml_dtypes 0.6 (e4m3b11fnuz, with the bias
11), OCP Microscaling Formats 1.0 (e3m2fn, e2m3fn, e2m1fn, e8m0fnu). e1m2fn, the other FP4, has the
numbers k / 4 with |k| <= 7, equally spaced as those of INT4, and -0.
"""

import functools
import math
import re
import sys
from dataclasses import dataclass

from roundscope.emu.blocks.names import BLOCKS
from roundscope.emu.errors import known_arguments, unknown
from roundscope.emu.numbers import check_real, check_text, check_truth, check_whole
from roundscope.emu.shown import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A set of floating-point numbers.

    `format_named` returns the known ones; a new format is made by giving its parameters.

    Args:
        name: what the format is called; formats with equal names have equal hashes.
        precision: the number p of significand bits, including the leading one, from 1 to 53.
        emin: the exponent of the smallest normal number, 2^emin.
        max_finite: the largest finite number.
        inf: whether the format has infinities.
        nan: whether the format has NaN.
        signed: whether it has negative numbers.
        zero: whether it has a zero (e8m0fnu has none).
        negative_zero: whether it tells -0 from +0 (the fnuz formats do not).
        saturates: the default for overflow in every function, plan and command; `Rounding.overflow`
            replaces it for one rounding. True gives the largest finite number, as in NVIDIA's
            conversions and attention kernels (e4m3fn and e5m2, for which OCP OFP8 1.0 allows both).
            False gives infinity as in IEEE 754 (formats of 16 bits and wider, every e<x>m<y>), or
            NaN in a format without infinity (the fnuz formats, e8m0fnu). A format that has neither
            infinity nor NaN (FP6, FP4) always saturates.

    Raises:
        ValueError: for a precision outside 1 to 53, a largest number that is not finite and
            positive, a smallest normal number below that of binary64, 2^-1022, or a smallest
            positive number, 2^(emin - precision + 1), below that of binary64, 2^-1074.

    Example:
        >>> from roundscope import emu
        >>> f = emu.Format(name="e3m4", precision=5, emin=-2, max_finite=15.5, inf=True, nan=True)
        >>> f.bits, f.epsilon, f.min_normal, f.min_positive
        (8, 0.0625, 0.25, 0.015625)
        >>> emu.round_to([0.3, 3.3, 15.9], f).tolist()
        [0.296875, 3.25, inf]
    """

    name: str
    precision: int
    emin: int
    max_finite: float
    inf: bool
    nan: bool
    signed: bool = True
    zero: bool = True
    negative_zero: bool = True
    saturates: bool = False

    def __post_init__(self) -> None:
        check_text("name", self.name, "e4m3")
        if not self.name.strip():
            raise ValueError(f"name={shown(self.name)}: is empty; name the format, as e4m3")
        for name in ("precision", "emin"):
            check_whole(name, getattr(self, name), "it is a number of bits, or an exponent")
        check_real(
            "max_finite", self.max_finite, 0.0, math.inf, "give the largest finite number, above 0"
        )
        for name in ("inf", "nan", "signed", "zero", "negative_zero", "saturates"):
            check_truth(name, getattr(self, name))
        if not 1 <= self.precision <= 53:
            raise ValueError(
                f"precision={shown(self.precision)}: a format has 1 to 53 significand bits"
            )
        if not -1022 <= self.emin <= 1023:
            raise ValueError(
                f"emin={shown(self.emin)}: binary64's own smallest normal number is 2^-1022; give"
                " -1022 or more, up to 1023"
            )
        if self.emin - self.precision + 1 < -1074:
            raise ValueError(
                f"emin={self.emin}: with precision {self.precision} binary64 lacks the smallest"
                " number, 2^(emin - p + 1)"
            )

    def __hash__(self) -> int:
        # plans are keys of caches and hold 44 formats; hashing the name alone is fast and enough
        return hash(self.name)

    @property
    def emax(self) -> int:
        """The exponent of the largest finite number."""
        return math.frexp(self.max_finite)[1] - 1

    @property
    def min_normal(self) -> float:
        """The smallest normal number, 2^emin, which has a full significand."""
        return math.ldexp(1.0, self.emin)

    @property
    def min_positive(self) -> float:
        """The smallest number above zero, 2^(emin - precision + 1)."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above it, 2^(1 - precision)."""
        return math.ldexp(1.0, 1 - self.precision)

    @property
    def bits(self) -> int:
        """The width of a code in bits: sign, exponent field and precision - 1 fraction bits."""
        return int(self.signed) + max(1, self._largest_code.bit_length())

    @property
    def _largest_code(self) -> int:
        """The code of the largest magnitude, infinities and NaN included."""
        per_binade = 1 << (self.precision - 1)
        fraction = round(math.ldexp(self.max_finite, self.precision - 1 - self.emax)) - per_binade
        largest = (self.emax - self.emin + int(self.zero)) * per_binade + fraction
        # in fnuz formats NaN has the code that -0 has elsewhere, not one after the largest number
        own_nan = self.nan and (self.negative_zero or not self.signed)
        return largest + int(self.inf) + int(own_nan)

    @property
    def tie_window(self) -> float:
        """The largest gap g for which exp(-g) rounds to 1 in the mode ties-to-even.

        It is -ln(1 - 2^-(precision + 1)).
        """
        return -math.log1p(-math.ldexp(1.0, -(self.precision + 1)))

    def holds(self, other: "Format") -> bool:
        """Return whether every finite number of the other format is a number of this one."""
        return (
            self.precision >= other.precision
            and self.min_positive <= other.min_positive
            and self.max_finite >= other.max_finite
        )

    @property
    def is_deep(self) -> bool:
        """Whether an ulp of its small numbers is a subnormal number of binary64, the carrier.

        So it is in formats with 11 exponent bits, binary64 itself among them.
        """
        return self.min_positive < sys.float_info.min

    @property
    def is_binary64(self) -> bool:
        """Whether its finite numbers are those of binary64, which carries all computations."""
        return (self.precision, self.emin, self.max_finite) == (53, -1022, sys.float_info.max)

    @property
    def fits_binary32(self) -> bool:
        """Whether binary32 holds all numbers of the format, and its normal ones as normal ones."""
        return self.precision <= 24 and self.emin >= -126 and self.max_finite <= _MAX32


_MAX32 = float.fromhex("0x1.fffffep127")

# The named formats; `ieee_like` makes every other e<x>m<y>.
NAMED: dict[str, Format] = {
    f.name: f
    for f in (
        Format(
            name="fp64",
            precision=53,
            emin=-1022,
            max_finite=float.fromhex("0x1.fffffffffffffp1023"),
            inf=True,
            nan=True,
        ),
        Format(name="fp32", precision=24, emin=-126, max_finite=_MAX32, inf=True, nan=True),
        Format(
            name="tf32",
            precision=11,
            emin=-126,
            max_finite=float.fromhex("0x1.ffcp127"),
            inf=True,
            nan=True,
        ),
        Format(
            name="bf16",
            precision=8,
            emin=-126,
            max_finite=float.fromhex("0x1.fep127"),
            inf=True,
            nan=True,
        ),
        Format(name="fp16", precision=11, emin=-14, max_finite=65504.0, inf=True, nan=True),
        Format(
            name="e5m2",
            precision=3,
            emin=-14,
            max_finite=57344.0,
            inf=True,
            nan=True,
            saturates=True,
        ),
        Format(
            name="e4m3fn",
            precision=4,
            emin=-6,
            max_finite=448.0,
            inf=False,
            nan=True,
            saturates=True,
        ),
        Format(
            name="e5m2fnuz",
            precision=3,
            emin=-15,
            max_finite=57344.0,
            inf=False,
            nan=True,
            negative_zero=False,
        ),
        Format(
            name="e4m3fnuz",
            precision=4,
            emin=-7,
            max_finite=240.0,
            inf=False,
            nan=True,
            negative_zero=False,
        ),
        Format(
            name="e4m3b11fnuz",
            precision=4,
            emin=-10,
            max_finite=30.0,
            inf=False,
            nan=True,
            negative_zero=False,
        ),
        Format(name="e3m2fn", precision=3, emin=-2, max_finite=28.0, inf=False, nan=False),
        Format(name="e2m3fn", precision=4, emin=0, max_finite=7.5, inf=False, nan=False),
        Format(name="e2m1fn", precision=2, emin=0, max_finite=6.0, inf=False, nan=False),
        Format(name="e1m2fn", precision=3, emin=0, max_finite=1.75, inf=False, nan=False),
        Format(
            name="e8m0fnu",
            precision=1,
            emin=-127,
            max_finite=math.ldexp(1.0, 127),
            inf=False,
            nan=True,
            signed=False,
            zero=False,
            negative_zero=False,
        ),
    )
}

_IEEE_LIKE = re.compile(r"e(\d+)m(\d+)")


def ieee_like(exponent_bits: int, fraction_bits: int) -> Format:
    """Return the format e<x>m<y>, with x exponent bits and y fraction bits, by IEEE 754's rules.

    The bias is 2^(x-1) - 1, and the largest exponent field encodes infinities and NaN. Raises
    ValueError unless 2 <= x <= 11 and 1 <= y <= 52.
    """
    if not (2 <= exponent_bits <= 11 and 1 <= fraction_bits <= 52):
        raise ValueError(
            f"e{exponent_bits}m{fraction_bits}: exponent bits run from 2 to 11, fraction bits from"
            " 1 to 52"
        )
    bias = (1 << (exponent_bits - 1)) - 1
    largest = (2.0 - math.ldexp(1.0, -fraction_bits)) * math.ldexp(1.0, bias)
    name = f"e{exponent_bits}m{fraction_bits}"
    return Format(
        name=name,
        precision=fraction_bits + 1,
        emin=1 - bias,
        max_finite=largest,
        inf=True,
        nan=True,
    )


@known_arguments
def format_named(name: str) -> Format:
    """Return the format that a name stands for.

    Args:
        name: one of the names in `NAMED`, or e<x>m<y> for x exponent and y fraction bits by IEEE
            754's rules (x from 2 to 11, y from 1 to 52).

    Returns:
        The format. Every call with the same name returns the same object.

    Raises:
        ValueError: for an unknown name (the message has the nearest known one), or the name of a
            block format; `round_blocks` rounds to block formats.

    Example:
        >>> from roundscope import emu
        >>> emu.format_named("bf16").precision, emu.format_named("e4m3fn").max_finite
        (8, 448.0)
        >>> emu.format_named("e5m10").max_finite == emu.format_named("fp16").max_finite
        True
    """
    check_text("name", name, "bf16")
    return _format_named(str(name))


@functools.cache
def _format_named(name: str) -> Format:
    """Return the format of a name that is a text."""
    if name in NAMED:
        return NAMED[name]
    if match := _IEEE_LIKE.fullmatch(name):
        return ieee_like(int(match[1]), int(match[2]))
    if name in BLOCKS:
        element = BLOCKS[name].partition("[")[0]
        raise ValueError(
            f"format '{name}': a block format of {element} numbers that share a scale;"
            " emu.round_blocks rounds an array to it"
        )
    raise ValueError(unknown("format", name, NAMED, "or any e<x>m<y>, such as e5m10", BLOCKS))
