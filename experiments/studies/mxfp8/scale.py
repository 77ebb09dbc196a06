"""What `roundscope reproduce mxfp8` trains: --quick for two cores, full for a GPU."""

from dataclasses import dataclass

from roundscope.experiments.train.config import Config
from roundscope.experiments.train.student.config import Config as Proxy

# attention stays FP32 (the paper keeps it in BF16 or more); products in FP32 where an arm does not say otherwise
GPT = {"plan": "jax", "matmul": "fp32", "data": "stdlib"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A GPT and a proxy, each at some peak rates; all arms of a model see the same batches of a seed.

    looks   steps of the BF16 runs at which operands are audited, in parts of the run
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
    rates=(3e-3, 1e-2), seeds=tuple(range(5)),
    proxy=Proxy(depth=2, width=64, batch=64, steps=300, warmup=50, phi="swiglu", measure_every=50),
    proxy_rates=(0.03, 0.1), proxy_seeds=tuple(range(10)),
)  # fmt: skip
FULL = Scale(
    name="full",
    gpt=Config(layers=4, heads=4, width=128, context=128, batch=16, steps=2000, warmup=100, **GPT),  # type: ignore[arg-type]
    rates=(1e-3, 1e-2), seeds=tuple(range(5)),
    proxy=Proxy(depth=4, width=128, batch=256, steps=2000, warmup=100, phi="swiglu", measure_every=100),
    proxy_rates=(6e-4, 1e-2, 5e-2), proxy_seeds=tuple(range(10)),
)  # fmt: skip
