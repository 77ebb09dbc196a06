"""Parameters of which CI runs some, and `make thorough` runs all."""

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], every: int = 2) -> list[Any]:
    """Return cases as parameters; CI runs the first, and every second or so after it."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.thorough] if n % every else [],
        )
        for n, case in enumerate(cases)
    ]
