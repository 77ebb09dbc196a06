"""Masks in the fused kernels, interpreted: the bits of the other engines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import AddUlps, Injection, Plan, Record, Site, attend, examine
from roundscope.attention.engines.kernels import backward as pallas_backward
from roundscope.attention.engines.kernels.tiles import masks
from roundscope.attention.plans.traced import head_plans
from roundscope.attention.tiles.loops import Setup, tile_at
from roundscope.emu.backends.numba.ops import numpy_ops
from tests.checks.engines import RESULTS, bits, normal

HOPPER = Plan.preset("fa2-bf16@hopper")
TILES = {"block_q": 32, "block_k": 16}
SIZES = (
    (2, 40, 2, 16),
    (2, 56, 1, 16),
    (2, 56, 1, 16),
    (2, 40, 2, 16),
)  # 2 query heads to a key head; tiles that end beyond the rows


def drawn():
    """Masks by name: scores here and there, padding, and rows, keys and tiles without any score."""
    rng = np.random.default_rng(5)
    padding = np.ones((2, 1, 1, 56), bool)
    padding[0, ..., 17:], padding[1, ..., :30] = False, False
    empty = np.ones((40, 56), bool)
    empty[3:6], empty[:, 20:23], empty[:32, 16:32] = False, False, False
    return {
        "half": rng.random((2, 2, 40, 56)) < 0.5,
        "few": rng.random((2, 2, 40, 56)) < 0.01,
        "padding": padding,
        "empty": empty,
        "nothing": np.zeros((1, 1, 1, 1), bool),
        "one head": np.arange(2)[None, :, None, None] == np.zeros((1, 1, 40, 56)),
    }


MASKS = drawn()


def inputs():
    return [2.0 * normal(90 + i, *s) for i, s in enumerate(SIZES)]


def assert_equal(plan, mask, *, arrays=None, **options):
    options = {"plan": plan, "mask": mask, "record": None, **TILES, **options}
    q, k, v, do = inputs() if arrays is None else arrays
    ours, theirs = (
        examine(q, k, v, do, engine=engine, **options) for engine in ("pallas", "numpy")
    )
    for name in RESULTS:
        assert np.array_equal(bits(getattr(ours, name)), bits(getattr(theirs, name))), name


@pytest.mark.parametrize("name", MASKS)
def test_on_tensor_cores(name):
    """A score, a row, a key or a tile that is taken for masked, or for there."""
    assert_equal(HOPPER, MASKS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("plan", ["fa2-bf16", "qiu-yao", "all:e4m3fn", "fa2", "cudnn"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_other_plans(name, plan, is_causal):
    assert_equal(plan, MASKS[name], is_causal=is_causal)


@pytest.mark.parametrize(
    "plan",
    [HOPPER, pytest.param("qiu-yao", marks=pytest.mark.thorough)],
    ids=["one kernel", "by way of scores"],
)
def test_causal_and_in_parts(monkeypatch, plan):
    """A program that reads the mask of another part's keys, or scores above the diagonal."""
    jax.clear_caches()  # what was compiled has its own room
    monkeypatch.setattr(pallas_backward, "SCORE_BYTES", 4 * (2 * 64 * 16) * 8)
    assert_equal(plan, MASKS["half"], is_causal=True)
    jax.clear_caches()


@pytest.mark.parametrize("is_causal", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_infinite_values_of_masked_keys(is_causal):
    """0 times infinity where a tile is computed, and nothing where it is passed over, or where no
    key is both unmasked and not in the future.
    """
    q, k, v, do = inputs()
    k[:, 20:40], v[:, 20:40] = np.inf, -np.inf
    assert_equal(HOPPER, MASKS["padding"], arrays=(q, k, v, do), is_causal=is_causal)


@pytest.mark.thorough
def test_injections_hit_the_same_scores():
    """Places and random bits of the whole, and errors where no score exists."""
    places = {"rows": range(1, 30, 2), "columns": range(8, 50, 5)}
    inject = tuple(
        Injection(site=site, what=AddUlps(ulps=1.0), **places) for site in (Site.P, Site.DS)
    )
    assert_equal(HOPPER.at("P_B", "bf16", "stochastic"), MASKS["half"], inject=inject)


@pytest.mark.thorough
def test_a_traced_mask_and_a_plan_for_each_head():
    """A mask that is a constant, and the mask of another head."""
    plans = head_plans([HOPPER, HOPPER.at("O", "bf16")])
    q, k, v, do = map(jnp.asarray, inputs())

    def run(engine, q, k, v, mask):
        out = attend(q, k, v, plan=plans, mask=mask, engine=engine, **TILES)
        return (out * do).sum(), out

    with jax.enable_x64(True):
        ours, theirs = (
            jax.jit(jax.grad(run, (1, 2, 3), has_aux=True), static_argnums=0)(
                engine, q, k, v, MASKS["half"]
            )
            for engine in ("pallas", "xla")
        )
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.array_equal(bits(x), bits(y))


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_exists_is_what_a_tile_says(is_causal):
    """A row or a key of a tile that has no score, or that has one."""
    setup = Setup(
        plan=HOPPER,
        queries=40,
        keys=56,
        heads=2,
        key_heads=1,
        scale=1.0,
        whole_scale=1.0,
        is_causal=is_causal,
        block_q=32,
        block_k=16,
    )
    mask = np.zeros((4, 64, 64), bool)
    mask[:, :40, :56] = MASKS["half"].reshape(4, 40, 56) & (np.arange(56) != 20)
    mask[:, 10, :16] = False
    found = masks(setup, jnp.asarray(mask))
    assert found is not None
    for h in range(4):
        for i in range(2):
            for j in range(4):
                rows, keys = slice(32 * i, 32 * i + 32), slice(16 * j, 16 * j + 16)
                want = tile_at(numpy_ops(), setup, h, i, j, mask[h, rows, keys], None)
                assert np.array_equal(found.scores[h, rows, keys] != 0, want.mask)
                assert np.array_equal(found.rows[h, j, rows] != 0, want.mask.any(1))
                assert np.array_equal(found.keys[h, i, keys] != 0, want.keys)


def test_traces_are_refused():
    with pytest.raises(ValueError, match="no traces of calls with a mask; use engine='xla'"):
        examine(*inputs(), plan=HOPPER, mask=MASKS["half"], engine="pallas", record=Record())
