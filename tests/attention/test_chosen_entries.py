"""Which entries an injection hits: a share of them, or a mask; in attention and in operations."""

import numpy as np
import pytest

from roundscope.attention import AddUlps, Injection, Noise, Record, SetTo, Site
from roundscope.emu.roundings.random import event_bits
from roundscope.events.injection import InjectionBase
from roundscope.events.recorder import RecordBase
from roundscope.operations.run import run as operation
from tests.attention import small
from tests.attention.small import B, G, N, S, T

UNSEEN = 768.0  # which no event here has by itself, and a number of BF16
SHARE = 0.125
LONG = [np.tile(x, (1, 2, 1, 1)) for x in small.INPUTS[:3]]  # enough entries for a count


def hits(inject, site="P", **options):
    """Return where an event has the value that was put in, and what the trace counted."""
    backward = site in ("DS", "DQ")
    own = {"inputs": small.INPUTS if backward else small.INPUTS[:3]} | options
    trace = small.run(inject=inject, record=Record(events=(site,)), **own).trace
    return trace.events[site][1] == UNSEEN, trace.hits[site]


def at(site="P", **where):
    return Injection(site=site, what=SetTo(value=UNSEEN), **where)


class TestShare:
    def test_a_share_is_drawn_by_a_fair_and_seeded_coin(self):
        """A share of another size, of every n-th entry, or the same in each head and seed."""
        found, count = hits(at(share=SHARE, seed=5), plan="fa2-bf16", inputs=LONG)
        n, heads = found.size, found.reshape(B * N, -1).astype(float)
        spread = np.sqrt(SHARE * (1 - SHARE) * n)
        assert abs(found.sum() - SHARE * n) < 4 * spread and count.sum() == found.sum()
        for axis in (2, 3):  # rows and columns: no stripes
            mean = found.mean(axis)
            expected = SHARE * (1 - SHARE) / found.shape[axis]
            assert mean.var() == pytest.approx(expected, rel=0.5)
        centered = heads - SHARE
        apart = centered @ centered.T / (heads.shape[1] * SHARE * (1 - SHARE))
        assert np.abs(apart - np.diag(np.diag(apart))).max() < 5 / np.sqrt(heads.shape[1])
        other = hits(at(share=SHARE, seed=6), plan="fa2-bf16", inputs=LONG)[0]
        assert np.mean(found & other) == pytest.approx(SHARE**2, abs=0.005)

    def test_a_smaller_share_is_a_part_of_a_larger_one_and_a_whole_one_is_all(self):
        little, much, whole = (hits(at(share=x))[0] for x in (0.1, 0.5, 1.0))
        assert little.any() and not (little & ~much).any() and whole.all()

    @pytest.mark.parametrize("site", ["P", "DS", "K"])
    def test_it_depends_on_neither_tiles_nor_the_division_of_an_injection(self, site):
        """An arm that changes with what it is compared across."""
        rows = S if site == "K" else T
        options = {"plan": "qiu-yao", "is_causal": True}
        want, _ = hits(at(site, share=0.2, seed=2), site, **options)
        parts = [at(site, share=0.2, seed=2, rows=range(lo, lo + 8)) for lo in range(0, rows, 8)]
        got = hits(parts, site, **options, blocks=(8, 16))[0]
        seen = np.tri(T, S, dtype=bool) if site != "K" else np.ones((), bool)
        assert want.any() and np.array_equal(want & seen, got & seen)

    @pytest.mark.thorough  # compiles attention for XLA; operations below share the hook
    def test_engines_hit_the_same_entries_and_count_them(self):
        """Another choice, or count, under XLA: of a share, and of a mask."""
        mask = np.random.default_rng(1).random((B, N, T, small.H)) < 0.2
        inject = [
            at("P", share=0.2, seed=7, heads=(0, 3)),
            Injection(site="OUT", what=Noise(ulps=2.0), mask=mask),
        ]
        options = {"is_causal": True, "record": Record(), "inputs": small.INPUTS[:3]}
        runs = [small.run("fa2-bf16", inject, engine=e, **options) for e in ("numpy", "xla")]
        assert np.array_equal(*(np.asarray(r.out) for r in runs))
        for site in ("P", "OUT"):
            assert np.array_equal(*(r.trace.hits[site] for r in runs))
        assert runs[0].trace.hits["OUT"].sum() == mask.sum()
        counted = runs[0].trace.hits["P"].sum((2, 3))
        seen = np.tri(T, S, dtype=bool)
        bits = [
            event_bits(
                np, 7, head * 64 + Site.P.stream, np.arange(T)[:, None], np.arange(S), 2**31 + 1
            )
            for head in range(B * N)
        ]
        want = [((x < 0.2 * 2**31) & seen).sum() * (h % N in (0, 3)) for h, x in enumerate(bits)]
        assert counted.reshape(-1).tolist() == want


class TestMask:
    def test_a_mask_hits_its_entries_alone(self):
        """Axes mixed up, heads that share one mask, entries beyond a tile."""
        mask = np.random.default_rng(1).random((B, N, T, S)) < 0.2
        found, count = hits(at(mask=mask), plan="fa2-bf16", blocks=(16, 16))
        assert np.array_equal(found, mask) and count.sum() == mask.sum()

    def test_it_meets_other_selections_and_leading_axes_may_be_left_out(self):
        mask = np.random.default_rng(1).random((T, S)) < 0.5
        found, _ = hits(at(mask=mask, rows=range(4, 9), heads=1))
        want = np.zeros((B, N, T, S), bool)
        want[:, 1, 4:9] = mask[4:9]
        assert np.array_equal(found, want)
        row = hits(at("L", mask=np.arange(T) == 3), "L", blocks=(8, S))[0]
        assert np.array_equal(row.reshape(B, N, T).any((0, 1)), np.arange(T) == 3)

    @pytest.mark.parametrize("site", ["Q", "K", "V", "OUT", "LSE", "DELTA", "DQ_OUT", "DV_OUT"])
    def test_an_event_of_each_shape_has_masks(self, site):
        """A mask of queries read along keys, features or query heads where keys are meant."""
        own = {"Q": T, "OUT": T, "DQ_OUT": T, "LSE": T, "DELTA": T}.get(site, S)
        heads = G if own == S else N
        last = () if site in ("LSE", "DELTA") else (small.H,)
        mask = np.random.default_rng(1).random((B, heads, own, *last)) < 0.2
        found, count = hits(at(site, mask=mask), site, plan="fa2-bf16", inputs=small.INPUTS)
        assert np.array_equal(found, mask) and count.sum() == mask.sum()
        wrong = mask[:, :, 1:]
        with pytest.raises(ValueError, match=rf"{site}:mask of shape .*as \({own}"):
            hits(at(site, mask=wrong), site, plan="fa2-bf16", inputs=small.INPUTS)

    @pytest.mark.parametrize("site", ["O", "DQ", "DK"])
    def test_an_event_of_each_tile_has_masks(self, site):
        """A mask that is read by the place in a tile."""
        rows = S if site == "DK" else T
        mask = np.random.default_rng(1).random((B, N, rows, small.H)) < 0.2
        options = {"plan": "fa2-bf16", "inputs": small.INPUTS, "blocks": (8, 8)}
        found, _ = hits(at(site, mask=mask), site, **options)
        assert np.array_equal(found, np.broadcast_to(mask[:, :, None], found.shape))

    def test_equal_masks_make_equal_injections(self):
        """A program that is compiled again for each call, or shared by different masks."""
        one, two = (at(mask=np.eye(T, S, dtype=bool)) for _ in range(2))
        assert one == two and hash(one) == hash(two) and one != at(mask=~np.eye(T, S, dtype=bool))


X = {"x": np.random.default_rng(0).standard_normal((3, 40, 16)).astype(np.float32)}
SHARED = {"share": 0.3, "seed": 4}
MASK = np.random.default_rng(1).random((120, 16)) < 0.3


@pytest.mark.parametrize("where", [SHARED, {"mask": MASK}], ids=["share", "mask"])
def test_operations_have_shares_and_masks(where):
    """A selection that only attention reads, or another one under XLA."""
    inject = [InjectionBase(site="OUT", what=SetTo(value=77.0), **where)]
    runs = [
        operation("rms_norm", "fp32", X, inject=inject, record=RecordBase(), engine=engine)
        for engine in ("numpy", "xla")
    ]
    found = [np.asarray(r.outputs["out"]).reshape(120, 16) == 77.0 for r in runs]
    assert np.array_equal(*found) and runs[0].hits == runs[1].hits == {"OUT": int(found[0].sum())}
    assert 0.25 < found[0].mean() < 0.35
    if "mask" in where:
        assert np.array_equal(found[0], MASK)


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda: at(share=0.0), ValueError, "share=0.0: give a part of the entries above 0"),
        (lambda: at(share=1.5), ValueError, "share=1.5"),
        (lambda: at(share="0.1"), TypeError, "share='0.1': give a number"),
        (lambda: at(share=0.1, seed=2**32), ValueError, "a seed is a whole number from 0 to 2^32"),
        (lambda: at(mask=np.ones((T, S))), TypeError, "mask: an array of float64; give booleans"),
        (lambda: at(mask=np.zeros((T, S), bool)), ValueError, "would do nothing"),
        (lambda: at(mask=np.ones(T, bool)), ValueError, "one entry per queries x keys"),
        (lambda: hits(at(mask=np.ones((T, T), bool))), ValueError, f"{N}, {T}, {S}"),
        (
            lambda: operation(
                "rms_norm",
                "fp32",
                X,
                inject=[InjectionBase(site="OUT", what=AddUlps(ulps=1), mask=MASK[1:])],
            ),
            ValueError,
            "(120, 16)",
        ),
    ],
)
def test_bad_selections_are_refused(make, kind, said):
    """A selection that hits nothing, or other entries than were meant."""
    with pytest.raises(kind) as error:
        make()
    assert said in str(error.value)


@pytest.mark.parametrize("call", ["full", "causal", "window", "masked"])
def test_a_trace_says_which_scores_exist(call):
    """A mean over masked scores, whose numbers look like others."""
    mask = np.random.default_rng(3).random((B, 1, T, S)) < 0.6
    mask[:, :, 5] = False
    options = {"causal": {"is_causal": True}, "window": {"window": 4}, "masked": {"mask": mask}}
    trace = small.run(
        "fa2-bf16",
        inputs=small.INPUTS,
        record=Record(events=("S", "P", "DS", "OUT")),
        **options.get(call, {}),
    ).trace
    assert set(trace.exists) == {"S", "P", "DS"}
    for name in trace.exists:
        before, after = trace.masked(name)
        stats = trace.stats[name].total()
        assert after.count() == stats.n
        assert (after - before).sum() == pytest.approx(stats.error, rel=1e-9, abs=1e-12)
    with pytest.raises(ValueError, match="no events of scores"):
        trace.masked("OUT")
