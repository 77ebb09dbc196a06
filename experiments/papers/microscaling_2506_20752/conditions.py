"""What `roundscope reproduce su` trains: --quick for two cores and full for a GPU.

Formats are trained from the first step on at every rate. A run that diverges also has
interventions, controls and shams.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from roundscope.experiments.train.student.arms import (
    EXACT,
    UNCHANGED,
    Arm,
    Changes,
    Config,
    Matrix,
    interventions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A student, and the rates at which it runs, ascending.

    The lowest rate trains, the highest fails in FP32 too.
    """

    name: str
    config: Config
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which students, formats and seeds are trained.

    mx       the format whose divergence the interventions avert; it diverges at `rate` of `base`,
             where FP32 does not
    settings the base first; others differ from it in one thing
    formats  the formats of the base
    few      the formats, beside FP32, of the other settings
    seeds    all seeds
    parted   the number of seeds that get interventions: the first ones that diverge
    leads    steps before a run's divergence at which its interventions leave it: well before and
             shortly before
    shams    runs per seed and lead whose arithmetic differs in one gradient of one step only
    looks    steps between two measurements of epsilon
    paper    (the published setting, formats, seeds), one run a launch; None: not run
    arms     the largest number of arms in a launch
    """

    name: str
    mx: str
    rate: float
    settings: tuple[Setting, ...]
    formats: tuple[str, ...]
    few: tuple[str, ...]
    seeds: tuple[int, ...]
    parted: int
    leads: tuple[int, ...]
    shams: int
    looks: int
    paper: tuple[Setting, tuple[str, ...], tuple[int, ...]] | None = None
    arms: int = 64

    @property
    def base(self) -> Setting:
        """The setting of everything but the effects."""
        return self.settings[0]

    @property
    def at_rate(self) -> Setting:
        """The base at the rate of the interventions alone."""
        return replace(self.base, rates=(self.rate,))

    @property
    def few_seeds(self) -> tuple[int, ...]:
        """The seeds that have measures of epsilon, and LN's changes from the first step on."""
        return self.seeds[: self.parted]


def varied(
    base: Setting, **changes: tuple[dict[str, object], tuple[float, ...]]
) -> tuple[Setting, ...]:
    """Return the base and settings that differ from it in one change each, by name."""
    return base, *(
        Setting(name=name.replace("_", " "), config=replace(base.config, **own), rates=rates)  # type: ignore[arg-type]
        for name, (own, rates) in changes.items()
    )


SMALL = Config(depth=4, width=64, batch=64, steps=650, lr=0.1, min_lr=0.1, warmup=100, phi="swiglu")
QUICK = Scale(
    name="quick",
    mx="mxfp4",
    rate=0.1,
    formats=("fp32", "bf16", "mxfp8_e4m3", "mxfp4"),
    few=("fp32", "mxfp4"),
    settings=varied(
        Setting(name="base", config=SMALL, rates=(0.1,)), no_LN=({"norm": False}, (0.0175,))
    ),
    seeds=tuple(range(6)),
    parted=3,
    leads=(200,),
    shams=2,
    looks=200,
)
ALL = (
    "fp32",
    "bf16",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "e4m3 / e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "mxfp4:rceil",
)
PUBLISHED = Setting(name="paper", config=Config(), rates=(Config().lr,))
FULL = Scale(
    name="full",
    mx="mxfp4",
    rate=0.1,
    formats=ALL,
    few=("fp32", "mxfp8_e4m3", "mxfp4"),
    settings=varied(
        Setting(name="base", config=SMALL, rates=(0.085, 0.09, 0.095, 0.1, 0.105, 0.11)),
        no_LN=({"norm": False}, (0.008, 0.01, 0.0125, 0.015, 0.0175, 0.02)),
        gelu=({"phi": "gelu"}, (0.05, 0.06, 0.07, 0.08, 0.09, 0.1)),
        relu=({"phi": "relu"}, (0.05, 0.06, 0.07, 0.08, 0.09, 0.1)),
        width_128=({"width": 128}, (0.07, 0.08, 0.09, 0.1, 0.11, 0.12)),
        longer=({"steps": 1500}, (0.08, 0.09, 0.1)),
        depth_2=({"depth": 2}, (0.1, 0.12, 0.14, 0.16, 0.18, 0.2)),
        depth_8=({"depth": 8}, (0.04, 0.05, 0.06, 0.07, 0.08, 0.09)),
    ),
    seeds=tuple(range(12)),
    parted=8,
    leads=(400, 200, 50),
    shams=6,
    looks=25,
    paper=(PUBLISHED, ("fp32", "mxfp8_e4m3"), (0, 1)),
    arms=144,
)

MIXED = "e4m3 / e5m2"
WORDS = {MIXED: "-> mx=mxfp8_e4m3; site=backward -> mxfp8_e5m2", "bf16": "-> bf16"}
SHAM = "sham"
FROZEN = "beta frozen"
HYBRID, FORWARD = "activations BF16, LN in FP32", "backward BF16"
LN = {
    FROZEN: "-> beta=0",
    "LN in FP32": "site=norm -> fp32",
    f"LN in FP32, {FROZEN}": "site=norm -> fp32; -> beta=0",
}
ADDED = LN | {
    HYBRID: "site=activations -> bf16; site=norm -> fp32",
    FORWARD: "site=backward -> bf16",
}
"""From the first step on: LN's precision and its shift, each alone and both (frozen later, the
shift keeps Adam's momentum); hybrids.
"""
PAPER = {  # the paper's arm -> ours
    "no_mx_inject": "all FP32",
    "bump_exp": "bump",
    "no_ln_q": "LN in FP32",
    "bf16_act": "activations BF16 forward",
    "bf16_act_all": "activations BF16",
    "no_bp_quant": "backward BF16",
    "no_gelu_quant": "phi in FP32",
    "bf16_weight": "weights BF16",
}
OURS = {"gamma in MX": "site=GAMMA -> {mx}"}


def changes_of(format: str) -> Changes:
    """Return what trains in a format from the first step on, alone or with one of ADDED."""
    if format == EXACT:
        return ()
    name, _, more = format.partition(", ")
    texts = [WORDS.get(name, f"-> mx={name}"), *([ADDED[more]] if more else [])]
    return ((0, "; ".join(texts)),)


def changed(mx: str) -> tuple[str, ...]:
    """Return the format with every one of ADDED."""
    return tuple(f"{mx}, {name}" for name in ADDED)


def trained(setting: Setting, formats: Sequence[str], seeds: Sequence[int]) -> list[Arm]:
    """Return the arms of formats x rates x seeds."""
    return [
        Arm(name=f, changes=changes_of(f), lr=rate, seed=seed)
        for f in formats
        for rate in setting.rates
        for seed in seeds
    ]


def base_arm(scale: Scale, seed: int) -> Arm:
    """Return the run that the interventions leave."""
    return Arm(name=UNCHANGED, changes=changes_of(scale.mx), lr=scale.rate, seed=seed)


def parted(scale: Scale, seed: int, first: int) -> list[Arm]:
    """Return all arms that leave the base run of a seed at step `first`.

    They are the unchanged arm, then shams, then changes that stay. The unchanged one is given its
    format again: it is a run of its own, in another executable than the base's, and must not
    replace it.
    """
    base = base_arm(scale, seed)
    texts = {name: text for name, text in interventions(scale.mx).items() if FROZEN not in name}
    texts |= {name: text.format(mx=scale.mx) for name, text in OURS.items()}
    texts[UNCHANGED] = "; ".join(text for _, text in base.changes)

    def arm(name: str) -> Arm:
        changes = [(first, t.strip()) for t in texts[name].split(";") if t.strip()]
        return replace(base, name=name, changes=(*base.changes, *changes))

    others = [arm(name) for name in texts if name != UNCHANGED]
    return [arm(UNCHANGED), *shams(scale, base, first), *others]


def shams(scale: Scale, base: Arm, first: int) -> list[Arm]:
    """Return runs in which one matrix's gradient is half an ulp off in step `first` alone."""
    places = product((Matrix.UP, Matrix.DOWN), range(scale.base.config.depth))
    wheres = [f"layer={layer} matrix={matrix} site=DW" for matrix, layer in places]
    return [
        replace(
            base,
            name=f"{SHAM} {k}",
            changes=(*base.changes, (first, f"{where} -> fp32"), (first + 1, f"{where} -> bf16")),
        )
        for k, where in enumerate(wheres[: scale.shams])
    ]


def config_of(setting: Setting, rate: float | None = None) -> Config:
    """Return the setting's config, with its optimizer at a constant rate."""
    lr = setting.config.lr if rate is None else rate
    return replace(setting.config, lr=lr, min_lr=lr)
