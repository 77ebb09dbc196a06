"""The readers of words that methods of records call: `Plan.preset`, `Plan.changed`, the `repr` of a
plan, and `Injection.parse`.

Presets and the grammar are made of plans and injections and import them, so these records cannot
import the readers. `roundscope.attention` puts the readers here; Python imports it before any
module in it, as `roundscope.operations` does, so they are here before anybody has a record.
"""

from collections.abc import Callable
from typing import Any

READERS: dict[str, Callable[..., Any]] = {}
"""The readers by name: preset, changes, expression, accumulator words and injection."""
