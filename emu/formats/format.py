"""Number formats as data: a `Format` is a finite set of floating-point numbers and nothing else.

A finite positive number of a format is  k * 2^(e - p + 1)  with  e >= emin  and  0 <= k < 2^p:
precision `p` counts the leading bit, and below 2^emin the spacing stays that of emin (subnormals).
Sources: IEEE 754-2019 (bf16's layout is the top half of binary32), OCP OFP8 1.0 (e4m3fn, e5m2),
Noune et al. arXiv 2206.02915 (fnuz), OCP Microscaling Formats 1.0 (e3m2fn, e2m3fn, e2m1fn,
e8m0fnu).
"""

import difflib
import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A set of floating-point numbers.

    precision      p, significand bits including the leading one
    emin           exponent of the smallest normal number, 2^emin
    max_finite     the largest finite number
    inf, nan       whether the format has infinities, NaN
    signed         whether it has negative numbers
    zero           whether it has a zero (e8m0fnu has none)
    negative_zero  whether it tells -0 from +0 (the fnuz formats do not)
    saturates      what overflow means where nobody says otherwise, in every function, plan and
                   command: True, the largest finite number, as NVIDIA's conversions and attention
                   kernels have it (e4m3fn and e5m2, for which OCP OFP8 1.0 leaves the choice);
                   False, infinity as in IEEE 754 (16 bits and wider, every e<x>m<y>), or NaN in a
                   format without infinity (the fnuz formats, e8m0fnu). A format that has neither
                   (FP6, FP4) saturates whatever stands here. `Rounding.overflow` says it of one
                   rounding.
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
        if not 1 <= self.precision <= 53:
            raise ValueError(f"precision={self.precision}: a format has 1 to 53 significand bits")
        if not (math.isfinite(self.max_finite) and self.max_finite > 0):
            raise ValueError(
                f"max_finite={self.max_finite}: give the largest finite number, above 0"
            )
        if self.emin - self.precision + 1 < -1074:
            raise ValueError(
                f"emin={self.emin}: with precision {self.precision} binary64 lacks the smallest"
                " number, 2^(emin - p + 1)"
            )

    def __hash__(self) -> int:
        return hash(
            self.name
        )  # plans are keys of caches and hold 44 formats: a name tells them apart well enough

    @property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return math.frexp(self.max_finite)[1] - 1

    @property
    def min_normal(self) -> float:
        """2^emin, the smallest number with a full significand."""
        return math.ldexp(1.0, self.emin)

    @property
    def min_positive(self) -> float:
        """The smallest number above zero: 2^(emin - p + 1)."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number above: 2^(1 - p)."""
        return math.ldexp(1.0, 1 - self.precision)

    @property
    def bits(self) -> int:
        """Width of one code: sign, exponent field and p - 1 fraction bits."""
        return int(self.signed) + max(1, self._largest_code.bit_length())

    @property
    def _largest_code(self) -> int:
        """Code of the largest magnitude, infinities and NaN included."""
        per_binade = 1 << (self.precision - 1)
        fraction = round(math.ldexp(self.max_finite, self.precision - 1 - self.emax)) - per_binade
        largest = (self.emax - self.emin + int(self.zero)) * per_binade + fraction
        shared_nan = self.nan and (
            self.negative_zero or not self.signed
        )  # fnuz: NaN is the code of -0
        return largest + int(self.inf) + int(shared_nan)

    @property
    def tie_window(self) -> float:
        """Largest gap g with exp(-g) rounding to 1 (nearest): -ln(1 - 2^-(p+1))."""
        return -math.log1p(-math.ldexp(1.0, -(self.precision + 1)))

    def holds(self, other: "Format") -> bool:
        """Whether every finite number of the other format is a number of this one."""
        return (
            self.precision >= other.precision
            and self.min_positive <= other.min_positive
            and self.max_finite >= other.max_finite
        )

    @property
    def fits_binary32(self) -> bool:
        """Whether every number of the format is a normal-form binary32 number with emin >= -126."""
        return self.precision <= 24 and self.emin >= -126 and self.max_finite <= _MAX32


_MAX32 = float.fromhex("0x1.fffffep127")

# One line per named format; `e<x>m<y>` builds the rest.
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
        Format(name="e3m2fn", precision=3, emin=-2, max_finite=28.0, inf=False, nan=False),
        Format(name="e2m3fn", precision=4, emin=0, max_finite=7.5, inf=False, nan=False),
        Format(name="e2m1fn", precision=2, emin=0, max_finite=6.0, inf=False, nan=False),
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
    """The format e<x>m<y> by IEEE 754's rules: bias 2^(x-1) - 1, top exponent for inf and NaN.

    Raises ValueError outside 2 <= x <= 11, 1 <= y <= 52.
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


@functools.cache
def format_named(name: str) -> Format:
    """The format of that name: one of `NAMED`, or any e<x>m<y>.

    Raises ValueError with the nearest name.
    """
    if name in NAMED:
        return NAMED[name]
    if match := _IEEE_LIKE.fullmatch(name):
        return ieee_like(int(match[1]), int(match[2]))
    raise ValueError(unknown("format", name, NAMED, "or any e<x>m<y>, such as e5m10"))


def unknown(what: str, name: str, known: Iterable[object], repair: str = "") -> str:
    """One line for a name that is not known, with the nearest ones that are."""
    names = [str(k) for k in known]
    near = difflib.get_close_matches(str(name).lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = next((f"; did you mean '{n}'?" for n in names if near and n.lower() == near[0]), "")
    return (
        f"unknown {what} '{name}'{hint or '.'} Known:"
        f" {' '.join(names)}{' ' + repair if repair else ''}"
    )
