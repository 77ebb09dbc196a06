"""Injections touch what they name and what depends on it; each does what it says."""

import itertools
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import (
    AddUlps,
    Bias,
    Exact,
    FlipBit,
    Injection,
    Noise,
    Record,
    SetTo,
    Site,
)
from roundscope.emu.roundings.random import event_bits
from tests.attention import small
from tests.attention.small import B, H, N, T
from tests.checks.engines import RESULTS, bits


def run(plan, inject=(), **options):
    """A small call, without a trace unless one is asked for: results have the same bits."""
    return small.run(plan, inject, **{"record": None} | options)


@cache
def base(plan, causal):
    """The call without an injection."""
    return run(plan, is_causal=causal)


# batch 1, query head 2 (key head 1), row or key 13, feature 5, column 6; what may change in each
# result, and must somewhere
ALL = slice(None)
AT_ROW = (1, 13, 2)
OF_GROUP = (1, ALL, 1)  # dk, dv of the key head
LATER = slice(13, None)  # queries that see key 13 under a causal mask


def _of_key_heads(batch):
    """Key head 1 has query heads 2 and 3; under a causal mask queries from 13 on see key 13."""
    heads, where = slice(2, 4), {"batch": batch, "heads": 1, "rows": 13}
    later, group = (batch, LATER, heads), (batch, ALL, 1)
    return [
        (Site.DK_OUT, where, {"dk": (batch, 13, 1)}),
        (Site.DV_OUT, where, {"dv": (batch, 13, 1)}),
        (
            Site.V,
            where | {"features": 5},
            {"out": (*later, 5), "delta": later, "dq": later, "dk": group},
        ),
        (
            Site.K,
            where | {"features": 5},
            {"out": later, "lse": later, "delta": later, "dq": later, "dk": group, "dv": group},
        ),
    ]


LOCAL = [
    # site, selection, {result: where}; results that are not named must keep every bit
    (Site.PV, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (Site.AO, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (
        Site.O,
        {"rows": 13, "features": 5},
        {"out": (*AT_ROW, 5), "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP},
    ),
    (
        Site.O,
        {"rows": 13, "tiles": 1},
        {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP},
    ),
    (
        Site.OUT,
        {"rows": (13,), "features": range(5, 6)},
        {"out": (*AT_ROW, 5), "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP},
    ),
    (Site.INV, {"rows": 13}, {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP}),
    (
        Site.P,
        {"rows": 13, "columns": 6},
        {"out": AT_ROW, "dq": AT_ROW, "delta": AT_ROW, "dk": OF_GROUP},
    ),
    (
        Site.L,
        {"rows": 13},
        {
            "out": AT_ROW,
            "lse": AT_ROW,
            "dq": AT_ROW,
            "delta": AT_ROW,
            "dk": OF_GROUP,
            "dv": OF_GROUP,
        },
    ),
    (
        Site.EXP,
        {"rows": 13, "columns": 6},
        {
            "out": AT_ROW,
            "lse": AT_ROW,
            "dq": AT_ROW,
            "delta": AT_ROW,
            "dk": OF_GROUP,
            "dv": OF_GROUP,
        },
    ),
    (
        Site.S,
        {"rows": 13, "columns": 6},
        {
            "out": AT_ROW,
            "lse": AT_ROW,
            "dq": AT_ROW,
            "delta": AT_ROW,
            "dk": OF_GROUP,
            "dv": OF_GROUP,
        },
    ),
    (Site.LSE, {"rows": 13}, {"lse": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (Site.DELTA, {"rows": 13}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP}),
    (Site.DELTA, {"rows": 13, "tiles": 0}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP}),
    (Site.S_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.SCALED_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.EXP_B, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1), "dv": (1, 6, 1)}),
    (Site.P_B, {"rows": 13, "columns": 6}, {"dv": (1, 6, 1)}),
    (Site.DP, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DPD, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DS, {"rows": 13, "columns": 6}, {"dq": AT_ROW, "dk": (1, 6, 1)}),
    (Site.DQ, {"rows": 13, "features": 5}, {"dq": (*AT_ROW, 5)}),
    (Site.DK, {"rows": 13, "features": 5}, {"dk": (1, 13, 1, 5)}),
    (Site.DV, {"rows": 13, "features": 5, "tiles": 1}, {"dv": (1, 13, 1, 5)}),
    (Site.DQ_OUT, {"rows": 13, "features": 5}, {"dq": (*AT_ROW, 5)}),
    (Site.DO, {"rows": 13}, {"delta": AT_ROW, "dq": AT_ROW, "dk": OF_GROUP, "dv": OF_GROUP}),
    (
        Site.Q,
        {"rows": 13, "features": 5},
        {
            "out": AT_ROW,
            "lse": AT_ROW,
            "dq": AT_ROW,
            "delta": AT_ROW,
            "dk": OF_GROUP,
            "dv": OF_GROUP,
        },
    ),
    *_of_key_heads(0),
    *_of_key_heads(1),
]


@pytest.mark.parametrize(
    ("site", "selection", "reach"), LOCAL, ids=lambda x: str(x) if isinstance(x, Site) else ""
)
@pytest.mark.parametrize("plan", ["qiu-yao", "fa2-bf16"])
def test_touches_what_it_names_and_what_depends_on_it(plan, site, selection, reach):
    """Rows, heads, batches, features or tiles mixed up; an event whose value another path does not
    use.
    """
    if site is Site.PV and plan == "fa2-bf16":
        return  # refused: test_no_injection_at_an_event_that_the_plan_does_not_have
    selection = {"batch": 1, "heads": 2} | selection
    hurt = run(plan, [Injection(site=site, what=Bias(value=0.75), **selection)], is_causal=True)
    for name in RESULTS:
        changed = bits(getattr(hurt, name)) != bits(getattr(base(plan, True), name))
        may = np.zeros(changed.shape, bool)
        if name in reach:
            may[reach[name]] = True
            assert changed.any(), f"{name} did not change"
        assert not np.any(changed & ~may), (
            f"{name} changed elsewhere, at {np.argwhere(changed & ~may)[:3].tolist()}"
        )


def test_an_injection_of_nothing_is_nothing():
    """The injected path (guarded products, extra sums) with other bits than the plain one."""
    for plan, causal in itertools.product(("qiu-yao", "fa2-bf16"), (False, True)):
        hurt = run(
            plan,
            [Injection(site=s, what=Bias(value=0.0)) for s in (Site.O, Site.P, Site.DQ)],
            is_causal=causal,
        )
        for name in RESULTS:
            assert np.array_equal(getattr(hurt, name), getattr(base(plan, causal), name)), name


# --- each What, at OUT, where the result is the event
# ---------------------------------------------------------


def at_out(what, plan="fa2-bf16", **selection):
    """(without, with) the injection at OUT, as float64."""
    a, b = (run(plan, i).out for i in ((), [Injection(site=Site.OUT, what=what, **selection)]))
    return a.astype(np.float64), b.astype(np.float64)


def ulp_bf16(x):
    return 2.0 ** (np.frexp(x)[1] - 1.0 - 7)


def test_add_ulps():
    a, b = at_out(AddUlps(ulps=-1.5), rows=range(2, 20, 3))
    want = a.copy()
    want[:, 2:20:3] += -1.5 * ulp_bf16(a[:, 2:20:3])
    assert np.array_equal(b, want)


def test_bias():
    a, b = at_out(Bias(value=0.125))
    assert np.array_equal(b, (a + 0.125).astype(np.float32))


def test_set_to():
    a, b = at_out(SetTo(value=3.0), features=(1, 7))
    a[..., [1, 7]] = 3.0
    assert np.array_equal(b, a)


@pytest.mark.parametrize(
    ("plan", "dtype", "bit"),
    [
        ("fa2-bf16", ml_dtypes.bfloat16, 0),
        ("fa2-bf16", ml_dtypes.bfloat16, 6),
        ("fa2-bf16", ml_dtypes.bfloat16, 7),
        ("fa2-bf16", ml_dtypes.bfloat16, 15),
        ("all:fp16", np.float16, 3),
        ("all:fp16", np.float16, 10),
        ("all:e4m3fn", ml_dtypes.float8_e4m3fn, 2),
        ("all:e4m3fn", ml_dtypes.float8_e4m3fn, 3),
        ("all:e5m2", ml_dtypes.float8_e5m2, 7),
    ],
)
def test_flip_bit(plan, dtype, bit):
    """Bits counted from the wrong end, or of another code; subnormal results."""
    a, b = at_out(FlipBit(bit=bit), plan)
    code = a.astype(dtype).view(np.uint16 if np.dtype(dtype).itemsize == 2 else np.uint8)
    want = (code ^ code.dtype.type(1 << bit)).view(dtype).astype(np.float64)
    assert np.array_equal(b, want, equal_nan=True)


def test_exact_is_the_value_before_rounding():
    a, b = at_out(Exact())
    before, after = run("fa2-bf16", record=Record(events=(Site.OUT,))).trace.events["OUT"]
    assert np.array_equal(after.swapaxes(1, 2), a)
    assert np.array_equal(b, before.swapaxes(1, 2).astype(np.float32))


def test_noise_is_a_fair_coin():
    """A noise with a mean, or one that depends on tiles; the same coin for every head."""
    a, b = at_out(Noise(ulps=2.0, seed=3))
    coin = (b - a) / (2 * ulp_bf16(a))
    assert set(np.unique(coin)) == {-1.0, 1.0}
    assert abs(coin.sum()) < 5 * np.sqrt(coin.size)
    assert np.array_equal(b, at_out(Noise(ulps=2.0, seed=3))[1])
    assert not np.array_equal(b, at_out(Noise(ulps=2.0, seed=4))[1])
    flat = coin.swapaxes(1, 2).reshape(B * N, -1)
    assert np.abs(flat @ flat.T - T * H * np.eye(B * N)).max() < 5 * np.sqrt(T * H)
    other = run(
        "fa2-bf16", [Injection(site=Site.OUT, what=Noise(ulps=2.0, seed=3))], blocks=(5, 8)
    ).out
    assert np.array_equal(other, b)


def test_noise_has_random_bits_of_its_own():
    """A noise with the random bits of the stochastic rounding at the same site, by which the two
    errors of an entry would depend on each other.
    """
    a, b = at_out(Noise(ulps=2.0, seed=3))
    coin = ((b - a) / (2 * ulp_bf16(a))).swapaxes(1, 2).reshape(B * N, T, H)
    for head in range(B * N):
        own = event_bits(
            np, 3, head * 64 + Site.OUT.stream, np.arange(T)[:, None], np.arange(H), 2**31
        )
        assert np.array_equal(coin[head], own % 2 * 2 - 1), head


def test_noise_at_scores_does_not_depend_on_tiles():
    """A noise arm that changes with the tile size it is meant to be compared across."""
    noise = [Injection(site=Site.DS, what=Noise(ulps=1.0, seed=3))]
    record = Record(events=(Site.DS,))
    signs = []
    for blocks in ((8, 8), (8, 16)):
        before, after = run("fp32", noise, blocks=blocks, record=record).trace.events["DS"]
        signs.append(after > before)
    assert np.mean(signs[0] == signs[1]) > 0.99


def test_several_injections_act_in_order():
    """A list of which only the first or last acts."""
    a, b = (
        run("fa2-bf16", i).out
        for i in (
            (),
            [
                Injection(site=Site.OUT, what=SetTo(value=1.0), rows=4),
                Injection(site=Site.OUT, what=Bias(value=0.5)),
            ],
        )
    )
    assert np.all(b[:, 4] == 1.5)
    assert np.array_equal(b[:, 5], (a[:, 5] + np.float32(0.5)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Injection(site=Site.O, what=SetTo(value=0.0), columns=3),
            ("columns=(3,)", "O", "rows or features"),
        ),
        (
            lambda: Injection(site=Site.S, what=SetTo(value=0.0), features=3),
            ("features=(3,)", "S", "rows or columns"),
        ),
        (lambda: Injection(site=Site.L, what=SetTo(value=0.0), features=3), ("features=(3,)", "L")),
        (
            lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=slice(3, None)),
            ("rows=", "stop"),
        ),
        (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=slice(-3, 5)), ("rows=",)),
        (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows="3"), ("rows='3'", "range")),
        (lambda: Injection(site=Site.O, what=SetTo(value=0.0), rows=1.5), ("rows=1.5",)),
        (
            lambda: run("fa2-bf16", [Injection(site=Site.P, what=FlipBit(bit=16))]),
            ("bit=16", "bf16", "0 to 15"),
        ),
        (lambda: run("fa2-bf16", [Injection(site=Site.P, what=FlipBit(bit=-1))]), ("bit=-1",)),
        (
            lambda: run("exact", [Injection(site=Site.P, what=FlipBit(bit=1))]),
            ("FlipBit", "P", "fp64"),
        ),
        (
            lambda: run("fa2-bf16", [Injection(site=Site.PV, what=Exact())]),
            ("site=PV", "inject at O"),
        ),
    ],
)
def test_errors_name_the_value_and_the_repair(call, words):
    """A selection that silently selects nothing."""
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("what", [Bias(value=1.0), SetTo(value=1.0), AddUlps(ulps=1.0)])
def test_no_injection_at_an_event_that_the_plan_does_not_have(what):
    """An experiment whose injection did nothing."""
    with pytest.raises(ValueError, match="PV"):
        run("fa2-bf16", [Injection(site=Site.PV, what=what)])


@pytest.mark.parametrize("rows", [-1, (3, -2), range(-3, 2)])
def test_no_negative_selections(rows):
    """An experiment whose injection did nothing: NumPy would count -1 from the end."""
    with pytest.raises(ValueError, match="rows"):
        Injection(site=Site.O, what=SetTo(value=0.0), rows=rows)
