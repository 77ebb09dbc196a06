"""`across`: behind which operations XLA makes the difference between a jitted function as a whole
and its operations compiled alone.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax import lax

from roundscope.emu.errors import known_arguments
from roundscope.operations.models.comparing.shares import Share, shares
from roundscope.operations.models.jax.program import Constant, Program
from roundscope.operations.models.jax.running import bound
from roundscope.operations.models.jax.scopes import Operation
from roundscope.operations.models.jax.side import Side, traced
from roundscope.operations.models.replay import log_softmax, same, wide
from roundscope.operations.models.tape import PASSED


@known_arguments
def across(side: Side) -> dict[str, Share]:
    """Return how much of what XLA does across operations it does with the results of each.

    The program is compiled again with `lax.optimization_barrier` behind the results of some kinds
    of operations, so that nothing is moved, fused or left out there. With all of them it is the
    operations one by one, and with none of them the program itself. The shares are Shapley's, as
    those of `compare`, of the log-probabilities or of the output.

    Args:
        side: A run. It is compiled, whether its function is jitted or not.

    Returns:
        Operation -> share, the largest first, of those that change a bit; empty if the program
        gives the bits of its operations.

    Raises:
        TypeError, ValueError: As `compare` has them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from roundscope.jax import Side, across
        >>> x = jnp.asarray([[1.0, 3.0]], "bfloat16")
        >>> across(Side(lambda x: jax.nn.silu(x + x), {"x": x}))
        {}
    """
    run = traced(side, "side")
    kinds = [x.name for x in run.operations if x.name not in PASSED]
    everyone = frozenset(kinds)

    @cache
    def end(is_open: frozenset[str]) -> np.ndarray:
        function = partial(_evaluated, run.program, run.operations, is_open)
        made = jax.jit(function, compiler_options=run.options)(*run.arrays)
        x = wide(np.asarray(made[run.place]))
        if run.tokens is not None and x.ndim == 3 and x.shape[:2] == run.tokens.shape:
            x = np.take_along_axis(log_softmax(x[:, :-1]), run.tokens[:, 1:, None], -1)
        return x.reshape(-1)

    def active(names: list[str]) -> list[str]:
        """Return which of some operations change a bit, alone or where all others are open."""
        own = frozenset(names)
        pairs = (end(own), start), (end(everyone - own), whole)
        if all(same(x, y) for x, y in pairs):
            return []
        half = len(names) // 2
        return names if not half else [*active(names[:half]), *active(names[half:])]

    start, whole = end(frozenset()), end(everyone)
    gap = whole - start
    size = float(gap @ gap)
    if not size:
        return {}
    players = active(list(dict.fromkeys(kinds)))
    found = shares(players, lambda names: float((end(names) - start) @ gap) / size)
    return dict(sorted(found.items(), key=lambda item: -abs(item[1].share)))


def _evaluated(
    program: Program, operations: Sequence[Operation], is_open: frozenset[str], *arrays: Any
) -> list[Any]:
    """Return the results of a program, with barriers behind operations that are not open."""
    values: dict[int, Any] = dict(zip(program.inputs, arrays, strict=True)) | program.constants
    for operation in operations:
        made: dict[int, Any] = {}
        for step in operation.steps:
            for eqn in step.equations:
                args = [_read(x, values, made) for x in eqn.inputs]
                made |= zip(eqn.outputs, bound(eqn, args), strict=True)
        if operation.name not in PASSED and operation.name not in is_open:
            kept = lax.optimization_barrier(list(made.values()))
            made = dict(zip(made, kept, strict=True))
        values |= made
    return [_read(x, values, {}) for x in program.outputs]


def _read(x: int | Constant, values: Mapping[int, Any], made: Mapping[int, Any]) -> Any:
    if isinstance(x, Constant):
        return x.number
    return made[x] if x in made else values[x]
