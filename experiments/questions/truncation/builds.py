"""The builds of one kernel that differ in their casts alone, as words of the plan `aiter-ck`.

BASE casts everything toward zero, as AMD's aiter does by default on an MI300. A build here changes
the mode of all casts, or of one, or says what delta reads.
"""

BASE = "aiter-ck"
SUMS = "sum=ascending"  # in binary32: those of CDNA3 take four times as long and move no digit
NEAREST, AWAY, ZERO = "ties-to-even", "ties-to-away", "toward-zero"
MODES = {NEAREST: "to nearest", AWAY: "ties away", ZERO: "toward zero"}
CASTS = {  # the casts of the kernel, by their events; P and output are all of the forward
    "P": ("P",),
    "output": ("OUT",),
    "P and output": ("P", "OUT"),
    "P of the backward": ("P_B",),
    "dS": ("DS",),
    "gradients": ("DQ_OUT", "DK_OUT", "DV_OUT"),
}
ALL = "all casts"
CENTRED, WIDE, KEPT = "centered", "wide", "kept"
REMEDIES = {  # what is changed where all casts are toward zero
    CENTRED: "delta_from=CENTRED",
    WIDE: "delta_from=O",
    KEPT: "OUT=bf16",
}
TITLES = {
    CENTRED: "toward zero, delta centered",
    WIDE: "toward zero, delta of O before its cast",
    KEPT: "toward zero, but the output to nearest",
}


def whole(mode: str) -> str:
    """Return the words of a build with one mode at all casts."""
    return f"casts={mode}"


def alone(cast: str, mode: str) -> str:
    """Return the words of a build that is to nearest but for one cast of `CASTS`."""
    return " ".join([whole(NEAREST), *(f"{site}=bf16:{mode}" for site in CASTS[cast])])


def remedied(name: str) -> str:
    """Return the words of a build toward zero with one of `REMEDIES`."""
    return f"{whole(ZERO)} {REMEDIES[name]}"
