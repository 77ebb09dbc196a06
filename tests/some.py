"""Parameters of which CI runs some, and `make thorough` runs all."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def some(cases: Iterable[Any], every: int = 2, first: int = 0) -> Iterator[Any]:
    """Yield cases as parameters; CI runs those with the numbers first, first + every, and so on."""
    for n, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        yield pytest.param(*values, marks=[] if n % every == first else [pytest.mark.thorough])
