"""`Case`: a way to make the authors' algorithm fail in a small model.

A case is a list of changes to the preset qiu-yao.
"""

from dataclasses import dataclass

BEFORE, AFTER = "PV,AO,O", "OUT"  # events of O before and after its normalization
PATH = f"{BEFORE},{AFTER}"  # the O path of the forward; the backward reads OUT
SCORES, STATS = "S,SCALED,X", "M,DM,L"
ALL = "Q,K,V,DO,S,SCALED,M,X,P,DM,L,AO,PV,O,OUT,DQ_OUT,DK_OUT,DV_OUT"  # what is BF16 in qiu-yao
PUBLISHED, AMPLIFIED, NEAREST, FEWER, OTHER_DELTA, FASTER = "N", "A", "A'", "B", "C", "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way to make the algorithm fail.

    changes     changes of the preset
    bits, mode  the rounding of the O path there
    times       the rate, as a multiple of that of the other cases
    """

    name: str
    words: str
    changes: tuple[str, ...]
    bits: int
    mode: str = "ties-to-even"
    times: float = 1.0

    @property
    def path(self) -> str:
        """The rounding of PV, AO, O and OUT."""
        return rounded(self.bits, self.mode)


def rounded(bits: int, mode: str) -> str:
    """Return a format's name: p significand bits, the leading one included, BF16's exponents."""
    return f"e8m{bits - 1}:{mode}"


def published() -> Case:
    """Return the preset qiu-yao: the released forward, run eagerly, with a backward in FP32.

    The backward of the released code is not in FP32 (docs/findings/kernels.md).
    """
    return Case(name=PUBLISHED, words="qiu-yao as it is: BF16", changes=(), bits=8)


def isolated(name: str, bits: int, mode: str) -> Case:
    """Return the paper's mechanism alone, amplified.

    Scores and statistics are FP32, and O is rounded more coarsely.
    """
    changes = (f"site={SCORES},{STATS} -> fp32", f"site={PATH} -> {rounded(bits, mode)}")
    return Case(
        name=name,
        words=f"scores FP32, O {MODES[mode]}, p\xa0=\xa0{bits}",
        changes=changes,
        bits=bits,
        mode=mode,
    )


def fewer(bits: int) -> Case:
    """Return the authors' algorithm with fewer bits at every event that they keep in BF16."""
    changes = (f"site={ALL} -> {rounded(bits, 'ties-to-even')}",)
    return Case(
        name=FEWER, words=f"all BF16 events at p\xa0=\xa0{bits}", changes=changes, bits=bits
    )


def other_delta() -> Case:
    """Return BF16 with delta from rowsum(P dP), the paper's own alternative."""
    return Case(
        name=OTHER_DELTA,
        words="BF16, delta\xa0=\xa0rowsum(P\xa0dP)",
        changes=("-> delta_from=P_DP",),
        bits=8,
    )


def faster(times: float) -> Case:
    """Return the preset qiu-yao at a higher learning rate."""
    return Case(
        name=FASTER,
        words=f"qiu-yao as it is: BF16, {times:g}\xa0times the rate",
        changes=(),
        bits=8,
        times=times,
    )


MODES = {
    "toward-zero": "toward zero",
    "ties-to-even": "nearest-even",
    "ties-to-away": "ties away",
    "stochastic": "stochastic",
}
