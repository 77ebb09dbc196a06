"""An accumulator of O that is flushed every n tiles, against the same sums in NumPy's float32;
engines, events, refusals.
"""

import numpy as np
import pytest

from roundscope.attention import Injection, Plan, Record, attend, examine

TILE, TILES = 4, 7
F = np.float32


def given(seed=0, queries=3):
    """q = 1 and keys that grow by 1 from tile to tile: with exp in base 2 and scale ln 2, P = 1 and
    alpha = 1/2.
    """
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(TILES, dtype=F), TILE)[None, :, None, None]
    return np.ones((1, queries, 1, 1), F), k, rng.normal(size=(1, TILES * TILE, 1, 2)).astype(F)


def by_hand(v, every):
    """O / l of one row by vLLM's loop: O is halved, flushed if it is time, and then P V is added,
    in FP32.
    """
    a, beta, o, l = np.zeros(v.shape[1], F), F(1), np.zeros(v.shape[1], F), F(0)
    for n, tile in enumerate(v.reshape(TILES, TILE, -1)):
        alpha = F(0.5) if n else F(0)
        o, l, beta = alpha * o, alpha * l, alpha * beta
        if n and n % every == 0:
            a, o, beta = beta * a + o, np.zeros_like(o), F(1)
        part = np.zeros_like(o)
        for row in tile:
            part = part + row
        o, l = o + part, l + F(TILE)
    return (beta * a + o) / l


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_it_is_the_loop_in_float32(every):
    """A flush before alpha, after P V, at the wrong tile, or with the wrong product of alphas."""
    q, k, v = given()
    plan = Plan.preset("fp32").changed("exp=base2", "log2_e=scale", f"flushed_tiles={every}")
    got = np.asarray(
        attend(q, k, v, plan=plan, scale=float(np.log(2)), block_q=2, block_k=TILE, engine="numpy")
    )
    assert np.array_equal(got[0, 0, 0].view(np.int32), by_hand(v[0, :, 0], every).view(np.int32))


def random(seed=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(1, 70, 2, 16)).astype(F) for _ in range(4)]


CALL = {"block_q": 16, "block_k": 8, "record": Record()}
FP8 = Plan.preset("fa3-fp8")


@pytest.mark.parametrize("is_causal", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_engines_agree(is_causal):
    """A bit in which NumPy and XLA differ; causal tiles that are skipped and counted."""
    q, k, v, do = random()
    call = CALL | {"plan": FP8.changed("flushed_tiles=2"), "is_causal": is_causal}
    a, b = (examine(q, k, v, do, engine=engine, **call) for engine in ("numpy", "xla"))
    for part in ("out", "lse", "dq", "dk", "dv"):
        assert np.array_equal(
            np.asarray(getattr(a, part)).view(np.int32),
            np.asarray(getattr(b, part)).view(np.int32),
        ), part


@pytest.mark.parametrize("is_causal", [False, True])
def test_one_that_is_never_full_changes_nothing(is_causal):
    """A flush at the end."""
    plain, never = (
        examine(
            *random(), plan=FP8.changed(f"flushed_tiles={every}"), is_causal=is_causal, **CALL
        ).out
        for every in (0, 100)
    )
    assert np.array_equal(plain, never)


def test_an_injection_happens_where_o_is_flushed():
    """An error of OA in tiles that flush nothing: 9 tiles, of which 2, 4, 6 and 8 begin with a
    flush.
    """
    q, k, v, _ = random()
    call = {
        "plan": Plan.preset("fa2-bf16").changed("flushed_tiles=2", "OUT=fp32"),
        "block_q": 16,
        "block_k": 8,
        "engine": "numpy",
    }
    clean = attend(q, k, v, **call)
    moved = [
        not np.array_equal(
            clean, attend(q, k, v, **call, inject=[Injection.parse(f"OA:bias=1:tiles={n}")])
        )
        for n in range(9)
    ]
    assert [n for n, is_moved in enumerate(moved) if is_moved] == [2, 4, 6, 8]
