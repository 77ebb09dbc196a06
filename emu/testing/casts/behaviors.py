"""Known roundings, right and wrong, that may explain what a cast to an element format does."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np

from roundscope.emu.api import round_to
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, RoundingMode, rounding
from roundscope.emu.stats.comparison import agree as same
from roundscope.emu.testing.casts.records import Agreement, Numbers
from roundscope.emu.testing.rounding import flushed, flushed_before, overflows

Cast = Callable[[Numbers], Numbers]


class FaultyCast(Protocol):
    """A wrong cast of numbers that should have been rounded as r."""

    def __call__(self, x: Numbers, r: Rounding) -> Numbers:
        """Return the numbers as the wrong cast has them."""
        ...


MODES = tuple(mode for mode in RoundingMode if mode is not RoundingMode.STOCHASTIC)
ZERO = "but zero for every number"
FLUSHED = "flushing subnormals to zero"


def faults(f: Format, is_quotient: bool = False) -> dict[str, FaultyCast]:
    """Return known faults of casts by their names in words.

    Each is a function of the numbers and the rounding that it should have been.

    Args:
        f: the format.
        is_quotient: whether the numbers are quotients by a scale, which float32 has to round.
    """
    wider = [name for name in ("bf16", "fp16") if name != f.name]
    cut = RoundingMode.TOWARD_ZERO
    divided = {"divided in float32": _after("fp32")} if is_quotient else {}
    return {
        **divided,
        **{f"after rounding to {name} first": _after(name) for name in wider},
        **{
            f"after cutting off to {name} first": _after(name, cut)
            for name in [*["fp32"] * is_quotient, *wider]
        },
        ZERO: lambda x, r: x * 0.0,
        FLUSHED: flushed,
        "flushing inputs to zero": flushed_before,
    }


def _after(name: str, mode: RoundingMode = RoundingMode.TIES_TO_EVEN) -> FaultyCast:
    def twice(x: Numbers, r: Rounding) -> Numbers:
        first = x if rounding(name).format.holds(r.format) else np.clip(x, -65504.0, 65504.0)
        y: Numbers = round_to(round_to(first, name, mode), r)
        return y

    return twice


def explanations(
    x: Numbers, got: Numbers, asked: Rounding, is_quotient: bool = False
) -> list[Agreement]:
    """Return every known rounding with the number of results that it explains, the best first.

    The asked rounding comes first among equals.

    Args:
        x: the finite inputs.
        got: the results.
        asked: the rounding that was asked for.
        is_quotient: whether the inputs are quotients by a scale, as in `faults`.
    """
    found = [
        Agreement(name=name, agree=int(same(got, cast(x)).sum()), of=x.size)
        for name, cast in casts(asked, is_quotient)
    ]
    if (got == got[:1]).all() and got[0] != 0:
        found.append(Agreement(name=f"the constant {got[0]:g}", agree=x.size, of=x.size))
    return sorted(found, key=lambda a: -a.agree)


def casts(asked: Rounding, is_quotient: bool = False) -> Iterator[tuple[str, Cast]]:
    """Yield known roundings with their names; the asked mode and policy come first."""
    f = asked.format
    modes = sorted(MODES, key=lambda mode: mode is not asked.mode)
    policies = sorted(overflows(f), key=lambda policy: policy is not asked.overflow)
    for policy in policies:
        for mode in modes:
            r = rounding(asked, mode, overflow=policy)
            name = f"{f.name}:{mode}:{policy}"
            yield name, partial(round_to, format=r)
            if mode in (RoundingMode.TIES_TO_EVEN, asked.mode):
                for fault, cast in faults(f, is_quotient).items():
                    yield f"{name} {fault}", partial(cast, r=r)
