"""`Identified`: what `identify` says of a call."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roundscope.emu.stats.comparison import Lost, lost

FEW = 3  # ties that a sentence names, or all that are published plans


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Identified:
    """Which plan gives the numbers of a call. Printed, it is its sentence.

    Attributes:
        operation: The name of the operation.
        plan: The nearest plan in words that `run` takes.
        share: The share of the numbers that are equal, infinite and NaN compared as such.
        ties: The other plans that give every bit as well, in words: published plans, and changes of
            a choice or of the order of a sum.
        free: Changes of a single event after which the plan gives every bit as well.
        signs: How many zeros have the other sign.
        ulps: The largest difference, in units in the last place of the output's type.
        lost: What is infinite or NaN in only one of the call and the plan.
        type: The type of the output.
        tried: How many plans were tried.
        compared: How many numbers were compared with the plan.
        compared_ties: How many with its ties.
        numbers: How many numbers the call returned.
        settings: Settings that differ from what the call was said to have, if that explains it.
    """

    operation: str
    plan: str
    share: float
    ties: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    signs: int = 0
    ulps: float = 0.0
    lost: Lost = field(default_factory=lambda: lost(np.zeros(0)))
    type: str = ""
    tried: int = 0
    compared: int = 0
    compared_ties: int = 0
    numbers: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_found(self) -> bool:
        """Return whether the plan gives every bit that was compared, under the settings given."""
        return self.share == 1.0 and not self.signs and not self.settings

    @property
    def plans(self) -> tuple[str, ...]:
        """The plan and its ties if they give every bit, else none."""
        return (self.plan, *self.ties) if self.is_found else ()

    def __repr__(self) -> str:
        return self.sentence

    @property
    def name(self) -> str:
        """The plan and its ties in few words; "" if none gives every bit."""
        if not self.is_found:
            return ""
        if len(self.ties) == 1:
            return f"{self.plan} or {self.ties[0]}, tied"
        others = f" or {len(self.ties)} others, tied" if self.ties else ""
        return f"{self.plan}{others}"

    @property
    def sentence(self) -> str:
        """The answer in sentences."""
        part = "" if self.compared == self.numbers else f" of {self.numbers:,}"
        what = f"{self.compared:,} numbers{part}"
        if self.share == 1.0 and not self.signs:
            if self.settings:
                said = " and ".join(f"{name} = {x}" for name, x in self.settings.items())
                return f"Explained if {said}: then these are the numbers of {self.plan}, {what}."
            answer = f"These are the numbers of {self.plan}: {what}."
            if self.ties:
                plain = [plan for plan in self.ties if "; " not in plan]
                named = plain if len(plain) >= FEW else self.ties[:FEW]
                rest = len(self.ties) - len(named)
                more = f" and {rest} others" if rest > 0 else ""
                give = "gives" if len(self.ties) == 1 else "give"
                of = f"{self.compared_ties:,} of " if self.compared_ties < self.compared else ""
                answer += (
                    f" {', '.join(self.ties[:FEW])}{more} {give} {of}them too: these numbers do not"
                    " tell them apart."
                )
            return answer
        answer = "No plan tried explains this: "
        if self.lost:
            answer += f"{self.lost.words('numbers')}, unlike those of the nearest; "
        floor = math.floor(self.share * 1000) / 10
        answer += f"{floor:g} % of {what} are equal to those of the nearest, {self.plan}"
        if self.share == 1.0:
            return f"{answer}, but {self.signs:,} zeros have the other sign."
        if self.ulps and not math.isinf(self.ulps):
            size = "one unit" if self.ulps == 1.0 else f"up to {self.ulps:.3g} units"
            of = f" of {self.type.upper()}" if self.type else ""
            answer += f"; differences are {size} in the last place{of}"
        return f"{answer}."
