"""Hypothesis strategies of plans, of inputs of attention, and of injections.

This module imports hypothesis, so nothing else imports it. `roundscope.testing.strategies`
re-exports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter, for_type_by_name

from roundscope.attention import PRESETS, Plan, Site
from roundscope.attention.arguments import plan_given
from roundscope.attention.grammar.injections import check_held
from roundscope.attention.injection import Injection
from roundscope.attention.places import Sizes, limits
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import BACKWARD, Axes
from roundscope.attention.testing import words
from roundscope.attention.testing.calls import Inputs
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.attention.testing.foreign.user import TYPES
from roundscope.emu.errors import unknown
from roundscope.events.injection import AddUlps, Bias, Exact, FlipBit, Noise, SetTo, What, Where

Count = int | st.SearchStrategy[int] | None
"""A number, a strategy of numbers, or None for the usual one."""

_SEEDS = st.integers(0, 2**32 - 1)
# numbers of tokens around the tiles of kernels, which few calls of fewer tokens reach
_TOKENS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 128, 129, 160]))
_FEATURES = (8, 16, 64, 32)  # in the order in which examples shrink to them
_FIRST = "fa2-bf16"  # the plan that examples shrink to
_PLANS = tuple(dict.fromkeys((_FIRST, *PRESETS, *TWINS)))
_ULPS = (0.5, 1.0, -1.0, 0.25, -3.0, 8.0)
_BIASES = (0.25, -0.25, 1.0, -(2.0**-10))
_VALUES = (0.0, 1.0, -2.0, 0.5, float("inf"), float("nan"))
_ENTRIES = 4  # indices of a selection at most
_LETTERS = 1000  # of a plan without words: all have more letters than Hypothesis lets pass


def _print(x: Plan | Inputs, printer: RepresentationPrinter, is_cycle: bool) -> None:
    """Print an expression; Hypothesis would print the fields of the dataclass."""
    printer.text(repr(x)[:_LETTERS])


for _kind in (Plan, Inputs):
    for_type_by_name(_kind.__module__, _kind.__name__, _print)


def plans(
    presets: Sequence[str] = _PLANS, *, changes: int = 3, seed: int | None = None
) -> st.SearchStrategy[Plan]:
    """Return a strategy of plans: presets, plans of real kernels, and both with a few changes.

    The changes are those of docs/reference/grammar.md: other formats, modes, sums and choices. A
    change that a plan refuses is left out. Every plan has one result, the same on every machine. A
    failing example is printed as the words of the plan and a seed, with which `Plan.preset` and
    `Plan.changed` make it again.

    Args:
        presets: The names of the plans to draw from, the first of which examples shrink to. By
            default all of `PRESETS` and all twins.
        changes: The largest number of changes of a plan, 0 or more.
        seed: The seed of stochastic roundings; by default it is drawn too.

    Returns:
        A strategy of `Plan`, which shrinks to the first preset without any change.

    Raises:
        ValueError: A name is not one of a plan, or there are no names.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.attention import Site
        >>> from roundscope.attention.testing.strategies import plans
        >>> find(plans(changes=0), lambda plan: plan[Site.P].format.bits == 8).name
        'fa3-fp8'
    """
    if not presets:
        raise ValueError("presets=(): give the name of at least one plan, such as fa2-bf16")
    for name in presets:
        plan_given(name)
    seeds = _SEEDS if seed is None else st.just(seed)
    return st.builds(words.plan_of, words.plans(tuple(presets), changes), seeds)


def attention_inputs(
    families: str | Sequence[str] = tuple(FAMILIES),
    *,
    tokens: Count = None,
    keys: Count = None,
    heads: Count = None,
    key_heads: Count = None,
    batch: Count = None,
    features: Count = None,
    causal: bool | None = None,
    dtype: str | None = "bfloat16",
) -> st.SearchStrategy[Inputs]:
    """Return a strategy of the inputs of one call of attention, of the families of `FAMILIES`.

    A number of tokens is often one beside the size of a tile. A failing example is printed as the
    call of `roundscope.testing.draw` that makes it.

    Args:
        families: The name of a family, or several, the first of which examples shrink to.
        tokens: The number of queries: a number, a strategy of numbers, or None for 1 to 160.
        keys: The number of keys, likewise; by default that of the queries.
        heads: The number of heads of q, likewise; by default 1 to 4.
        key_heads: The number of heads of k and v, likewise; by default any that divides `heads`.
            Combinations in which it does not divide are not drawn.
        batch: The number of batch entries, likewise; by default 1 or 2.
        features: The number of features of a head, likewise; by default 8, 16, 32 or 64.
        causal: Whether calls are causal; None for both.
        dtype: The type whose numbers the tensors hold, "bfloat16", "float16" or "float32"; None for
            all three.

    Returns:
        A strategy of `Inputs`, which shrinks to a call of one token and one head of the first
        family.

    Raises:
        ValueError: There is no such family, no such type, or a number is below 1.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.attention.testing.strategies import attention_inputs
        >>> x = find(attention_inputs(features=16), lambda x: x.q.shape[2] > x.k.shape[2])
        >>> x.q.shape, x.k.shape
        ((1, 1, 2, 16), (1, 1, 1, 16))
    """
    names = (families,) if isinstance(families, str) else tuple(families)
    types = TYPES if dtype is None else (dtype,)
    _check_names("family", names, tuple(FAMILIES))
    _check_names("dtype", types, TYPES)
    of_q: st.SearchStrategy[int] = _numbers("heads", heads, st.integers(1, 4))
    of_k = _numbers("key_heads", key_heads, None)
    pairs = of_q.flatmap(lambda n: st.tuples(st.just(n), _divisors(n) if of_k is None else of_k))

    def of_heads(pair: tuple[int, int]) -> st.SearchStrategy[Inputs]:
        return st.builds(
            draw,
            st.sampled_from(names),
            seed=_SEEDS,
            batch=_numbers("batch", batch, st.integers(1, 2)),
            tokens=_numbers("tokens", tokens, _TOKENS),
            keys=_numbers("keys", keys, st.none()),
            heads=st.just(pair[0]),
            key_heads=st.just(pair[1]),
            features=_numbers("features", features, st.sampled_from(_FEATURES)),
            is_causal=st.booleans() if causal is None else st.just(causal),
            dtype=st.sampled_from(types),
        )

    return pairs.filter(lambda p: p[0] % p[1] == 0).flatmap(of_heads)


def injections(
    plan: Plan | str = _FIRST,
    inputs: Inputs | None = None,
    *,
    block_q: int = 128,
    block_k: int = 128,
    backward: bool = False,
) -> st.SearchStrategy[Injection]:
    """Return a strategy of injections that a plan and a call can have.

    Args:
        plan: The plan of the call, or its name. Only its events are drawn, only bits that their
            formats have, and only values that these formats hold.
        inputs: The inputs of the call, whose entries are selected; by default only the entries with
            index 0 are, which every call has.
        block_q: Queries of a tile of the call.
        block_k: Keys of a tile of the call.
        backward: Whether events of the backward are drawn too. `attend` refuses these, `examine`
            takes them if it is given `do`.

    Returns:
        A strategy of `Injection`, which shrinks to half an ulp that is added to all entries of Q.

    Raises:
        ValueError: There is no plan of this name.

    Example:
        >>> from hypothesis import find
        >>> from roundscope.attention import FlipBit
        >>> from roundscope.attention.testing.strategies import injections
        >>> found = find(injections("fa2-bf16"), lambda i: isinstance(i.what, FlipBit))
        >>> str(found.site), found.what, found.rows
        ('Q', FlipBit(bit=0), None)
    """
    chosen = plan_given(plan)
    sizes = _sizes(inputs, block_q, block_k, chosen.normalise_first)
    sites = [s for s in words.sites_of(chosen, True) if backward or s not in BACKWARD]
    return st.sampled_from(sites).flatmap(lambda site: _at(chosen, site, limits(site, sizes)))


@st.composite
def _at(draw: st.DrawFn, plan: Plan, site: Site, counts: dict[str, int]) -> Injection:
    """Return a strategy of injections at a site; `counts` has the entries of each selection."""
    error = draw(_errors(plan, site))
    own = {Axes.TS: ("columns",), Axes.T: ()}.get(site.axes, ("features",))
    names = st.sampled_from(("rows", "heads", "batch", "tiles", *own))
    selected = draw(st.lists(names, max_size=2, unique=True))
    where: dict[str, Any] = {name: draw(_selections(counts[name])) for name in selected}
    return Injection(site=site, what=error, **where)


def _errors(plan: Plan, site: Site) -> st.SearchStrategy[What]:
    """Return a strategy of the errors that an event of a plan can have."""
    f = plan[site].format
    kinds: list[list[What]] = [
        [AddUlps(ulps=ulps) for ulps in _ULPS],
        [*(Bias(value=value) for value in _BIASES), Exact()],
        [SetTo(value=value) for value in _VALUES if _is_held(plan, site, value)],
        [FlipBit(bit=bit) for bit in range(f.bits)] if f.precision <= 24 else [],
        [Noise(ulps=ulps, seed=seed) for seed in range(4) for ulps in _ULPS],
    ]
    return st.one_of([st.sampled_from(errors) for errors in kinds if errors])


def _is_held(plan: Plan, site: Site, value: float) -> bool:
    try:
        check_held(Injection(site=site, what=SetTo(value=value)), plan)
    except ValueError:
        return False
    return True


def _selections(count: int) -> st.SearchStrategy[Where]:
    """Return a strategy of selections among a number of entries: one, a range, or a few."""
    index = st.integers(0, count - 1)
    ranges = st.tuples(index, index).map(lambda ends: range(min(ends), max(ends) + 1))
    few = st.lists(index, min_size=1, max_size=_ENTRIES, unique=True).map(sorted).map(tuple)
    return st.one_of(index, ranges, few)


def _sizes(x: Inputs | None, block_q: int, block_k: int, is_row_whole: bool) -> Sizes:
    """Return the sizes of a call; without inputs, those of the smallest one.

    A plan that normalizes P before P V has whole rows in one tile.
    """
    batch, queries, heads, features = (1, 1, 1, 1) if x is None else x.q.shape
    keys, key_heads, value_features = (1, 1, 1) if x is None else x.v.shape[1:]
    return Sizes(
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        key_heads=key_heads,
        features=features,
        value_features=value_features,
        block_q=block_q,
        block_k=max(block_k, keys) if is_row_whole else block_k,
    )


def _divisors(n: int) -> st.SearchStrategy[int]:
    """Return a strategy of the divisors of a number, which shrinks to the number itself."""
    return st.sampled_from([d for d in range(n, 0, -1) if n % d == 0])


def _numbers(name: str, given: Count, usual: Any) -> Any:
    """Return a strategy of sizes; `usual` is the one of an argument that is None."""
    if given is None or isinstance(given, st.SearchStrategy):
        return usual if given is None else given
    if given < 1:
        raise ValueError(f"{name}={given}: must be 1 or more")
    return st.just(given)


def _check_names(noun: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not names:
        raise ValueError(f"no {noun} is given; name at least one of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise ValueError(unknown(noun, name, known))
