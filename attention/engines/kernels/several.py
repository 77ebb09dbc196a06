"""Several plans in one call. A kernel has one plan, so heads with equal plans share a kernel call.

The steps that a head has only once, delta among them, run under XLA, which takes the plans as data
(`xla.Each`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from roundscope.attention.arguments import is_traced
from roundscope.attention.engines import xla
from roundscope.attention.engines.kernels.fit import check
from roundscope.attention.plans.plan import Plan
from roundscope.attention.plans.traced import HeadPlans, plan_in
from roundscope.attention.sites import Site
from roundscope.attention.tiles.loops import Setup, SomeHeads

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The heads of a call that have equal plans.

    setup  the setup of the kernels that compute them
    heads  the numbers of the heads in the arrays of the call, ascending
    """

    setup: Setup
    heads: tuple[int, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Several:
    """The plans of all query heads of a call: as data for XLA, and fixed for kernels.

    each    the plans as data
    shares  the heads of each plan
    """

    each: xla.Each
    shares: tuple[Share, ...] = field(metadata={"static": True})


def by_head(setup: Setup, plans: HeadPlans, batch: int) -> Several:
    """Return the plans of query heads, the same for every batch entry.

    setup: the setup of the call, with the structure of the plans.
    """
    shares = []
    for plan, own in _equal(plans_of_heads(setup.plan, plans)).items():
        some = SomeHeads(own=own, heads=setup.heads, step=setup.heads)
        mine = replace(
            setup,
            plan=plan,
            scale=_scale(setup.whole_scale, plan),
            heads=len(own),
            key_heads=len(own),
            some=some,
        )
        heads = tuple(b * setup.heads + n for b in range(batch) for n in own)
        shares.append(Share(setup=mine, heads=heads))
    return Several(xla.by_head(setup, plans, batch), tuple(shares))


def prepare(setups: Setup | tuple[Setup, ...]) -> tuple[Setup, Several | None]:
    """Return what `prepare` of `attention.engines.xla` returns, with the plans also for kernels."""
    setup, each = xla.prepare(setups)
    if each is None or isinstance(setups, Setup):
        return setup, None
    heads = tuple(range(setup.heads))
    some = SomeHeads(own=heads, heads=setup.heads, step=0)
    nameless = [replace(s, plan=replace(s.plan, name=""), some=some) for s in setups]
    shares = [
        Share(setup=mine, heads=tuple(b * setup.heads + n for b in entries for n in heads))
        for mine, entries in _equal(nameless).items()
    ]
    return setup, Several(each, tuple(shares))


def plans_of_heads(like: Plan, plans: HeadPlans) -> list[Plan]:
    """Return the plan of each query head. Raise ValueError if the plans are traced.

    like: the structure of the plans, with what the arguments of the call changed.
    """
    if is_traced(plans.table):
        raise ValueError(
            "plan: the plans of heads are traced, as an argument of jit, vmap or scan is, and a"
            " fused kernel is compiled for its plans; use them from outside the function, or"
            " engine='xla', which takes them as data"
        )
    return [plan_in(like, table) for table in np.asarray(plans.table)]


def check_heads(
    setup: Setup, plans: HeadPlans, sizes: tuple[int, ...], mask: Any, traced: bool
) -> None:
    """Raise ValueError for plans of heads that the kernels cannot run; see `fit.check`."""
    for plan, heads in _equal(plans_of_heads(setup.plan, plans)).items():
        named = replace(plan, name=f"of head {heads[0]}")
        check(replace(setup, plan=named), sizes, mask, traced)


def round_inputs(
    setup: Setup, site: Site, x: Array, several: Several | None = None
) -> tuple[Array, Any]:
    """Return what `round_inputs` of `attention.engines.xla` returns."""
    return xla.round_inputs(setup, site, x, None if several is None else several.each)


def by_share(
    kernels: Callable[[Setup], Callable[..., Any]],
    setup: Setup,
    several: Several | None,
    queries: Sequence[Array],
    keys: Sequence[Array],
) -> Any:
    """Return the results of kernels for all query heads, in the order of the heads.

    kernels  setup -> a function of the arrays, of query heads and then of key heads, whose results
             have query heads along the first axis
    several  the plans; None for the plan of the setup
    queries  arrays of query heads
    keys     arrays of key heads
    """
    if several is None or len(several.shares) == 1:
        return kernels(setup if several is None else several.shares[0].setup)(*queries, *keys)
    group, found = queries[0].shape[0] // keys[0].shape[0], []
    for share in several.shares:
        heads = np.array(share.heads)
        own, of_keys = (x[heads] for x in queries), key_heads(heads, group)
        found.append(kernels(share.setup)(*own, *(x[of_keys] for x in keys)))
    order = np.argsort(np.concatenate([share.heads for share in several.shares]))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[order], *found)


def key_heads(heads: Numbers, group: int) -> Numbers:
    """Return the key heads of query heads: one for each group if all groups are complete, else one
    for each query head.
    """
    first = heads[::group]
    whole = (first[:, None] + np.arange(group)).ravel()
    is_whole = np.array_equal(heads, whole) and not (first % group).any()
    return (first if is_whole else heads) // group


def _scale(whole: float, plan: Plan) -> float:
    """Return the scale of a plan's scores: in binary32, or whole where SCALED is wider."""
    is_wide = plan[Site.SCALED].format.precision > 24
    return whole if is_wide else float(np.float32(whole))


def _equal(given: Iterable[Any]) -> dict[Any, tuple[int, ...]]:
    """Return the positions of each different thing, in the order in which they first come."""
    found: dict[Any, tuple[int, ...]] = {}
    for n, x in enumerate(given):
        found[x] = (*found.get(x, ()), n)
    return found
