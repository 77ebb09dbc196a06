"""The outputs of one candidate plan, computed without a trace."""

from typing import Any

import numpy as np

from roundscope.attention import examine
from roundscope.tools.identify.candidates import Candidate


def emulated(
    c: Candidate,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    do: np.ndarray | None = None,
    **options: Any,
) -> Any:
    """Return what `examine` returns for a candidate.

    Raises ValueError for a plan that cannot run.
    """
    if c.scale_ulps:
        scale = np.float32(options["scale"])
        for _ in range(abs(c.scale_ulps)):
            scale = np.nextafter(scale, np.float32(np.inf * c.scale_ulps))
        options["scale"] = float(scale)
    return examine(
        q,
        k,
        v,
        do,
        plan=c.plan,
        block_q=c.block_q,
        block_k=c.block_k,
        engine="numpy",
        **{"record": None, **options},
    )
