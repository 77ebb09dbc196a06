"""`Run`: the outcome of one training in a study, whichever model was trained."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar


class Condition(Protocol):
    """The settings of a run, all that its result depends on: a frozen record with a seed."""

    @property
    def seed(self) -> int:
        """The seed of the weights and of the batches."""


C = TypeVar("C", bound=Condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Generic[C]):
    """The outcome of one training.

    condition  what decided it, the seed included
    steps      how many steps were asked for
    diverged   the step at which the run diverged by its study's rule; None if it did not
    loss       mean of the last 50 losses in nats; NaN where one of them is not finite
    curve      tuples that begin with the number of steps done; the study says what follows
    extra      further numbers by name, of types that JSON knows: nested tuples and mappings
    """

    condition: C
    steps: int
    diverged: int | None
    loss: float
    curve: tuple[tuple[float, ...], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The seed of the run's condition."""
        return self.condition.seed

    @property
    def time(self) -> float:
        """The step at which the run diverged, infinity if it did not."""
        return math.inf if self.diverged is None else float(self.diverged)


def key_of(*parts: Any) -> str:
    """Return a run's key: 24 hexadecimal digits of a hash of JSON data that decide it."""
    text = json.dumps(list(parts), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
