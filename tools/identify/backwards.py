"""The backward of one call under many plans: plans that share their forward compute it once, and a
backward may be of some queries or of some keys alone. Every number is that of `examine` with the
NumPy engine.
"""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from roundscope.attention.arguments import served_given
from roundscope.attention.engines import numpy as engine
from roundscope.attention.engines.again import with_own_lse
from roundscope.attention.inputs.scales import check_scales_of_backward, scaled
from roundscope.attention.plans.choices import DeltaFrom
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.record import CHOICES
from roundscope.attention.settings import Options, mask_to_heads, setup_of
from roundscope.attention.sites import KEY_SITES, PRODUCTS, Site
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.tiles import records
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Residuals, Results
from roundscope.events.plan import check_factors
from roundscope.tools.identify.candidates import BACKWARD, Candidate, scale_of, scales_of

Arrays = dict[str, NDArray[np.float32]]
Wide = NDArray[np.float64]
KEPT = 4  # forwards that are kept
# the choices that a search of the backward changes and no forward reads
OF_BACKWARD = [
    name
    for name, own in CHOICES.items()
    if own.moves.backward and not own.moves.forward and name not in ("exponent_again", "lse_base2")
]


class Backwards:
    """The gradients of a call of one batch entry under candidates, and parts of them.

    x  the call: do is (1, T, N, Hv)
    """

    def __init__(self, x: Inputs) -> None:
        """Begin without a forward."""
        self.x = x
        self._kept: OrderedDict[object, Residuals] = OrderedDict()

    def setup(self, c: Candidate) -> Setup:
        """Return the setup of a candidate. Raises ValueError for a plan that cannot run."""
        x = self.x
        plan = served_given(c.plan, x.window, x.softcap, x.sinks, x.q.shape[2])
        plan, q, k, v, factors = scaled(plan, x.q, x.k, x.v, scales_of(c, x.scales))
        check_scales_of_backward(records.Inputs(q, k, v, None, None, *factors))
        options = Options(
            block_q=c.block_q,
            block_k=c.block_k,
            scale=scale_of(c, x.scale),
            is_causal=x.is_causal,
            mask=x.mask,
            engine="numpy",
            alignment=x.alignment,
        )
        check_factors(plan)
        return setup_of(q, k, v, plan, options)[0]

    def gradients(
        self,
        c: Candidate,
        head: int | None = None,
        rows: slice | None = None,
        keys: slice | None = None,
    ) -> Arrays:
        """Return dq, dk and dv (1, rows, heads, features) of the call, or of a part of it.

        Raises ValueError for a plan that cannot run.

        Args:
            c: The candidate.
            head: The query head; None for all, whose sums dk and dv are.
            rows: The queries, a whole number of tiles from the first on. Only dq is right then.
            keys: The keys, a whole number of the backward's tiles from the first on. Only dk and dv
                are right.
        """
        setup = self.setup(c)
        given = self._forward(c, setup)
        do = engine.round_inputs(setup, Site.DO, engine.enter(self.x.do, setup.block_q))[0]
        if setup.plan.scaled_keys:
            scaled = engine.round_inputs(setup, Site.KC, given.inputs.k)[0]
            given = given._replace(inputs=given.inputs._replace(k=scaled))
        if setup.plan.inputs_again:
            q, k, v = (self._rounded(setup, site) for site in (Site.QB, Site.KB, Site.VB))
            given = given._replace(inputs=given.inputs._replace(q=q, k=k, v=v))
        given = with_own_lse(engine, setup, given)
        setup, given, do = _part(setup, given, do, head, rows, keys)
        found = engine.backward(setup, given, do)[0]
        sizes = {"dq": setup.queries, "dk": setup.keys, "dv": setup.keys}
        left = {
            n: engine.leave(getattr(found, n), 1, size, np.float32) for n, size in sizes.items()
        }
        return {n: np.asarray(x, np.float32) for n, x in left.items()}

    def _rounded(self, setup: Setup, site: Site) -> Wide:
        """Return q, k or v of the call after an event, of a name that begins with its letter."""
        block = setup.block_k if site in KEY_SITES else setup.block_q
        x = getattr(self.x, site[0].lower())
        return engine.round_inputs(setup, site, engine.enter(x, block))[0]

    def _forward(self, c: Candidate, setup: Setup) -> Residuals:
        """Return what the forward of a candidate read and returned."""
        key = _of_forward(c, setup)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]

        x = self.x
        q, k, v = (self._rounded(setup, site) for site in (Site.Q, Site.K, Site.V))
        inputs = records.Inputs(
            q,
            k,
            v,
            mask_to_heads(setup, x.mask, 1, x.q.shape[2]),
            None if x.sinks is None else engine.enter_sinks(x.sinks, 1),
        )
        self._kept[key] = Residuals(inputs, engine.forward(setup, inputs)[0])
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


def _of_forward(c: Candidate, setup: Setup) -> object:
    """Return what decides the results of a forward, which plans that share it have in common."""
    plan = c.plan
    return (
        tuple(plan[site] for site in Site if site not in (*BACKWARD, Site.DO)),
        tuple(plan.accumulator(site) for site in PRODUCTS if site.stage == "forward"),
        plan.blocks,
        tuple(getattr(plan, name) for name in CHOICES if name not in OF_BACKWARD),
        (setup.block_q, setup.block_k, setup.scale, setup.whole_scale),
    )


def has_parts(plan: Plan) -> tuple[bool, bool]:
    """Return whether some queries have their dQ, and some keys their dK and dV, without the rest.

    Blocks of a format may lie in several tiles; rows that are one tile, and a delta of P and dP,
    need every key.
    """
    of_tiles = not plan.normalise_first and plan.delta_from in (DeltaFrom.OUT, DeltaFrom.WIDE_O)
    return not plan.blocks, not plan.blocks and of_tiles


def _part(
    setup: Setup,
    given: Residuals,
    do: Wide,
    head: int | None,
    rows: slice | None,
    keys: slice | None,
) -> tuple[Setup, Residuals, Wide]:
    """Return the setup and the arrays of a part, whose queries stand where they stood."""
    group = setup.heads // setup.key_heads
    own, of_keys = slice(None), slice(None)
    if head is not None:
        own, of_keys = slice(head, head + 1), slice(head // group, head // group + 1)
        setup = replace(setup, heads=1, key_heads=1)
    whole = slice(0, setup.queries), slice(0, setup.keys)
    rows, keys = rows or whole[0], keys or whole[1]
    setup = replace(
        setup,
        queries=min(rows.stop, setup.queries) - rows.start,
        keys=min(keys.stop, setup.keys) - keys.start,
        shift=setup.shift + rows.start - keys.start,
    )
    t = slice(rows.start, rows.start + setup.query_tiles * setup.block_q)
    s = slice(keys.start, keys.start + setup.key_tiles * setup.block_k)
    q, k, v, mask, sink, *_ = given.inputs
    inputs = records.Inputs(
        q[own, t],
        k[of_keys, s],
        v[of_keys, s],
        None if mask is None else mask[own, t, s],
        None if sink is None else sink[own],
    )
    results = Results(*(None if x is None else x[own, t] for x in given.results))
    return setup, Residuals(inputs, results), do[own, t]
