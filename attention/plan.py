"""`Plan`: the whole experimental condition of an attention computation, hashable and printable.

A plan gives every site a rounding and every sum of products an accumulator, and fixes the few choices in
which published kernels differ. Presets, each with its source, are in `attention.presets`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from attention.sites import PRODUCTS, Site
from emu.accumulate import Accumulator
from emu.formats import unknown
from emu.rounding import Rounding, RoundingMode, rounding


class DeltaFrom(StrEnum):
    """Where delta = rowsum(dO O) = rowsum(P dP) takes its operands: the same number in exact arithmetic, since rowsum(P) = 1."""

    OUT = "OUT"  # the rounded output, as every released kernel does
    WIDE_O = "O"  # the output before its last rounding
    P_DP = "P_DP"  # rowsum(P dP), from the recomputed probabilities
    CENTRED = "CENTRED"  # rowsum(P dP) / rowsum(P): the delta for which every row of dS = P (dP - delta) sums to 0, whatever P lost


class Exponential(StrEnum):
    """How exp(x) is computed."""

    CORRECT = "correct"  # correctly rounded to the event's format
    BASE2 = "base2"  # X = (S - m) log2 e, then 2^X: what GPU kernels do, which fold log2 e into the scale


class KeyOrder(StrEnum):
    """The order in which a query tile meets the key tiles; inside a tile keys stay ascending."""

    ASCENDING = "ascending"
    DESCENDING = "descending"  # FlashAttention-3: the last, masked tile first


@dataclass(frozen=True, slots=True, kw_only=True)
class Stabiliser:
    """The shifted maximum of arXiv 2510.04212, Algorithm 1: where several scores of a tile row share the
    maximum, m moves away from it, so that no P is 1 and no sum of P V is a sum of unrounded V.

    beta    a repeated maximum r > 0 gives m = beta r; a negative one gives m = 0. beta > 1
    window  scores closer to the maximum than this count as equal to it; None takes the gap below which
            P rounds to 1 in its format (`Format.tie_window`)

    Softmax is invariant under the shift, so the result is exact in exact arithmetic for every input. Unlike
    the released code it clamps no row sum and counts no masked score; and the shift is kept between twice the
    window plus an ulp of M (a smaller one rounds P back to 1; this also moves a maximum of 0) and half the exponent range of P
    (a larger one would underflow). docs/decisions.md says why.
    """

    beta: float = 2.0
    window: float | None = None

    def __post_init__(self) -> None:
        if not self.beta > 1.0:
            raise ValueError(f"beta={self.beta}: the shift needs beta > 1, the paper uses 2 to 8")
        if self.window is not None and not self.window >= 0.0:
            raise ValueError(f"window={self.window}: a gap between scores is 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The experimental condition.

    roundings          one Rounding per Site, in the order of Site
    accumulators       one Accumulator per site of PRODUCTS, in that order
    pv_into_o          P V accumulates into alpha O (site O rounds the result); else PV is an event of its own
    normalise_first    P is divided by the row sum before P V (unfused attention); needs one key tile
    row_sum_of         the operand of the row sum: Site.EXP or Site.P
    delta_from         the operands of delta
    stabiliser         the shifted maximum, or None
    exp                how exp is computed, forward and backward
    key_order          the order of the key tiles in the forward

    Raises ValueError for missing sites or operands that are not among these.
    """

    name: str
    roundings: tuple[Rounding, ...]
    accumulators: tuple[Accumulator, ...]
    pv_into_o: bool = False
    normalise_first: bool = False
    row_sum_of: Site = Site.EXP
    delta_from: DeltaFrom = DeltaFrom.OUT
    stabiliser: Stabiliser | None = None
    exp: Exponential = Exponential.CORRECT
    key_order: KeyOrder = KeyOrder.ASCENDING

    def __post_init__(self) -> None:
        if len(self.roundings) != len(Site):
            raise ValueError(f"roundings: {len(self.roundings)} given, a plan names all {len(Site)} sites")
        if len(self.accumulators) != len(PRODUCTS):
            raise ValueError(f"accumulators: {len(self.accumulators)} given, a plan names all {len(PRODUCTS)} products")
        if self.row_sum_of not in (Site.EXP, Site.P):
            raise ValueError(f"row_sum_of={self.row_sum_of}: the row sum adds EXP or P")

    @staticmethod
    def preset(name: str) -> "Plan":
        """A published condition by name: see `attention.presets`. Raises ValueError with the nearest name."""
        from attention.presets import preset

        return preset(name)

    def __getitem__(self, site: Site) -> Rounding:
        return self.roundings[_ORDINAL[site]]

    def accumulator(self, site: Site) -> Accumulator:
        """How the sum of products at a site is added up."""
        return self.accumulators[PRODUCTS.index(site)]

    def at(
        self,
        site: Site | str,
        format: str | Rounding,
        mode: str | RoundingMode | None = None,
        *,
        overflow: str | None = None,
        seed: int | None = None,
    ) -> "Plan":
        """The plan with one site rounded otherwise: plan.at(Site.O, "bf16", mode="stochastic")."""
        site = site_named(site)
        new = list(self.roundings)
        new[_ORDINAL[site]] = rounding(format, mode, overflow=overflow, seed=seed)
        return replace(self, name=_edited(self.name), roundings=tuple(new))

    def adding(self, site: Site | str, accumulator: Accumulator) -> "Plan":
        """The plan with one sum of products added up otherwise."""
        site = site_named(site)
        if site not in PRODUCTS:
            raise ValueError(f"site={site}: not a sum of products; those are {' '.join(PRODUCTS)}")
        new = list(self.accumulators)
        new[PRODUCTS.index(site)] = accumulator
        return replace(self, name=_edited(self.name), accumulators=tuple(new))

    @property
    def has_wide_operands(self) -> bool:
        """Whether some product may be inexact in binary64, so that a fused one would differ."""
        steps = [a.step for a in self.accumulators]
        return any(r.format.precision > 26 for r in (*self.roundings, *steps))

    @property
    def is_reproducible(self) -> bool:
        """False if an accumulator is native: the device's own order of addition."""
        return all(a.order != "native" for a in self.accumulators)

    def describe(self) -> dict[str, object]:
        """The plan as plain data, for JSON."""
        return {
            "name": self.name,
            "roundings": {str(s): str(self[s]) for s in Site},
            "accumulators": {str(s): str(self.accumulator(s)) for s in PRODUCTS},
            "pv_into_o": self.pv_into_o,
            "normalise_first": self.normalise_first,
            "row_sum_of": str(self.row_sum_of),
            "delta_from": str(self.delta_from),
            "stabiliser": None if self.stabiliser is None else {"beta": self.stabiliser.beta, "window": self.stabiliser.window},
            "exp": str(self.exp),
            "key_order": str(self.key_order),
        }


_ORDINAL = {site: i for i, site in enumerate(Site)}


def ordinal(site: Site) -> int:
    """The position of a site in Site: its number in random streams."""
    return _ORDINAL[site]


def site_named(name: Site | str) -> Site:
    """The site of that name, in any case. Raises ValueError with the nearest name."""
    try:
        return Site[str(name).upper()]
    except KeyError:
        raise ValueError(unknown("site", name, Site)) from None


def _edited(name: str) -> str:
    return name if name.endswith("*") else f"{name}*"
