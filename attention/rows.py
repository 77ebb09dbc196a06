"""`row_sums`: what the rows of dS sum to, in a call of emulated attention."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundscope.attention.api import examine
from roundscope.attention.arguments import (
    check_numbers,
    check_shapes,
    plan_given,
    scale_given,
    served_given,
)
from roundscope.attention.engines.protocol import Name as Engine
from roundscope.attention.injection import Injection
from roundscope.attention.inputs.alignment import Alignment, visible_keys
from roundscope.attention.plans.choices import ScaleOfGradient
from roundscope.attention.plans.plan import Plan
from roundscope.attention.recording import Record
from roundscope.attention.sites import Site
from roundscope.attention.softmax.bias import has_wide_scores
from roundscope.emu.arrays import Array
from roundscope.emu.errors import known_arguments


@known_arguments
def row_sums(
    q: Array,
    k: Array,
    v: Array,
    do: Array,
    *,
    plan: Plan | str | None = None,
    block_q: int = 128,
    block_k: int = 128,
    scale: float | None = None,
    is_causal: bool = False,
    mask: Array | None = None,
    inject: Injection | str | Sequence[Injection | str] = (),
    engine: Engine | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alignment: Alignment | None = None,
    bias: Array | None = None,
) -> NDArray[np.float64]:
    """Return the sum of each row of dS = P (dP - delta), as the plan computes dS.

    In exact arithmetic every row of dS sums to zero over the keys. Where roundings leave a sum r,
    dQ has a part scale r (P K) that the loss did not ask for, and trainings that failed had more of
    it than trainings that did not. `roundscope.torch.watch` measures r in a model that trains.

    The numbers that are summed are those that the product dQ = dS K reads: after their last
    rounding, and without the scale. Each sum is exact, rounded once to binary64. Where the plan
    puts the scale into dS before that rounding, the sum is divided by it.

    With a softcap, rows of dS do not sum to zero in exact arithmetic either, for the derivative of
    tanh is part of dS; and with sinks they sum to minus the dS of the sink.

    Every dS of the call is held at a time, in binary64: 2 B N T S numbers.

    Args:
        q: Queries (B, T, N, H).
        k: Keys (B, S, G, H).
        v: Values (B, S, G, Hv).
        do: The gradient of the output, (B, T, N, Hv).
        plan: A `Plan`, or the name of a preset.

    The other arguments are those of `attend`.

    Returns:
        The sums, (B, T, N), binary64. A row that sees no key has 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or arguments do not fit together.

    Example:
        >>> import numpy as np
        >>> from roundscope import row_sums
        >>> q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 64, 2, 16), "f4")
        >>> for plan in ("exact", "fp32", "fa2-bf16"):
        ...     print(plan, f"{abs(row_sums(q, k, v, do, plan=plan)).mean():.0e}")
        exact 3e-16
        fp32 1e-07
        fa2-bf16 1e-03
    """
    check_numbers(q=q, k=k, v=v, do=do)
    check_shapes(q, k, v)
    served = served_given(plan_given(plan), window, softcap, sinks, q.shape[2], bias)
    site = _operand(served)
    trace = examine(
        q,
        k,
        v,
        do,
        plan=plan,
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        is_causal=is_causal,
        mask=mask,
        inject=inject,
        record=Record(events=(site,)),
        engine=engine,
        window=window,
        softcap=softcap,
        sinks=sinks,
        alignment=alignment,
        bias=bias,
    ).trace
    queries, keys = q.shape[1], k.shape[1]
    call: dict[str, Any] = {"is_causal": is_causal, "window": served.window}
    sees = visible_keys(queries, keys, alignment=alignment, **call)
    sees = sees if mask is None else sees & np.asarray(mask)
    sees = sees if bias is None else sees & (np.asarray(bias) != -np.inf)
    ds = np.where(sees, trace.events[site][1], 0.0)
    sums = np.array([_sum(row) for row in ds.reshape(-1, ds.shape[-1])]).reshape(ds.shape[:3])
    if served.gradient_scale is not ScaleOfGradient.RESULT:
        sums = sums / scale_given(scale, q.shape[3], is_wide=has_wide_scores(served))[0]
    return np.ascontiguousarray(sums.swapaxes(1, 2))


def _operand(plan: Plan) -> Site:
    """Return the event whose results are what dQ = dS K reads."""
    if plan.gradient_scale is ScaleOfGradient.OPERAND:
        return Site.SDSQ if plan.dp_from_delta else Site.SDS
    if plan.dp_from_delta or plan.ds_apart:
        return Site.DSQ
    return Site.DSM if plan.maximum_gradient else Site.DS


def _sum(row: NDArray[np.float64]) -> float:
    """Return the sum of a row, rounded once."""
    return math.fsum(row.tolist()) if np.isfinite(row).all() else float(row.sum())
