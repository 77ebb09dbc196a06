"""The kernels for Hopper: which calls have them, in which order they walk, and what exists of their
tiles. They need a GPU to run; `python -m tests.checks.gpu_hopper` compares their bits there.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from roundscope.attention import Plan, attend
from roundscope.attention.engines.kernels import backward, engine
from roundscope.attention.engines.kernels import fit as fused
from roundscope.attention.engines.kernels.call import Call
from roundscope.attention.engines.kernels.hopper import fit, walk
from roundscope.attention.engines.kernels.hopper import tile as hopper_tile
from roundscope.attention.engines.kernels.hopper.walk import over_keys, over_queries
from roundscope.attention.engines.kernels.tiles import Exists
from roundscope.attention.sharded import attend_sharded
from roundscope.attention.tiles.loops import Setup, tile_at
from roundscope.emu.backends.numba.ops import numpy_ops
from roundscope.emu.sums.accumulator import Accumulator


@pytest.fixture
def on_hopper(monkeypatch):
    """A Hopper GPU that is not there, for which kernels are lowered."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fit, "is_hopper", lambda: True)
    monkeypatch.setattr(fit, "OLDEST", (0, 10))  # older than any that ran them
    monkeypatch.setattr(fused, "_device_core", lambda operand, acc: acc)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def delta_by_xla(monkeypatch):
    """No kernel of Triton, which JAX from 0.11 on lowers only where there is a GPU."""
    monkeypatch.setattr(engine, "delta_fits", lambda *_: False)


def kernels(plan, tiles, features, causal=False, tokens=256, heads=(2, 2)):
    """(kernels for Hopper, of Triton) in the lowered program of a forward and its gradients, but
    for that of delta.
    """
    block_q, block_k = tiles
    call = partial(
        attend, plan=plan, engine="pallas", block_q=block_q, block_k=block_k, is_causal=causal
    )
    q, k = (jax.ShapeDtypeStruct((1, tokens, n, features), jnp.bfloat16) for n in heads)
    traced = jax.jit(lambda q, k, v, do: jax.vjp(call, q, k, v)[1](do)).trace(q, k, k, q)
    names = [name for name in _kernels_of(traced.jaxpr.jaxpr) if "delta" not in name]
    ours = sum("mosaic_gpu" in name or "mpmd" in name for name in names)
    return ours, len(names) - ours


def _kernels_of(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("pallas_call", "mpmd_map"):
            own = (eqn.primitive.name, eqn.params.get("compiler_params"), eqn.params.get("name"))
            yield " ".join(map(str, own))
            continue
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None and hasattr(inner, "eqns"):
                yield from _kernels_of(inner)


CASES = [
    ("fa2", (128, 128), 64, {}, True),
    ("fa2", (64, 64), 128, {"causal": True}, True),
    ("cudnn", (128, 128), 128, {"heads": (4, 2)}, True),
    ("cudnn", (128, 128), 64, {"tokens": 250, "causal": True}, True),
    ("fa2-bf16", (128, 128), 64, {}, False),  # sums in ascending order
    ("qiu-yao@hopper", (128, 128), 64, {}, False),  # exponents in BF16
    ("qiu-yao-compiled", (64, 128), 64, {"causal": True}, True),
    ("qiu-yao-compiled", (64, 64), 128, {}, True),
    ("fa2", (128, 32), 64, {}, False),
    ("fa2", (64, 64), 32, {}, False),
    ("fa2", (64, 64), 64, {"tokens": 64}, False),  # fewer rows than a program has
]


@pytest.mark.parametrize(("plan", "tiles", "features", "options", "fits"), CASES)
def test_which_calls_have_them(on_hopper, plan, tiles, features, options, fits):
    ours, of_triton = kernels(plan, tiles, features, **options)
    assert (ours, of_triton) == ((3, 0) if fits else (0, of_triton))
    assert fits or of_triton > 1


@pytest.mark.parametrize(("features", "ours"), [(64, 1), (128, 3)])
def test_without_memory_for_the_gradients_of_scores(on_hopper, monkeypatch, features, ours):
    """Exps that are rounded correctly would be computed twice, which takes longer than Triton's
    kernels where products are short (docs/notes/measurements.md).
    """
    assert kernels("fa2-bf16@hopper", (64, 64), features) == (3, 0)
    monkeypatch.setattr(backward, "SCORE_BYTES", 2**10)
    jax.clear_caches()
    found = kernels("fa2-bf16@hopper", (64, 64), features)
    assert found[0] == ours
    assert (found[1] > 0) == (ours < 3)


@pytest.mark.parametrize(
    ("plan", "features", "by_scores"),
    [
        ("cudnn", 64, False),  # an exp of one instruction, and short products
        ("cudnn", 128, True),
        ("qiu-yao-compiled", 64, True),
        ("fa2-bf16@hopper", 64, True),
    ],
)
def test_where_the_gradients_of_scores_go_to_memory(on_hopper, plan, features, by_scores):
    """Two kernels of the backward pass dS, or each computes it."""
    call = partial(attend, plan=plan, engine="pallas", block_q=64, block_k=64)
    x = jax.ShapeDtypeStruct((1, 256, 2, features), jnp.bfloat16)
    traced = jax.jit(lambda *x: jax.vjp(call, *x[:3])[1](x[3])).trace(x, x, x, x)
    assert ("bf16[1,256,2,256]" in str(traced.jaxpr)) == by_scores


FA2 = Plan.preset("fa2")
COMPILED = Plan.preset("qiu-yao-compiled")
TF32 = Accumulator.tensor_core("hopper", "tf32", "fp32")


@pytest.mark.parametrize(
    ("plan", "tiles", "ours"),
    [
        (FA2.at("DK", "bf16"), (128, 64), 1),  # an event for each tile of the plan, not for 64 rows
        (FA2.at("DK", "bf16"), (64, 64), 3),
        (FA2.at("L", "bf16"), (128, 128), 0),  # what is kept of the row sum is LANES
        (FA2.adding("S", TF32), (128, 128), 2),  # its factors are bf16, its tensor core is not
        (FA2.changed("log2_e=none"), (64, 64), 0),  # log2 e in binary64
        (FA2.at("M", "bf16").at("DM", "bf16"), (64, 64), 0),  # vectors of 16-bit numbers
        (FA2.changed("gradient_scale=operand").at("SDS", "bf16"), (64, 64), 3),
        (FA2.at("P", "bf16", "toward-zero"), (64, 64), 2),
        (COMPILED, (64, 64), 3),
        (COMPILED, (128, 64), 1),  # dK and dV of a tile of the plan are rounded apart
        (COMPILED.at("MS", "bf16", "toward-zero"), (64, 64), 2),
        (FA2.at("X_B", "fp64", overflow="saturate"), (64, 64), 1),
        (FA2.at("P_B", "bf16", "stochastic"), (64, 64), 0),
    ],
)
def test_what_they_do_not_have_runs_by_triton(on_hopper, plan, tiles, ours):
    """A kernel for Hopper would give other bits, an error, or has no such arithmetic."""
    assert kernels(plan, tiles, 64, causal=True)[0] == ours


def test_they_can_be_left_out(on_hopper):
    with fit.only_triton():
        ours, of_triton = kernels("fa2", (64, 64), 64)
    assert ours == 0
    assert of_triton > 1
    jax.clear_caches()
    assert kernels("fa2", (64, 64), 64)[0] == 3


@pytest.mark.parametrize(
    ("plan", "features", "causal"),
    [
        ("fa2", 64, True),
        pytest.param("fa2", 128, True, marks=pytest.mark.thorough),
        pytest.param("fa2-bf16@hopper", 64, True, marks=pytest.mark.thorough),
        ("qiu-yao-compiled", 128, True),
        (COMPILED.at("LANES", "fp32"), 64, False),  # nothing reads which tile is the first
    ],
)
def test_they_lower(on_hopper, delta_by_xla, plan, features, causal):
    """Mosaic GPU finds the registers of every array."""
    call = partial(attend, plan=plan, engine="pallas", block_q=64, block_k=64, is_causal=causal)
    x = jax.ShapeDtypeStruct((1, 256, 2, features), jnp.bfloat16)
    traced = jax.jit(lambda q, k, v, do: jax.vjp(call, q, k, v)[1](do)).trace(x, x, x, x)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert "xla.gpu.triton" not in text


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_they_lower_over_devices(on_hopper, delta_by_xla, kind):
    """Kernels of Triton because JAX writes reshard, which moves nothing, into what is narrowed."""
    mesh = jax.make_mesh((1, 1), ("batch", "heads"), (kind,) * 2)
    tiles = {"block_q": 64, "block_k": 64, "is_causal": True}
    call = partial(attend_sharded, mesh=mesh, plan="fa2", engine="pallas", **tiles)
    x = jax.ShapeDtypeStruct((1, 256, 2, 128), jnp.bfloat16)
    gradients = jax.grad(lambda *x: call(*x).astype(jnp.float32).sum(), (0, 1, 2))
    text = jax.jit(gradients).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu") > 2
    assert "xla.gpu.triton" not in text


# --- walks


def call_of(plan, tokens, tiles, is_causal, keys=None):
    return Call(
        setup=Setup(
            plan=plan,
            queries=tokens,
            keys=keys or tokens,
            block_q=tiles[0],
            block_k=tiles[1],
            heads=1,
            key_heads=1,
            scale=0.125,
            whole_scale=0.125,
            is_causal=is_causal,
        ),
        on_gpu=True,
        group=1,
    )


def walked(made, row, group):
    """[(what, number of the tile)] of a warp group in the program that owns `row`, in order."""
    own = walk._parts(made, jnp.int32(row + group * 64), "idle", lambda: None)
    found = []
    for f, first, last in own:
        for position in range(int(first), int(last)):
            what = f if isinstance(f, str) else ("whole" if f.args[0] else "cut")
            found.append((what, int(walk._number(made, jnp.int32(position)))))
    return found


@pytest.fixture
def of_program(monkeypatch):
    """A function that says which program the next walks are of."""

    def set_row(row):
        monkeypatch.setattr(walk, "_first_row", lambda group: jnp.int32(row + group * 64))

    return set_row


TILES = [(64, 64), (128, 128), (64, 128), (128, 64), (256, 64)]


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize("tokens", [512, 456])
def test_key_tiles_come_in_the_plan_s_order(of_program, tiles, is_causal, order, tokens):
    """Each warp group meets the key tiles that the plan's query tile sees, each once, in order;
    both groups pass the same tiles, and a tile without a mask has all its scores.
    """
    plan = Plan.preset("fa2").changed(f"key_order={order.lower()}")
    call = call_of(plan, tokens, tiles, is_causal)
    made = over_keys(call, 2, descends=order == "DESCENDING")
    for row in range(0, -(-tokens // tiles[0]) * tiles[0], 128):
        of_program(row)
        groups = [walked(made, row, group) for group in range(2)]
        assert [n for _, n in groups[0]] == [n for _, n in groups[1]]
        for group, met in enumerate(groups):
            i = (row + group * 64) // tiles[0]
            last = min((i + 1) * tiles[0], tokens) - 1
            seen = (last // tiles[1] if is_causal else -(-tokens // tiles[1]) - 1) + 1
            want = list(range(seen)) if order == "ASCENDING" else list(range(seen))[::-1]
            assert [n for what, n in met if what != "idle"] == want
            for what, n in met:
                if what == "whole":
                    assert scores(call, row + group * 64, n * tiles[1], 64, tiles[1]).all()


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("order", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize("tokens", [512, 456])
def test_queries_come_in_the_plan_s_order(of_program, tiles, is_causal, order, tokens):
    """A warp group meets each query tile once, in the plan's order, and the queries of a tile in
    ascending order, 64 at a time.
    """
    plan = Plan.preset("fa2").changed(f"query_order={order.lower()}")
    call = call_of(plan, tokens, tiles, is_causal)
    made, step = over_queries(call, 2), tiles[0] // 64
    for row in range(0, -(-tokens // tiles[1]) * tiles[1], 128):
        of_program(row)
        groups = [walked(made, row, group) for group in range(2)]
        assert [n for _, n in groups[0]] == [n for _, n in groups[1]]
        for group, met in enumerate(groups):
            key = row + group * 64
            first = key // tiles[1] * tiles[1] // tiles[0] if is_causal else 0
            seen = list(range(first, -(-tokens // tiles[0])))
            own = seen if order == "ASCENDING" else seen[::-1]
            want = [i * step + n for i in own for n in range(step)]
            assert [n for what, n in met if what != "idle"] == want
            for what, n in met:
                if what == "whole":
                    assert scores(call, n * 64, key, 64, 64).all()


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("order", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize(("queries", "keys"), [(128, 512), (120, 500), (384, 640), (640, 256)])
def test_keys_that_no_query_sees(of_program, tiles, order, queries, keys):
    """Both warp groups wait for as many tiles as are copied, for none if there is none."""
    plan = Plan.preset("fa2").changed(f"query_order={order.lower()}")
    made = over_queries(call_of(plan, queries, tiles, True, keys), 2)
    for row in range(0, -(-keys // tiles[1]) * tiles[1], 128):
        of_program(row)
        first, last = map(int, walk._whole_span(made))
        copied = [int(walk._number(made, jnp.int32(n))) for n in range(last - first)]
        for group in range(2):
            assert [n for _, n in walked(made, row, group)] == copied


def scores(call, query, key, queries, keys):
    """Which scores exist, by arithmetic."""
    t, s = np.arange(query, query + queries)[:, None], np.arange(key, key + keys)[None, :]
    here = (t < call.setup.queries) & (s < call.setup.keys)
    return here & (s <= t) if call.setup.is_causal else here


# --- masks


@pytest.fixture
def counted(monkeypatch):
    """Numbers along an axis where there are no registers."""

    def between(first, last, shape):
        columns = np.arange(shape[1])[None, :]
        after = True if first is None else columns >= np.asarray(first)[:, None]
        before = True if last is None else columns < np.asarray(last)[:, None]
        return np.broadcast_to(after & before, shape)

    monkeypatch.setattr(hopper_tile, "numbered", lambda first: jnp.arange(64) + first)
    monkeypatch.setattr(hopper_tile, "between", between)


def real(rows, first, count):
    """Which of 64 rows count and are no padding; None: all that are no padding."""
    exists = np.arange(first, first + 64) < count
    return exists if rows is None else exists & rows


@pytest.mark.parametrize("tiles", [(64, 64), (64, 128), (128, 64), (128, 128)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_exists_is_what_the_plan_s_tile_says(counted, tiles, is_causal):
    """Scores, rows with a key, and keys with a query, of every tile of a head with a tail."""
    call = call_of(Plan.preset("fa2"), 456, tiles, is_causal)
    setup, ops = call.setup, numpy_ops()
    block_q, block_k = tiles
    for i in range(setup.query_tiles):
        for j in range(setup.key_tiles):
            want = tile_at(ops, setup, 0, i, j, None, None)
            if is_causal and j * block_k > min((i + 1) * block_q, setup.queries) - 1:
                continue  # no kernel visits it
            for part in range(block_q // 64):
                query = i * block_q + part * 64
                own = hopper_tile.exists_by_query(setup, query, j * block_k)
                of_part = slice(part * 64, part * 64 + 64)
                assert np.array_equal(own.scores.made(), want.mask[of_part])
                assert np.array_equal(real(own.rows, query, setup.queries), want.rows[of_part])
                for half in range(block_k // 64):
                    key = j * block_k + half * 64
                    found: Exists = hopper_tile.exists_by_key(setup, query, key)
                    columns = slice(half * 64, half * 64 + 64)
                    assert np.array_equal(found.scores.made().T, want.mask[of_part, columns])
                    assert np.array_equal(real(found.keys, key, setup.keys), want.keys[columns])
