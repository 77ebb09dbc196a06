"""`Run`: what came of one training in a study, whichever model it trained."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Condition(Protocol):
    """What decides a run: a frozen record with a seed."""

    @property
    def seed(self) -> int:
        """Of weights and batches."""


C = TypeVar("C", bound=Condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Generic[C]):
    """One training.

    condition  what decided it, the seed included
    steps      how many were asked for
    diverged   the step at which the run diverged, by its study's rule; None if it did not
    loss       mean of the last 50 losses in nats; NaN where one of them is not finite
    curve      tuples that begin with the number of steps done; the study says what follows
    extra      more numbers by name, as JSON knows them: nested tuples and mappings
    """

    condition: C
    steps: int
    diverged: int | None
    loss: float
    curve: tuple[tuple[float, ...], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The condition's."""
        return self.condition.seed

    @property
    def time(self) -> float:
        """The step at which the run diverged, infinite if it did not."""
        return math.inf if self.diverged is None else float(self.diverged)


def key_of(*parts: Any) -> str:
    """The name under which a run is stored: 24 hexadecimal digits of all that decides it."""
    text = json.dumps(list(parts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
