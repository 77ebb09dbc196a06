"""The recipes and their cures as words of plans, all changes of fa2-bf16.

A recipe says in which format Q, K, V and P enter the forward, and dS the backward. They are read
from the papers named; none was compared with its code. Without a cure the backward is that which
arXiv 2603.00040 calls drop-in: it recomputes P from q, k and v in BF16, which the forward had in
few bits, and delta is rowsum(dO O) of the forward's output. Cures change that:

* matched: the backward reads the numbers that the forward read, and P of dV has P's format;
* high-precision dS: dS in BF16, as fa2-bf16 has it;
* centered: delta = rowsum(P dP) / rowsum(P), so that rows of dS sum to zero before its rounding;
* O of unrounded P: delta = rowsum(P dP), which is rowsum(dO O') with O' = P V of a P that was not
  cast, the second rule of arXiv 2603.00040;
* L of the backward: an unmatched backward takes L from its own scores, so its P sums to 1;
* L of rounded P: the forward adds up the P that it casts for P V, which then sums to 1, and the P
  of a matched backward, which is not cast before dS, does not;
* two shams of the centered delta (`attention.plans.choices.DeltaFrom`).

A scale of a whole tensor is here one for each head. FP8 has P as it is, without a factor.
"""

from dataclasses import dataclass

TILE = 32  # tokens and features of the tiles that have a scale of their own, in 8 bits
WHOLE = 4096  # beyond every size: one scale for a head
UNMATCHED = "inputs_again=true QB=bf16 KB=bf16 VB=bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One way to compute attention in few bits.

    title    for readers
    source   the paper, as we read it
    forward  words of Q, K, V and P, and what is done to them before
    ds       the rounding of dS
    p        the rounding of P in dV where the backward is matched; None for that of BF16
    matched  further words where the backward is matched; only of recipes that have them
    """

    title: str
    source: str
    forward: str
    ds: str
    p: str | None = None
    matched: str = ""


def _all(element: str, p: str | None = None) -> str:
    return f"Q={element} K={element} V={element} P={p or element}"


E4M3_HEAD, E4M3_TILE = f"e4m3fn[{WHOLE}x{WHOLE}]", f"e4m3fn[{TILE}x{TILE}]"
INT8_TILE = f"int8[{TILE}x{TILE}]"
INT8 = f"Q={INT8_TILE} K={INT8_TILE} V={INT8_TILE} P=int8[64]"
SAGE = f"inputs_again=true QB={INT8_TILE} KB={INT8_TILE} VB=bf16 do_apart=true DOV={INT8_TILE}"
INT4 = "int4[16]"  # with a binary32 scale: E4M3 alone has no numbers as small as scales of dS
UFP4 = "UFP4 (arXiv 2606.20381), whose formats are of linear layers"
QAT = "Attn-QAT (arXiv 2603.00040)"
RECIPES = {
    "nvfp4": Recipe(title="NVFP4", source=QAT, forward=_all("nvfp4"), ds="nvfp4", p="nvfp4"),
    "int8": Recipe(
        title="INT8, smoothed K",
        source="SageBwd (arXiv 2603.02170)",
        forward=f"smoothed_keys=true {INT8}",
        ds=INT8_TILE,
        p=INT8_TILE,
        matched=SAGE,
    ),
    "mxfp4": Recipe(
        title="MXFP4", source=f"{QAT}, in MXFP4", forward=_all("mxfp4"), ds="mxfp4", p="mxfp4"
    ),
    "int4": Recipe(title="INT4 or E1M2", source=UFP4, forward=_all(INT4), ds=INT4, p=INT4),
    "fp8-block": Recipe(
        title="FP8, a scale for 32 tokens",
        source="FlashAttention-3 (arXiv 2407.08608), block quantization",
        forward=_all(E4M3_TILE, "e4m3fn"),
        ds=E4M3_TILE,
        p="e4m3fn",
    ),
    "nvfp4-turned": Recipe(
        title="NVFP4, Hadamard",
        source=f"{QAT}; q and k turned",
        forward=f"hadamard=true {_all('nvfp4')}",
        ds="nvfp4",
        p="nvfp4",
    ),
    "int4-turned": Recipe(
        title="INT4 or E1M2, Hadamard",
        source=f"{UFP4}; q and k turned",
        forward=f"hadamard=true {_all(INT4)}",
        ds=INT4,
        p=INT4,
    ),
    "nvfp4-random": Recipe(
        title="NVFP4, dS at random",
        source=f"{QAT}; dS rounded stochastically",
        forward=_all("nvfp4"),
        ds="nvfp4:stochastic",
        p="nvfp4",
    ),
    "fp8-head": Recipe(
        title="FP8, a scale for each head",
        source="FlashAttention-3 (arXiv 2407.08608)",
        forward=_all(E4M3_HEAD, "e4m3fn"),
        ds=E4M3_HEAD,
        p="e4m3fn",
    ),
    "int8-plain": Recipe(
        title="INT8, K as it is",
        source="SageBwd (arXiv 2603.02170) without its smoothing",
        forward=INT8,
        ds=INT8_TILE,
        p=INT8_TILE,
        matched=SAGE,
    ),
}
PLAIN = ("nvfp4", "int8", "mxfp4", "int4", "fp8-block")  # one recipe of each format
BF16, FP32 = "bf16", "fp32"  # the references: fa2-bf16 as it is, and everything in binary32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """A change of a recipe's backward.

    title    for readers
    matched  whether the backward reads what the forward read
    high     whether dS is in BF16
    delta    the word of delta_from
    own      whether an unmatched backward normalizes P by itself
    rounded  whether the row sums are those of P after its cast
    """

    title: str
    matched: bool = False
    high: bool = False
    delta: str = "OUT"
    own: bool = False
    rounded: bool = False


NONE, CENTRED, MATCHED, HIGH = "none", "centered", "matched", "high-ds"
BOTH, BOTH_OF_P = "matched+high-ds", "matched+high-ds+p-dp"
CENTRED_HIGH, CENTRED_MATCHED = "centered+high-ds", "centered+matched"
OWN, OWN_HIGH = "centered+own-l", "centered+own-l+high-ds"
ROWS, SIGNS = "sham-rows", "sham-signs"
ROWS_MATCHED, SIGNS_MATCHED = "sham-rows+matched", "sham-signs+matched"
SHAMS, SHAMS_MATCHED = (ROWS, SIGNS), (ROWS_MATCHED, SIGNS_MATCHED)
OF_ROUNDED = "matched+rounded-l"  # measured without training alone
CURES = {
    NONE: Cure(title="none"),
    CENTRED: Cure(title="delta centered", delta="CENTRED"),
    ROWS: Cure(title="sham: corrections of other rows", delta="OTHER_ROWS"),
    SIGNS: Cure(title="sham: corrections with random signs", delta="RANDOM_SIGNS"),
    MATCHED: Cure(title="matched", matched=True),
    HIGH: Cure(title="high-precision dS", high=True),
    CENTRED_MATCHED: Cure(title="centered, matched", matched=True, delta="CENTRED"),
    CENTRED_HIGH: Cure(title="centered, high-precision dS", high=True, delta="CENTRED"),
    ROWS_MATCHED: Cure(
        title="sham: corrections of other rows, matched", matched=True, delta="OTHER_ROWS"
    ),
    SIGNS_MATCHED: Cure(
        title="sham: corrections with random signs, matched", matched=True, delta="RANDOM_SIGNS"
    ),
    OWN: Cure(title="centered, L of the backward", delta="CENTRED", own=True),
    OWN_HIGH: Cure(
        title="centered, L of the backward, high-precision dS",
        high=True,
        delta="CENTRED",
        own=True,
    ),
    OF_ROUNDED: Cure(title="matched, L of rounded P", matched=True, rounded=True),
    BOTH: Cure(title="matched, high-precision dS", matched=True, high=True),
    BOTH_OF_P: Cure(
        title="matched, high-precision dS, O of unrounded P", matched=True, high=True, delta="P_DP"
    ),
}


def words(recipe: str, cure: str) -> str:
    """Return the changes of fa2-bf16 that a recipe with a cure is."""
    own = CURES[cure]
    delta = [] if own.delta == "OUT" else [f"delta_from={own.delta}"]
    if recipe == FP32:
        return "plan=fp32"
    if recipe == BF16:
        return " ".join(delta)
    r = RECIPES[recipe]
    backward = [r.matched, f"P_B={r.p}" if r.p else ""] if own.matched else [UNMATCHED]
    backward += ["lse_again=true"] if own.own else []
    sums = "row_sum_of=P" if own.rounded else ""
    parts = [r.forward, sums, *backward, *([] if own.high else [f"DS={r.ds}"]), *delta]
    return " ".join(part for part in parts if part)


def pairs() -> list[tuple[str, str]]:
    """Return the recipes and cures of the study, references first.

    Where dS is rounded at random, only cures that keep its format differ from the recipe without.
    INT8 without smoothing is a control, with the cures that change one thing.
    """
    single = (NONE, CENTRED, *SHAMS, MATCHED, HIGH)
    own = [
        (recipe, cure)
        for recipe in RECIPES
        for cure, how in CURES.items()
        if not (recipe == "nvfp4-random" and how.high)
        and not (recipe == "int8-plain" and cure not in single)
    ]
    return [(BF16, NONE), (BF16, CENTRED), (FP32, NONE), *own]
