"""What `roundscope reproduce su` trains: --quick for two cores, full for a GPU."""

from dataclasses import dataclass, replace

from roundscope.experiments.train.student.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A student, and the rates at which it runs, ascending: the lowest trains, the highest fails in FP32 too."""

    name: str
    config: Config
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Which students, formats and seeds.

    mx       the format whose divergence the interventions avert; it diverges at `rate` of `base`, FP32 does not
    base     the first setting; others differ from it in one thing
    formats  of the base; in the other settings FP32 and `few` run
    seeds    of all
    parted   seeds of the interventions: the first so many that diverge
    leads    steps before a run's divergence at which its interventions part from it: well before and shortly before
    shams    runs per seed and lead whose arithmetic differs in one gradient of one step only
    looks    steps between two measurements of epsilon
    paper    the published setting as (config, formats, seeds), a run a launch; None: not run
    arms     at most so many in a launch
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
    paper: tuple[Config, tuple[str, ...], tuple[int, ...]] | None = None
    arms: int = 64

    @property
    def base(self) -> Setting:
        """The setting of everything but the effects."""
        return self.settings[0]


def varied(base: Setting, **changes: tuple[dict[str, object], tuple[float, ...]]) -> tuple[Setting, ...]:
    """The base and settings of one change each, by name."""
    return base, *(
        Setting(name=name.replace("_", " "), config=replace(base.config, **own), rates=rates)  # type: ignore[arg-type]
        for name, (own, rates) in changes.items()
    )


SMALL = Config(depth=4, width=64, batch=64, steps=650, lr=0.1, min_lr=0.1, warmup=100, phi="swiglu")
QUICK = Scale(
    name="quick", mx="mxfp4", rate=0.1, formats=("fp32", "bf16", "mxfp8_e4m3", "mxfp4"), few=("fp32", "mxfp4"),
    settings=varied(Setting(name="base", config=SMALL, rates=(0.1,)), no_LN=({"norm": False}, (0.0175,))),
    seeds=tuple(range(6)), parted=3, leads=(200,), shams=2, looks=200,
)  # fmt: skip
ALL = ("fp32", "bf16", "mxfp8_e4m3", "mxfp8_e5m2", "e4m3 / e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxfp4:rceil")
FULL = Scale(
    name="full", mx="mxfp4", rate=0.1, formats=ALL, few=("fp32", "mxfp8_e4m3", "mxfp4"),
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
    seeds=tuple(range(12)), parted=8, leads=(400, 200, 50), shams=6, looks=25,
    paper=(Config(), ("fp32", "mxfp8_e4m3"), (0, 1)), arms=144,
)  # fmt: skip
