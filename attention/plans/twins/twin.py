"""What is said of a twin, and what the twins of fused kernels share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from roundscope.attention.plans.choices import (
    Exponential,
    GradientsApart,
    Logarithm,
    RowSum,
)
from roundscope.attention.plans.hopper import (
    HOPPER,
    octets,
    on_hopper,
)
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.presets import fa2_bf16
from roundscope.attention.sites import Site
from roundscope.emu.roundings.modes import (
    BINARY64,
)
from roundscope.emu.sums.accumulator import Accumulator

TORCH = "torch 2.11.0 (CUDA 13.0), one H200"
Tiles: TypeAlias = Callable[[int, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A real kernel as a plan.

    Args:
        name: Its name, which is that of its plan.
        make: A function that returns its arithmetic, under any name.
        tiles: A function that returns the tile sizes (block_q, block_k) of the kernel for so many
            features of a head, and for calls that are causal or have a window (True) or are not
            (False).
        source: The kernel and versions that the plan was compared with.
        kernels: The names in `roundscope check` and `identify` of kernels that are taken to have
            this plan.
        outputs: The files of tests/golden/kernels with which it is compared.
        least: The least share of equal bits of the results that do not agree in every bit, by name
            or, for one of the files, by FILE/NAME.
        wide: The words of what the kernel does otherwise above 128 features.
        runs_on_cpu: Whether it is made of operations of a library that run on a CPU too; its bits
            may be others there.
    """

    name: str
    make: Callable[[], Plan]
    tiles: Tiles
    source: str
    kernels: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    least: Mapping[str, float] = field(default_factory=dict, hash=False)
    wide: str = ""
    runs_on_cpu: bool = False

    @property
    def library(self) -> str:
        """The library of its tensors, "torch" or "jax"."""
        return "jax" if "jax" in self.source else "torch"

    @property
    def plan(self) -> Plan:
        """The arithmetic of the kernel, made when it is first asked for."""
        return _plan_of(self)


@cache
def _plan_of(twin: Twin) -> Plan:
    return replace(twin.make(), name=twin.name)


MADE: dict[str, Twin] = {}
"""The twins by name, in the order in which their files were imported."""


def twin(
    name: str,
    *,
    tiles: Tiles,
    source: str,
    kernels: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    least: Mapping[str, float] | None = None,
    wide: str = "",
    runs_on_cpu: bool = False,
) -> Callable[[Callable[[], Plan]], Callable[[], Plan]]:
    """Return a decorator that puts a function into `MADE` and returns it; see `Twin`."""

    def entered(make: Callable[[], Plan]) -> Callable[[], Plan]:
        MADE[name] = Twin(
            name=name,
            make=make,
            tiles=tiles,
            source=source,
            kernels=kernels,
            outputs=outputs,
            least=least or {},
            wide=wide,
            runs_on_cpu=runs_on_cpu,
        )
        return make

    return entered


def always(block_q: int, block_k: int) -> Tiles:
    """Return the tiles of a kernel that has the same ones in all calls."""
    return lambda width, is_cut: (block_q, block_k)


WHOLE = 2**20  # keys of a tile that holds every row whole


whole_rows = always(512, WHOLE)
"""The tiles of code that has none of keys."""


def fused(core: Accumulator = HOPPER, lanes: int = 8) -> Plan:
    """Return what the twins of fused kernels share: tensor cores, ex2, and rows in four lanes that
    begin at alpha l.

    Args:
        core: The tensor core of all products of matrices.
        lanes: How many threads add up a row of delta.
    """
    plan = fa2_bf16().at(Site.AL, BINARY64)  # one multiply-add with the first column
    return replace(
        on_hopper(plan.adding(Site.DELTA, octets(lanes)), core),
        exp=Exponential.EX2,
        row_sum=RowSum.LANES,
        log=Logarithm.LG2,
        registers=True,
        gradients_apart=GradientsApart.DQ,
    )
