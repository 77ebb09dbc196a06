"""What `roundscope reproduce mxfp8` trains: --quick for two cores and full for a GPU.

The arms of both models have names and changes, in the words of the trainer and of the student,
launch by launch.
"""

from dataclasses import dataclass, replace

from roundscope.experiments.train.config import Config, unusual
from roundscope.experiments.train.groups import numbers
from roundscope.experiments.train.settings import Arm as TrainArm
from roundscope.experiments.train.settings import Settings
from roundscope.experiments.train.student.arms import Arm, groups
from roundscope.experiments.train.student.arms import Config as Proxy
from roundscope.tools.results.run import key_of

# attention stays FP32 (the paper keeps it in BF16 or more); products in FP32 where an arm does not
# say otherwise
GPT = {"plan": "jax", "matmul": "fp32", "data": "stdlib"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A GPT and a proxy, each at some peak rates.

    All arms of a model see the same batches of a seed.

    looks   steps of the BF16 runs at which operands are audited, as parts of the run
    """

    name: str
    gpt: Config
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    proxy: Proxy
    proxy_rates: tuple[float, ...]
    proxy_seeds: tuple[int, ...]
    looks: tuple[float, ...] = (0.0, 0.1, 0.5, 0.95)

    @property
    def audited(self) -> tuple[int, ...]:
        """The steps of `looks`."""
        return tuple(int(part * self.gpt.steps) for part in self.looks)


QUICK = Scale(
    name="quick",
    gpt=Config(layers=3, heads=2, width=32, context=32, batch=8, steps=300, warmup=50, **GPT),  # type: ignore[arg-type]
    rates=(3e-3, 1e-2),
    seeds=tuple(range(5)),
    proxy=Proxy(depth=2, width=64, batch=64, steps=300, warmup=50, phi="swiglu", measure_every=50),
    proxy_rates=(0.03, 0.1),
    proxy_seeds=tuple(range(10)),
)
FULL = Scale(
    name="full",
    gpt=Config(layers=4, heads=4, width=128, context=128, batch=16, steps=2000, warmup=100, **GPT),  # type: ignore[arg-type]
    rates=(1e-3, 1e-2),
    seeds=tuple(range(5)),
    proxy=Proxy(
        depth=4, width=128, batch=256, steps=2000, warmup=100, phi="swiglu", measure_every=100
    ),
    proxy_rates=(6e-4, 1e-2, 5e-2),
    proxy_seeds=tuple(range(10)),
)

FP32, BF16, FLOOR, RCEIL = "fp32", "bf16", "E4M3 floor", "E4M3 RCEIL"
FLOOR_SR, RCEIL_SR = "E4M3 floor, stochastic", "E4M3 RCEIL, stochastic"
E5M2 = {
    "weights": "W in E5M2",
    "activations": "A in E5M2",
    "gradients": "G in E5M2",
    "operands": "W, A, G in E5M2",
}
FIRST, LAST, ENDS = "first layer BF16", "last layer BF16", "first and last BF16"
RECIPE = "-> mx=mxfp8_e4m3:rceil"
PROXY = {
    FP32: "-> fp32",
    BF16: "-> bf16",
    FLOOR: "-> mx=mxfp8_e4m3",
    RCEIL: RECIPE,
    FLOOR_SR: "-> mx=mxfp8_e4m3:stochastic",
    RCEIL_SR: "-> mx=mxfp8_e4m3:rceil:stochastic",
}
WORDS = {  # for the report
    FP32: "no rounding",
    BF16: (
        "every operand and result of a linear layer, LayerNorm and the activation function in BF16"
    ),
    FLOOR: "operands in MXFP8 E4M3, scale by the floor of OCP MX 1.0; the rest as BF16",
    RCEIL: "the same with the scale rounded up, the paper's recipe",
    FLOOR_SR: "floor, elements rounded stochastically",
    RCEIL_SR: "RCEIL, elements rounded stochastically",
    **{name: f"RCEIL; {what} in E5M2, the rest E4M3" for what, name in E5M2.items()},
    FIRST: "RCEIL; the first layer's operands stay BF16",
    LAST: "the last layer's",
    ENDS: "both",
}


def gpt_arms(config: Config) -> dict[str, str]:
    """Return name -> changes; one executable runs them all."""
    last = config.layers - 1
    kept = {FIRST: "0", LAST: f"{last}", ENDS: f"0,{last}"}
    return {
        FP32: "matrix=all -> fp32",
        BF16: "matrix=all -> bf16",
        FLOOR: "-> mx=mxfp8_e4m3",
        RCEIL: RECIPE,
        **{name: f"{RECIPE}; site={what} -> mxfp8_e5m2:rceil" for what, name in E5M2.items()},
        **{name: f"{RECIPE}; layer={layers} matrix=all -> bf16" for name, layers in kept.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training of the GPT: an arm, its changes, its peak rate, and a seed.

    The seed is that of weights and batches.
    """

    name: str
    changes: str
    lr: float
    seed: int


def key(scale: Scale, t: Trial) -> str:
    """Return the key of a run: of all that decides it but versions, device and the arm's name."""
    return key_of(unusual(scale.gpt), t.changes, t.lr, t.seed, scale.audited)


def trials(scale: Scale) -> list[list[Trial]]:
    """Return all trials of the GPT by launch: one for each rate."""
    return [
        [
            Trial(name=n, changes=text, lr=lr, seed=s)
            for n, text in gpt_arms(scale.gpt).items()
            for s in scale.seeds
        ]
        for lr in scale.rates
    ]


def settings_of(scale: Scale, own: list[Trial]) -> Settings:
    """Return trials as arms of one run."""
    arms = tuple(
        TrainArm(
            name=f"{t.name}/{t.seed}", changes=tuple(t.changes.split("; ")), lr=t.lr, seed=t.seed
        )
        for t in own
    )
    config = replace(scale.gpt, lr=1.0, min_lr=0.1)  # the cosine ends at a tenth of an arm's peak
    settings = Settings(config=config, arms=arms)
    assert len(numbers(settings)) == 1
    return settings


def proxy_arms(scale: Scale) -> list[list[Arm]]:
    """Return all arms of the proxy by launch: one for each rate and executable."""
    config = scale.proxy
    own = [
        [
            Arm(name=n, changes=((0, text),), lr=lr, seed=s)
            for n, text in PROXY.items()
            for s in scale.proxy_seeds
        ]
        for lr in scale.proxy_rates
    ]
    return [group for arms in own for group in groups(config, arms)]
