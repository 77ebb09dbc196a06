"""Inputs that tell apart the plans that a call's numbers do not: of several kinds of random rows
those on which the tied plans give the most different results.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from roundscope.operations.operation import Operation, Shape
from roundscope.operations.run import run

ROWS = 64  # of a probe
PLANS = 48  # tied plans whose results choose it


def probes(own: Operation, inputs: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield inputs like those of a call, with the same parameters and up to `ROWS` other rows.

    Rows are about N(0, 1); such numbers times powers of two from 2^-6 to 2^6; and such rows of
    which one number is 2^10 times larger, so that sums lose last bits.
    """
    rng = np.random.default_rng([seed, own.number])
    for kind in range(3):
        found = dict(inputs)
        for v in own.inputs:
            x = inputs.get(v.name)
            if x is None or v.shape is Shape.SHARED:
                continue
            x = np.asarray(x)
            if v.site is None:
                found[v.name] = x.reshape(-1)[np.arange(ROWS) % x.size]
                continue
            shape = (ROWS, x.shape[-1])
            drawn = rng.standard_normal(shape)
            if kind == 1:
                drawn *= 2.0 ** rng.integers(-6, 7, shape)
            elif kind == 2:
                drawn[np.arange(ROWS), rng.integers(0, shape[1], ROWS)] *= 2.0**10
            found[v.name] = drawn.astype(np.float32).astype(x.dtype)
        yield found


def telling(
    own: Operation,
    plans: Sequence[str],
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
) -> dict[str, Any] | None:
    """Return inputs on which plans give different results, of several those with the most; None if
    they give the same on all.
    """
    best: tuple[int, dict[str, Any] | None] = (1, None)
    for own_inputs in probes(own, inputs, seed):
        results = set()
        for plan in plans[:PLANS]:
            with np.errstate(all="ignore"):
                outputs = run(own, plan, own_inputs, settings=settings).outputs
            results.add(b"".join(np.ascontiguousarray(x).tobytes() for x in outputs.values()))
        if len(results) > best[0]:
            best = len(results), own_inputs
    return best[1]
