"""Who runs: formats from the first step at every rate, and the interventions, controls and shams of a run that diverges."""

from collections.abc import Sequence
from dataclasses import replace

from roundscope.experiments.studies.microscaling.scale import Scale, Setting
from roundscope.experiments.studies.proxy.studies import UNCHANGED, interventions
from roundscope.experiments.train.student.arms import EXACT, Arm, Changes
from roundscope.experiments.train.student.config import Config
from roundscope.experiments.train.student.sites import Matrix

MIXED = "e4m3 / e5m2"
WORDS = {MIXED: "-> mx=mxfp8_e4m3; site=backward -> mxfp8_e5m2", "bf16": "-> bf16"}
SHAM = "sham"
FROZEN = "beta frozen"
HYBRID, FORWARD = "activations BF16, LN in FP32", "backward BF16"
LN = {FROZEN: "-> beta=0", "LN in FP32": "site=norm -> fp32", f"LN in FP32, {FROZEN}": "site=norm -> fp32; -> beta=0"}
ADDED = LN | {HYBRID: "site=activations -> bf16; site=norm -> fp32", FORWARD: "site=backward -> bf16"}
"""From the first step on: LN's precision and its shift, each alone and both (frozen later, the shift keeps Adam's momentum); hybrids."""
PAPER = {  # the paper's arm -> ours
    "no_mx_inject": "all FP32", "bump_exp": "bump", "no_ln_q": "LN in FP32", "bf16_act": "activations BF16 forward",
    "bf16_act_all": "activations BF16", "no_bp_quant": "backward BF16", "no_gelu_quant": "phi in FP32", "bf16_weight": "weights BF16",
}  # fmt: skip
OURS = {"gamma in MX": "site=GAMMA -> {mx}"}


def changes_of(format: str) -> Changes:
    """What trains in a format from the first step on: a block format with its rule, bf16, fp32 or the mixture; or one and one of ADDED."""
    name, _, more = format.partition(", ")
    return () if format == EXACT else ((0, "; ".join([WORDS.get(name, f"-> mx={name}"), *([ADDED[more]] if more else [])])),)


def changed(mx: str) -> tuple[str, ...]:
    """The format with every one of ADDED."""
    return tuple(f"{mx}, {name}" for name in ADDED)


def trained(setting: Setting, formats: Sequence[str], seeds: Sequence[int]) -> list[Arm]:
    """Formats x rates x seeds."""
    return [Arm(name=f, changes=changes_of(f), lr=rate, seed=seed) for f in formats for rate in setting.rates for seed in seeds]


def base_arm(scale: Scale, seed: int) -> Arm:
    """The run that the interventions part from."""
    return Arm(name=UNCHANGED, changes=changes_of(scale.mx), lr=scale.rate, seed=seed)


def parted(scale: Scale, seed: int, first: int) -> list[Arm]:
    """All arms that leave the base run of a seed at step `first`: unchanged, then shams, then changes that stay.

    The unchanged one is told its format again: it is a run of its own, in another executable than the base's, and must not replace it.
    """
    base = base_arm(scale, seed)
    again = tuple((first, text) for _, text in base.changes)
    more = {name: text for name, text in interventions(scale.mx).items() if FROZEN not in name}
    more |= {name: text.format(mx=scale.mx) for name, text in OURS.items()}
    kept = [replace(base, name=name, changes=(*base.changes, *((first, t.strip()) for t in text.split(";") if t.strip())))
            for name, text in more.items()]  # fmt: skip
    return [replace(kept[0], changes=(*base.changes, *again)), *shams(scale, base, first), *kept[1:]]


def shams(scale: Scale, base: Arm, first: int) -> list[Arm]:
    """Runs in which one matrix's gradient is not rounded to BF16, in step `first` alone: a change of half an ulp that means nothing."""
    places = [(layer, matrix) for matrix in (Matrix.UP, Matrix.DOWN) for layer in range(scale.base.config.depth)]
    return [
        replace(base, name=f"{SHAM} {k}", changes=(*base.changes, (first, f"{where} -> fp32"), (first + 1, f"{where} -> bf16")))
        for k, (layer, matrix) in enumerate(places[: scale.shams])
        for where in [f"layer={layer} matrix={matrix} site=DW"]
    ]


def config_of(setting: Setting, rate: float | None = None) -> Config:
    """The setting's config, its optimiser at a constant rate."""
    lr = setting.config.lr if rate is None else rate
    return replace(setting.config, lr=lr, min_lr=lr)
