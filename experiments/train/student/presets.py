"""Changes that several studies make to the student: formats, and interventions."""

from roundscope.emu.blocks.format import ScaleRule, block_format

UNCHANGED = "as it was"


def formats() -> dict[str, str]:
    """Return MX formats for all six operands, one mixture of two, and BF16, as changes by name."""
    return {
        "bf16": "-> bf16",
        "e4m3": "-> mx=mxfp8_e4m3",
        "e5m2": "-> mx=mxfp8_e5m2",
        "e4m3 / e5m2": "-> mx=mxfp8_e4m3; site=backward -> mxfp8_e5m2",
        "e2m3": "-> mx=mxfp6_e2m3",
        "e3m2": "-> mx=mxfp6_e3m2",
        "fp4": "-> mx=mxfp4",
    }


def interventions(mx: str) -> dict[str, str]:
    """Return the arms of figure 4 of arXiv 2506.20752, and some that separate their changes."""
    e = block_format(mx).element.format
    bump = {"bump": f"site=operands -> {mx}:bump"} if e.max_finite == 1.75 * 2.0**e.emax else {}
    return {
        UNCHANGED: "",
        "all FP32": "-> fp32",
        **bump,
        "RCEIL": f"site=operands -> {mx}:{ScaleRule.RCEIL}",
        "LN in FP32": "site=norm -> fp32",
        "beta frozen": "-> beta=0",
        "LN in FP32, beta frozen": "site=norm -> fp32 beta=0",
        "activations BF16 forward": "site=X -> bf16",
        "activations BF16": "site=activations -> bf16",
        "backward BF16": "site=backward -> bf16",
        "phi in FP32": "site=phi -> fp32",
        "weights BF16": "site=weights -> bf16",
        "activations BF16, LN in FP32": "site=activations -> bf16; site=norm -> fp32",
        "stochastic": f"site=operands -> {mx}:stochastic",
        "ties to away": f"site=operands -> {mx}:ties-to-away",
    }
