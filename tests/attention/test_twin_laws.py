"""What holds of every twin, by the NumPy engine: no keys, infinities, grouped heads, tiles that do
not divide.
"""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.attention import DeltaFrom, Plan, Record, Site, examine
from roundscope.attention.places import in_traces
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.sites import OF_SINKS, PRODUCTS
from roundscope.emu.sums.accumulator import Order
from tests.checks.engines import normal

RESULTS = ("out", "lse", "dq", "dk", "dv")
twins = pytest.mark.parametrize("twin", TWINS)


def inputs(tokens=40, heads=2, key_heads=2, width=16):
    shapes = [(1, tokens, n, width) for n in (heads, key_heads, key_heads, heads)]
    return [normal(700 + i, *shape) for i, shape in enumerate(shapes)]


def run(twin, *arrays, plan=None, block_q=16, record=None, **options):
    """A softmax of whole rows has one key tile."""
    plan = plan or TWINS[twin].plan
    keys = 64 if plan.normalise_first else options.pop("block_k", 16)
    options.pop("block_k", None)
    return examine(
        *arrays, plan=plan, engine="numpy", record=record, block_q=block_q, block_k=keys, **options
    )


def exactly(twin, q, k, v, do, **options):
    """Exact attention; its L is of the keys that the twin's scores are of."""
    if TWINS[twin].plan.smoothed_keys:
        k = k - k.mean(axis=1, keepdims=True)
    return run(twin, q, k, v, do, plan=Plan.preset("exact"), **options)


def assert_close(twin, got, want):
    """Within BF16's errors of attention; within 1/4 in FP8, less than a factor of ln 2 makes."""
    bound = 0.04 if TWINS[twin].plan[Site.P].format.precision > 4 else 0.25
    base = np.log(2.0) if TWINS[twin].plan.lse_base2 else 1.0
    for name in RESULTS:
        x, y = (np.asarray(getattr(z, name), np.float64) for z in (got, want))
        x = x * base if name == "lse" else x
        assert np.abs(x - y).max() <= bound * np.abs(y).max(), name


@twins
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_twin_is_attention(twin, causal):
    """A factor of log2 e, of the scale or of ln 2 too many; a lane or a tile that is left out.

    T is no multiple of tiles.
    """
    arrays = inputs()
    exact = exactly(twin, *arrays, is_causal=causal)
    assert_close(twin, run(twin, *arrays, is_causal=causal), exact)
    scaled = {"scale": 0.5, "is_causal": causal}
    assert_close(twin, run(twin, *arrays, **scaled), exactly(twin, *arrays, **scaled))


@twins
def test_rows_without_keys_give_nothing(twin):
    """0 / 0, -inf - -inf, 2^(inf - inf), or the reciprocal of 0; rows of whole tiles and rows among
    others.
    """
    mask = np.random.default_rng(2).random((1, 1, 40, 40)) < 0.5
    mask[..., :16, :] = mask[..., 20, :] = mask[..., 39, :] = False
    mask[..., 7] = False
    got = run(twin, *inputs(), mask=mask)
    dead = ~mask[0, 0].any(axis=1)
    assert dead.sum() == 18
    assert np.all(got.out[:, dead] == 0.0) and np.all(got.dq[:, dead] == 0.0)
    assert np.all(np.isneginf(got.lse[:, dead]))
    assert np.all(got.dk[:, 7] == 0.0) and np.all(got.dv[:, 7] == 0.0)
    for name in RESULTS:
        x = getattr(got, name)
        assert np.isfinite(x if name != "lse" else x[:, ~dead]).all(), name
    exact = exactly(twin, *inputs(), mask=mask)
    got, exact = (replace(x, lse=np.where(np.isneginf(x.lse), 0.0, x.lse)) for x in (got, exact))
    assert_close(twin, got, exact)


@twins
def test_nothing_but_masked_scores(twin):
    """A head that no tile reaches."""
    got = run(twin, *inputs(), mask=np.zeros((1, 1, 1, 1), bool), record=Record())
    assert np.all(np.isneginf(got.lse))
    assert all(np.all(getattr(got, name) == 0.0) for name in ("out", "dq", "dk", "dv"))
    assert all(s.nan.sum() == 0 for s in got.trace.stats.values())


@twins
@pytest.mark.parametrize("where", ["q", "k", "v", "do"])
def test_infinities_of_inputs_are_results_and_no_errors(twin, where):
    """A warning, a shift by a negative number or an index beyond a table; rows that do not see them
    are as they were.
    """
    arrays = dict(zip(("q", "k", "v", "do"), inputs(), strict=True))
    plain = run(twin, *arrays.values(), is_causal=True)
    arrays[where][0, 30, 0, 3], arrays[where][0, 33, 0, 5] = np.inf, np.nan
    got = run(twin, *arrays.values(), is_causal=True)
    # an infinite key times a masked 0 is NaN in a product, as on a GPU
    if where == "do" or (where == "q" and TWINS[twin].plan.block("Q") is None):
        for name in ("out", "lse", "dq"):
            assert np.array_equal(getattr(got, name)[:, :30], getattr(plain, name)[:, :30]), name
    for name in RESULTS:
        assert np.array_equal(getattr(got, name)[:, :, 1], getattr(plain, name)[:, :, 1]), name
    assert not all(
        np.isfinite(getattr(got, name)[:, :, 0]).all() for name in ("out", "dq", "dk", "dv")
    )


@twins
def test_grouped_heads_are_those_of_repeated_keys(twin):
    """Key heads paired with the wrong query heads; gradients of a group that miss a head."""
    q, k, v, do = inputs(key_heads=1)
    grouped = run(twin, q, k, v, do, is_causal=True)
    both = run(twin, q, np.repeat(k, 2, 2), np.repeat(v, 2, 2), do, is_causal=True)
    for name in ("out", "lse", "dq"):
        assert np.array_equal(getattr(grouped, name), getattr(both, name)), name
    bound = 2.0 ** (1 - TWINS[twin].plan[Site.DK_OUT].format.precision)
    for name in ("dk", "dv"):
        added, whole = getattr(both, name).sum(axis=2), getattr(grouped, name)[:, :, 0]
        assert whole.shape == added.shape
        assert np.abs(added - whole).max() <= bound * np.abs(whole).max(), name


@twins
def test_query_tiles_do_not_matter_to_a_row(twin):
    """A row that takes something from its neighbours, or from entries that pad the last tile."""
    # which is of query tiles by its nature
    arrays = inputs(tokens=37)
    plan = replace(TWINS[twin].plan, first_tile_apart=False)
    runs = [run(twin, *arrays, plan=plan, is_causal=False, block_q=n) for n in (8, 16, 64)]
    for other in runs[1:]:
        assert np.array_equal(runs[0].out, other.out) and np.array_equal(runs[0].lse, other.lse)


def test_the_first_of_several_query_tiles_is_apart():
    """Rows of another tile that divide by the wrong row sum, the first tile's rows that do not, or
    a head that is one tile.
    """
    twin, arrays = "qiu-yao-compiled", inputs(tokens=37)
    apart, alike, wide = (
        TWINS[twin].plan.changed(*words)
        for words in ([], ["first_tile_apart=false"], ["first_tile_apart=false", "LANES=fp32"])
    )
    first, other, whole = (
        run(twin, *arrays, plan=plan, block_q=16).out for plan in (apart, alike, wide)
    )
    assert np.array_equal(first[:, :16], whole[:, :16]) and np.array_equal(
        first[:, 16:], other[:, 16:]
    )
    assert not np.array_equal(first[:, :16], other[:, :16])
    assert np.array_equal(
        run(twin, *arrays, plan=apart, block_q=64).out,
        run(twin, *arrays, plan=alike, block_q=64).out,
    )


@pytest.mark.parametrize("engine", ["numpy", pytest.param("xla", marks=pytest.mark.thorough)])
def test_the_maxima_of_a_rescaled_sum(engine):
    """l is multiplied by alpha of the rounded maxima, or of the others, in the first tile or in
    all; O always by that of the rounded ones.
    """
    arrays, wide = inputs(tokens=48, heads=1, key_heads=1), "AL=fp32 AO=fp32 first_tile_apart=false"
    base = TWINS["qiu-yao-compiled"].plan.changed(*wide.split())

    def ran(*words, engine=engine):
        plan = base.changed(*words)
        found = examine(
            *arrays, plan=plan, engine=engine, record=None, block_q=16, block_k=16, scale=0.3
        )
        return np.asarray(found.lse)

    kept, first, every = (ran(f"rescaled_sum={n}") for n in ("kept", "first-tile", "unrounded"))
    assert not np.array_equal(kept[:, :16], every[:, :16])
    assert np.array_equal(first[:, :16], every[:, :16])
    assert np.array_equal(first[:, 16:], kept[:, 16:])
    assert np.array_equal(first, ran("rescaled_sum=first-tile", engine="xla"))
    # without the rounding of the maxima they are the same
    assert np.array_equal(ran("MS=fp32"), ran("MS=fp32", "rescaled_sum=unrounded"))


@twins
def test_heads_are_computed_apart(twin):
    """State of one head in another."""
    arrays = inputs()
    both = run(twin, *arrays)
    alone = run(twin, *(x[:, :, 1:] for x in arrays))
    for name in RESULTS:
        assert np.array_equal(getattr(both, name)[:, :, 1:], getattr(alone, name)), name


def unseen(plan):
    """Sums of a plan whose additions no trace has: the forward's again, and delta of the
    probabilities.
    """
    again = {f"{Site.S_B}.step"} if plan.saved_p else set()
    return again | ({f"{Site.DELTA}.step"} if plan.delta_from is DeltaFrom.P_DP else set())


@twins
def test_a_trace_has_the_sites_of_the_plan_and_changes_nothing(twin):
    """A site that the plan says it has and no step rounds, or the other way; additions of warps
    that no trace can count.
    """
    plan = TWINS[twin].plan
    steps = tuple(s for s in PRODUCTS if plan.accumulator(s).order is not Order.NATIVE)
    plain, got = (
        run(twin, *inputs(key_heads=1), is_causal=True, record=r)
        for r in (None, Record(steps=steps))
    )
    for name in RESULTS:
        assert np.array_equal(getattr(plain, name), getattr(got, name)), name
    sites = {name for name in got.trace.stats if "." not in name}
    no_delta = (
        {Site.OD} if plan.delta_from is DeltaFrom.P_DP else set()
    )  # of which in_traces knows nothing
    assert (
        sites == {str(s) for s in Site if in_traces(plan, s)} - no_delta - OF_SINKS
    )  # the call has none
    assert {name for name in got.trace.stats if "." in name} == {
        f"{s}.step" for s in steps
    } - unseen(plan)
