"""The fused kernels, interpreted, against the NumPy engine; that they lower for a GPU; what they
refuse.

On a GPU: `make gpu-check`.
"""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention import (
    AddUlps,
    Bias,
    Exact,
    Injection,
    Noise,
    Plan,
    Record,
    SetTo,
    Site,
    attend,
    examine,
)
from roundscope.attention.engines.kernels import backward as pallas_backward
from roundscope.attention.engines.kernels import forward as pallas_forward
from roundscope.attention.engines.kernels import summary as pallas_summary
from roundscope.attention.settings import Options, setup_of
from roundscope.attention.tiles.loops import SomeHeads
from roundscope.emu import Accumulator, Order, round_to
from roundscope.emu.backends.kernels.convert import converted
from roundscope.emu.roundings.modes import BF16, BINARY32, E4M3, FP16, rounding
from tests.checks.engines import RESULTS, bits, differences, normal

HOPPER = "fa2-bf16@hopper"
SIZES = (
    (1, 40, 2, 16),
    (1, 56, 1, 16),
    (1, 56, 1, 16),
    (1, 40, 2, 16),
)  # 2 query heads to a key head; tiles that end beyond the rows
TILES = {"block_q": 32, "block_k": 16}


COUNTED = Record(
    ones=(Site.P, Site.ALPHA, Site.INV, Site.DV), away=True
)  # by tile, of rows; once; by tile, of keys
SAMPLED = replace(COUNTED, every=2)


def inputs(sizes=SIZES):
    return [2.0 * normal(90 + i, *s) for i, s in enumerate(sizes)]


def assert_equal(plan, *, is_causal=False, inject=(), gradient=1.0, sizes=SIZES):
    options = {"plan": plan, "is_causal": is_causal, "inject": inject, "record": None, **TILES}
    q, k, v, do = inputs(sizes)
    ours, theirs = (
        examine(q, k, v, gradient * do, engine=engine, **options) for engine in ("pallas", "numpy")
    )
    for name in RESULTS:
        assert np.array_equal(bits(getattr(ours, name)), bits(getattr(theirs, name))), name


@pytest.fixture
def in_parts(monkeypatch):
    """Room for dS of two of the four key tiles."""
    jax.clear_caches()  # what was compiled has its own room
    monkeypatch.setattr(pallas_backward, "SCORE_BYTES", 2 * (2 * 64 * 16) * 8)
    yield
    jax.clear_caches()


def test_on_tensor_cores_with_all_that_a_tile_can_be(in_parts):
    """A wrong tile, mask, head, part of the keys or order of a sum: causal, with tiles that nothing
    is in, key heads shared, rows beyond the end.
    """
    assert_equal(HOPPER, is_causal=True)


def test_sums_of_fused_multiply_adds(in_parts):
    """A part of a tile left out or taken twice, a mask of another tile: P and dS come from memory,
    16 at a time.
    """
    assert_equal("qiu-yao@hopper", is_causal=True, sizes=[(1, n, 1, 16) for n in (64, 48, 48, 64)])


def assert_traces_are_equal(plan, is_causal, sizes=SIZES, record=COUNTED):
    q, k, v, do = inputs(sizes)
    options = {"plan": plan, "is_causal": is_causal, "record": record, **TILES}
    ours, theirs = (
        examine(q, k, v, do, engine=engine, **options) for engine in ("pallas", "numpy")
    )
    assert differences(ours, theirs) == []
    assert set(theirs.trace.ones) == set(COUNTED.ones)
    assert all(theirs.trace.ones[site].any() for site in (Site.P, Site.ALPHA))


@pytest.mark.thorough
def test_a_trace_of_some_tiles(monkeypatch):
    """Sums of rows that miss a tile, a tile that is looked at twice or by nobody, one of another
    head, what an earlier one left in memory.

    Of five query tiles three are looked at, in parts of two, so that the last part has one that
    does not count.
    """
    of_columns, of_one, tiles, heads, rows = 16 * 16 + 4, 16 + 4, 2, 2, 32  # bytes of a row
    walked = 2 * (7 * of_columns + 6 * of_one)
    size = tiles * heads * rows * (walked + of_columns + 2 * of_one)
    monkeypatch.setattr(pallas_summary, "BYTES", size)
    assert_traces_are_equal(HOPPER, False, [(1, n, 2, 16) for n in (160, 48, 48, 160)], SAMPLED)


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [HOPPER, "qiu-yao@hopper", "fp32"])
@pytest.mark.parametrize("record", [COUNTED, SAMPLED], ids=["all", "sample"])
def test_traces_with_all_that_a_tile_can_be(plan, record):
    """Causal, rows and keys beyond the end; key tiles from the last to the first; ascending
    sums.
    """
    assert_traces_are_equal(plan, True, record=record)


@pytest.mark.thorough
@pytest.mark.parametrize("width", [32, 1024])
def test_a_trace_of_a_forward(width):
    """A tile that no program computes, of which memory has any bits; of equal errors another than
    the first, in the second half of 32 columns; a count of 1,024, which wraps into the next one.
    """
    q, k, v, _ = inputs([(1, 48, 1, n) for n in (16, 16, width, width)])
    ours, theirs = (
        examine(q, k, v, plan=HOPPER, is_causal=True, record=COUNTED, engine=engine, **TILES)
        for engine in ("pallas", "numpy")
    )
    assert differences(ours, theirs) == []


@pytest.mark.thorough
@pytest.mark.parametrize("is_causal", [False, True])
def test_events_are_those_of_the_engines(is_causal):
    """An event at another place, or memory that no program wrote where a tile sees nothing."""
    options = {
        "plan": HOPPER,
        "is_causal": is_causal,
        "record": Record(events=tuple(Site)),
        **TILES,
    }
    q, k, v, do = inputs()
    ours, theirs = (
        examine(q, k, v, do, engine=engine, **options) for engine in ("pallas", "numpy")
    )
    assert differences(ours, theirs) == []
    assert set(ours.trace.events) >= {
        str(site) for site in (Site.S, Site.M, Site.LSE, Site.OUT, Site.DQ, Site.DK, Site.DV_OUT)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    "plan", ["exact", "fp32", "qiu-yao", "all:e4m3fn", "fa3-fp8-scaled", "qiu-yao@hopper"]
)
def test_other_plans(plan, is_causal):
    """Ascending sums by way of memory, in every format; key tiles from the last to the first."""
    assert_equal(plan, is_causal=is_causal)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("plan", "q", "k", "score"),
    [
        ("fp32", (1.0, 205.0), (1.0, 5237765 * 2.0**-54), 1 + 2.0**-23),
        ("all:bf16", (2.0**-35, 130.0), (2.0**-35, 160.0), 163 * 128.0),
    ],
)
def test_a_step_of_a_sum_rounds_once(plan, q, k, score):
    """By way of binary64 both are ties that go to the even number below: 1 + 2^-24 + 2^-54, as 205
    x 5237765 = 2^30 + 1, and 162.5 x 128 + 2^-70.

    The first row sees one key, whose score is its L.
    """
    rows, keys = np.zeros((2, 1, 16, 1, 16))
    rows[..., :2], keys[..., :2] = q, k
    found = examine(
        rows,
        keys,
        keys,
        plan=plan,
        scale=1.0,
        is_causal=True,
        record=None,
        engine="pallas",
        block_q=16,
        block_k=16,
    )
    assert np.asarray(found.lse).flat[0] == score


@pytest.mark.thorough
def test_zeros_keep_their_sign():
    """A gradient that underflowed to -0, where no key of the next tile is seen: adding nothing
    would make it +0.
    """
    assert_equal("all:fp16@hopper", is_causal=True, gradient=2.0**-21)


@pytest.mark.thorough
def test_random_bits_and_injections():
    """Streams and places are those of the whole, wherever a program stands."""
    plan = (
        Plan.preset(HOPPER)
        .at("P", "bf16", "stochastic", seed=5)
        .at("OUT", "bf16", "stochastic")
        .at("DS", "bf16", "stochastic")
    )
    inject = (
        Injection(
            site=Site.O, what=AddUlps(ulps=1.0), heads=1, rows=range(3, 40, 4), features=(0, 7)
        ),
        Injection(site=Site.S, what=Noise(ulps=1.0, seed=9), columns=range(8, 50)),
        Injection(site=Site.P, what=Noise(ulps=1.0, seed=3), rows=range(9, 30)),
        Injection(site=Site.OUT, what=Exact(), rows=35),
        Injection(site=Site.P_B, what=Noise(ulps=1.0, seed=4), rows=range(5, 33, 3)),
        Injection(
            site=Site.DS, what=AddUlps(ulps=1.0), rows=range(1, 30, 2), columns=range(8, 40, 5)
        ),
    )
    assert_equal(plan, is_causal=True, inject=inject)


@pytest.mark.thorough
def test_the_derivative_of_attend_is_the_fused_backward():
    """Through jit and grad.

    Interpreted, it runs as XLA does, which takes 64-bit types from its caller; on a GPU nothing is
    to be said.
    """
    q, k, v, do = (jnp.asarray(x) for x in inputs())

    def gradients(engine):
        return jax.jit(
            jax.grad(
                lambda *x: (attend(*x, plan=HOPPER, engine=engine, **TILES) * do).sum(),
                argnums=(0, 1, 2),
            )
        )

    if jax.default_backend() != "gpu":
        with pytest.raises(ValueError, match=re.escape("call it with jax.enable_x64(True)")):
            gradients("pallas")(q, k, v)
    with jax.enable_x64(True):
        ours = gradients("pallas")(q, k, v)
    assert all(
        np.array_equal(bits(x), bits(y))
        for x, y in zip(ours, gradients("xla")(q, k, v), strict=True)
    )


def on_an_h200():
    """A GPU that is not there, for which kernels are lowered: from jax 0.12 on Triton's back end
    asks which.
    """
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


OTHERWISE = (
    Plan.preset(HOPPER)
    .at("P_B", "bf16", "stochastic")
    .at("DS", "e4m3fn", overflow="saturate")
    .at("L", "tf32")
)


SOME = SomeHeads(own=(0, 3), heads=4, step=4)  # of a plan, in a call with several


@pytest.mark.parametrize(
    ("plan", "record", "some", "masks"),
    [
        (HOPPER, None, None, 0),
        ("qiu-yao", None, None, 0),
        (OTHERWISE, None, SOME, 0),
        (HOPPER, COUNTED, None, 0),
        (HOPPER, SAMPLED, SOME, 0),
        (HOPPER, None, None, 1),
        ("qiu-yao", None, None, 1),
    ],
    ids=["hopper", "qiu-yao", "otherwise", "traced", "sampled", "masked", "qiu-yao masked"],
)
def test_kernels_lower_for_a_gpu(plan, record, some, masks):
    """An operation that Triton does not have, one that needs 64-bit types where they are off, a
    type that no buffer was made for.
    """
    like = jax.ShapeDtypeStruct((1, 128, 2, 32), jnp.float32)
    options = Options(block_q=64, block_k=32, is_causal=True, record=record, engine="xla")
    setup, _ = setup_of(like, like, like, plan, options)
    setup = replace(setup, some=some)
    with jax.enable_x64(True), on_an_h200():
        x = jax.ShapeDtypeStruct((2, 128, 32), jnp.float64)
        row = jax.ShapeDtypeStruct((2, 128), jnp.float64)
        mask = [jax.ShapeDtypeStruct((2, 128, 128), bool)] * masks
        forward = jax.jit(
            lambda q, k, v, *m: pallas_forward.forward(setup, q, k, v, True, *m)
        ).trace(x, x, x, *mask)
        backward = jax.jit(
            lambda q, k, v, do, lse, delta, *m: pallas_backward.backward(
                setup, q, k, v, do, lse, delta, *m, on_gpu=True, may_be_final=False
            )
        ).trace(x, x, x, x, row, row, *mask)
    with (
        jax.enable_x64(record is not None),
        on_an_h200(),
    ):  # with a record a call is no part of a caller's program
        for traced in (forward, backward):
            assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("plan", "record", "block_q", "features", "stores"),
    [
        ("qiu-yao@hopper", None, 64, 32, 4096 // 128),
        ("qiu-yao@hopper", None, 128, 32, 4096 // 128),  # 32 rows of a warp
        ("qiu-yao@hopper", None, 128, 256, 4096 // 256),  # too many numbers for that
        ("qiu-yao@hopper", None, 256, 32, 4096 // 256),
        ("qiu-yao@hopper", None, 128, 128, 4096 // 128),
        (Plan.preset("qiu-yao@hopper").at("O", "fp32"), None, 128, 128, 4096 // 256),
        # a program that is looked at has 16 warps
        ("qiu-yao@hopper", COUNTED, 64, 32, 4096 // 128 + 4096 // 512),
        ("qiu-yao@hopper", COUNTED, 128, 32, 4096 // 128 + 4096 // 512),
        ("qiu-yao@hopper", SAMPLED, 128, 32, 4096 // 128 + 4096 // 256),
        (HOPPER, None, 64, 32, 0),
        (Plan.preset("qiu-yao@hopper").at("EXP", "bf16"), None, 64, 32, 0),
    ],
    ids=[
        "small",
        "twice",
        "wide",
        "large",
        "full",
        "fp32 O",
        "traced",
        "traced twice",
        "sampled",
        "fp32",
        "rounded",
    ],
)
def test_a_program_makes_a_table_of_exps(plan, record, block_q, features, stores):
    """A number that no thread wrote, or that a thread without one wrote somewhere; a table of other
    numbers than the events want.
    """
    like = jax.ShapeDtypeStruct((2, 256, 1, features), jnp.float32)
    options = Options(block_q=block_q, block_k=32, record=record, engine="xla")
    setup, _ = setup_of(like, like, like, plan, options)
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((2, 256, features), jnp.float64)
        text = str(
            jax.jit(lambda q, k, v: pallas_forward.forward(setup, q, k, v, True))
            .trace(x, x, x)
            .jaxpr
        )
    assert text.count("st.shared.f32") == stores


def test_heads_of_several_batch_entries():
    """The rows of another entry's head: the forward reads and writes arrays as the caller has
    them.
    """
    q, k, v = inputs([(2, 32, 2, 16), (2, 32, 1, 16), (2, 32, 1, 16)])
    ours, theirs = (
        examine(q, k, v, plan=HOPPER, record=None, engine=engine, **TILES)
        for engine in ("pallas", "numpy")
    )
    assert np.array_equal(bits(ours.out), bits(theirs.out))
    assert np.array_equal(bits(ours.lse), bits(theirs.lse))


@pytest.mark.parametrize("record", [None, Record()], ids=["plain", "traced"])
def test_what_32_bits_do_not_count_is_refused(record):
    """An offset that wraps round: results of other heads, or another program's memory."""
    heads, tokens, width = (300, 131072, 64) if record is None else (600, 131072, 16)
    like = jax.ShapeDtypeStruct((1, tokens, heads, width), jnp.float32)
    options = Options(block_q=64, block_k=64, record=record, engine="xla")
    setup, _ = setup_of(like, like, like, HOPPER, options)
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((heads, tokens, width), jnp.float64)
        said = (
            f"q: {heads} heads need an array of shape.*heads at a"
            f" time{', or record a sample' if record else ''}"
        )
        with pytest.raises(ValueError, match=said):
            jax.eval_shape(lambda q, k, v: pallas_forward.forward(setup, q, k, v, True), x, x, x)


def test_mapped_calls_run_one_after_another():
    """Kernels over the arrays of all calls at once, of which the check above has seen one: they
    count in 32 bits.
    """
    x = jax.ShapeDtypeStruct((3, 1, 64, 2, 16), jnp.float32)

    def run(q, k, v):
        return attend(q, k, v, plan=HOPPER, engine="pallas", **TILES).sum()

    with jax.enable_x64(True):
        text = str(jax.make_jaxpr(jax.vmap(jax.grad(run, (0, 1, 2))))(x, x, x))
    assert set(re.findall(r"grid=\(([^)]*)\)", text)) == {"2, 2", "2, 4"}  # heads, tiles: no calls


@pytest.mark.thorough
def test_gradients_of_mapped_layers():
    """Arms of a training: a number of the outer program inside what is called for each of them."""
    x, factors = jnp.asarray(normal(7, 1, 32, 1, 16)), jnp.ones((2, 2), jnp.float32)

    def loss(engine, factors):
        def layer(x, factor):
            y = attend(x * factor, x, x, plan=HOPPER, is_causal=True, engine=engine, **TILES)
            return y, None

        return jax.lax.scan(jax.checkpoint(layer), x, factors)[0].sum()

    with jax.enable_x64(True):
        ours, theirs = (
            jax.jit(jax.vmap(jax.grad(partial(loss, engine))))(factors)
            for engine in ("pallas", "xla")
        )
    assert np.array_equal(bits(ours), bits(theirs))


@pytest.mark.parametrize("r", [BINARY32, BF16, FP16], ids=str)
def test_conversions_round_once(r):
    """Two roundings to nearest in a row: ties that the first one makes, and numbers a little off a
    tie.
    """
    rng = np.random.Generator(np.random.PCG64(4))
    f = r.format
    ties = np.ldexp(
        rng.integers(2 ** (f.precision), 2 ** (f.precision + 1), 4000) * 2.0 + 1.0, -f.precision - 5
    )
    off = np.ldexp(rng.choice([-1.0, 0.0, 1.0], ties.size), rng.integers(-45, -20, ties.size))
    x = np.concatenate(
        [
            ties * (1.0 + off),
            -ties * (1.0 + off),
            rng.normal(size=4000),
            [0.0, -0.0, np.inf, -np.inf, 1e300, -1e300],
        ]
    )
    with jax.enable_x64(True):
        assert np.array_equal(
            np.asarray(converted(jnp.asarray(x), r)).view(np.int64), round_to(x, r).view(np.int64)
        )


def test_conversions_leave_other_roundings_to_the_rule():
    """A format that saturates, a mode that is not nearest even."""
    with jax.enable_x64(True):
        assert converted(jnp.zeros(2), E4M3) is None
        assert converted(jnp.zeros(2), replace(BF16, mode=type(BF16.mode)("toward-zero"))) is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "plan",
    [
        Plan.preset(HOPPER).at("DM", "bf16", overflow="nan"),
        Plan.preset(HOPPER)
        .at("X", "bf16", overflow="saturate")
        .at("EXP", "fp16", "away-from-zero"),
    ],
    ids=["nan", "saturate"],
)
def test_infinities_that_a_rounding_would_change(plan):
    """A row's first tile and masked scores are -inf, which these events must not meet."""
    assert_equal(plan, is_causal=True)


@pytest.mark.thorough
def test_exact_sums_beside_tensor_cores():
    """A kernel without ascending sums has memory to add in binary64 where an injection wants
    that.
    """
    assert_equal(
        HOPPER,
        inject=(
            Injection(site=Site.S, what=Exact(), rows=3),
            Injection(site=Site.DP, what=Exact(), rows=5),
        ),
    )


def test_tiles_that_a_gpu_has_no_room_for(monkeypatch):
    """A compiler's message about shared memory or registers."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    like = jax.ShapeDtypeStruct((1, 256, 1, 64), jnp.float32)

    def asked(block_q, block_k):
        options = Options(block_q=block_q, block_k=block_k, engine="pallas")
        return setup_of(like, like, like, "qiu-yao", options)

    for tiles in ((256, 128), (128, 256)):
        with pytest.raises(
            ValueError,
            match=(
                f"block_q, block_k: {tiles[0]} x {tiles[1]}, a GPU has no room .* over 16384 scores"
            ),
        ):
            asked(*tiles)
    asked(256, 64)


FP16_SUM = Plan.preset("all:fp16").adding("S", Accumulator.tensor_core("hopper", "fp16", "fp16"))
DRAWN_SUM = Plan.preset("fp32").adding(
    "ROWSUM", Accumulator(order=Order.HALVES, step=rounding("bf16", "stochastic"))
)
EXACT_SUM = Plan.preset("fp32").adding("S", Accumulator(order=Order.EXACT))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"record": Record(events=(Site.P,), every=2)},
            "record: events are whole, and with every=2 the fused kernel has those of a sample",
        ),
        ({"record": Record(steps=(Site.PV,))}, "record: the fused kernel keeps no steps"),
        ({"block_q": 24}, "block_q: 24, a kernel's tiles are powers of two from 16 on"),
        ({"plan": "baseline-bf16"}, "softmax before P V needs whole rows"),
        ({"plan": "mxfp8-attention", "block_k": 32}, "P in blocks of"),
        ({"plan": "fa3-fp8@hopper"}, "sums of e4m3fn run in pieces in a fused kernel"),
        (
            {"plan": EXACT_SUM},
            (
                "accumulator of S: the fused kernel adds in ascending order or on tensor cores, not"
                " exact"
            ),
        ),
        (
            {"inject": (Injection(site=Site.P, what=Bias(value=0.1)),)},
            "inject at P: Bias(value=0.1) may leave the numbers that the tensor",
        ),
        ({"inject": (Injection(site=Site.DV, what=Exact()),)}, "inject at DV: Exact() may leave"),
        (
            {"inject": (Injection(site=Site.V, what=SetTo(value=1.001)),)},
            "inject at V: SetTo(value=1.001) may leave",
        ),
        (
            {"inject": (Injection(site=Site.P, what=AddUlps(ulps=2.0)),)},
            "inject at P: AddUlps(ulps=2.0) may leave",
        ),
        (
            {"plan": DRAWN_SUM},
            "accumulator of ROWSUM: a stochastic step needs random bits for every addition",
        ),
        (
            {"plan": Plan.preset(HOPPER).at("AO", "fp64")},
            "accumulator of PV: its first term, AO in fp64, is no binary32 number",
        ),
        (
            {"plan": FP16_SUM},
            "accumulator of S: the fused kernel's tensor cores add in fp32, not fp16",
        ),
    ],
)
def test_what_it_does_not_run_says_what_does(options, said):
    """Nothing is run by another engine in silence."""
    with pytest.raises(ValueError, match=re.escape(said) + ".*engine='xla'"):
        examine(
            *inputs()[:3], **{"plan": HOPPER, "record": None, "engine": "pallas", **TILES} | options
        )
