"""Linear layers of the GPT in block formats: bits of one product, places of a change, words, and
runs that go on.
"""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.attention.sites import Site as AttentionSite
from roundscope.emu.api import round_to
from roundscope.emu.blocks.api import round_blocks
from roundscope.experiments.cli.main import main
from roundscope.experiments.train import checkpoint, mx, record
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model
from roundscope.experiments.train.gpt.interventions import MATRICES, plans_of
from roundscope.experiments.train.gpt.linear import (
    LinearPlans,
    described,
    formats_of,
    how_of,
    linear,
)
from roundscope.experiments.train.gpt.plans import by_layer
from roundscope.experiments.train.mx import INDEX, Site
from roundscope.experiments.train.settings import settings
from roundscope.tools.errors import UsageError

CONFIG = Config(
    layers=2,
    heads=2,
    width=32,
    context=32,
    vocab=32,
    batch=1,
    mlp_ratio=1,
    plan="jax",
    matmul="fp32",
)
WEIGHTS = {"qkv": "qkv", "proj": "proj", "fc1": "up", "fc2": "down"}


OPERANDS = ("X", "W", "G_X", "W_X", "G_W", "X_W")


def plans(config, *texts):
    """LinearPlans of one arm."""
    found = formats_of(config, texts)
    return LinearPlans(how_of([found]), jnp.asarray(found.table()))


def pulled(f, x, w, g):
    """f(x, w), and its gradients by x and w for g."""

    def both(x, w, g):
        y, back = jax.vjp(f, x, w)
        return y, *back(g)

    return jax.device_get(jax.jit(both)(x, w, g))


def test_a_product_has_the_bits_of_its_events():
    """An operand blocked along the wrong axis, a copy made from rounded numbers, an event that
    another one's format reaches.

    Numbers of at most two binades in a block, so that every sum of products of their elements is
    exact in any order.
    """
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.uniform(1.0, 4.0, shape).astype(np.float32) * rng.choice(
            [-1.0, 1.0], shape
        ).astype(np.float32)

    x, w, g = draw(64, 32), draw(32, 96), draw(64, 96)
    e4m3, fp4 = "mxfp8_e4m3", "mxfp4"
    own = {
        "X": e4m3,
        "W": fp4,
        "Y": e4m3,
        "G_X": fp4,
        "W_X": e4m3,
        "DX": fp4,
        "G_W": e4m3,
        "X_W": fp4,
        "DW": e4m3,
    }
    table = plans(
        CONFIG, "; ".join(f"layer=1 matrix=fc1 site={name} -> {f}:rceil" for name, f in own.items())
    )
    rows = table.table[1, 2]

    def q(name, v, axis):
        return round_blocks(v.astype(np.float32), own[name], axis=axis, rule="rceil").astype(
            np.float64
        )

    wanted = [
        q("Y", q("X", x, 1) @ q("W", w, 0), 1),
        q("DX", q("G_X", g, 1) @ q("W_X", w, 1).T, 1),
        q("DW", q("X_W", x, 0).T @ q("G_W", g, 0), 0),
    ]
    found = pulled(lambda x, w: mx.linear(table.how, x, w, rows), x, w, g)
    assert all(np.array_equal(a, b.astype(np.float32)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
def test_before_the_first_change_events_round_as_matmul_says(kind):
    """A layer that loses the config's BF16 because another layer has block formats.

    Integers of 12 bits, one in each row and column of x, and signs for the gradient: every sum is
    exact, in whichever order a device adds.
    """
    rng = np.random.default_rng(1)
    x, w, g = (
        rng.integers(-4095, 4096, shape).astype(np.float32)
        for shape in ((32, 32), (32, 64), (32, 64))
    )
    x, g = x * np.eye(32, dtype=np.float32)[rng.permutation(32)], np.sign(g)
    table = plans(replace(CONFIG, matmul=kind), "layer=0 -> mx=mxfp4")
    found = pulled(lambda x, w: mx.linear(table.how, x, w, table.table[1, 0]), x, w, g)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(found, pulled(lambda x, w: linear(x, w, kind), x, w, g), strict=True)
    )


@pytest.fixture(scope="module")
def step():
    """(gradients of the weights, of taps) as a function of the texts of changes: one executable."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: model.init(CONFIG, jax.random.key(0)))
    params = jax.tree.map(lambda leaf: 0.1 * rng.standard_normal(leaf.shape, np.float32), shapes)
    tokens = rng.integers(0, 32, (1, 33)).astype(np.int32)
    sizes = {"qkv": (32, 96), "proj": (32, 32), "fc1": (32, 32), "fc2": (32, 32)}
    taps = {
        name: tuple(jnp.zeros((2, 32, n), jnp.float32) for n in own) for name, own in sizes.items()
    }
    how = mx.How(32, frozenset((Site.DW,)), even=True)

    @jax.jit
    def gradients(table):
        def loss(params, taps):
            return model.loss(params, tokens, None, CONFIG, linears=LinearPlans(how, table, taps))

        return jax.grad(loss, (0, 1))(params, taps)

    return lambda *texts: jax.device_get(gradients(plans(CONFIG, *texts).table))


def test_a_change_is_of_its_layer_and_matrix_alone(step):
    """Rows of one matrix or layer that another one reads.

    DW is rounded last: no other number may change, and its own by one rounding.
    """
    exact = step("-> fp32", "matrix=all -> fp32")[0]["layers"]
    for place, (matrix, name) in enumerate(WEIGHTS.items()):
        layer = place % 2
        found = step(f"layer={layer} matrix={matrix} site=DW -> mxfp4")[0]["layers"]
        for other, before in exact.items():
            wanted = before.copy()
            if other == name:
                own = before[layer].reshape(32, -1)
                wanted[layer] = round_blocks(own, "mxfp4", axis=0).reshape(before[layer].shape)
            assert np.array_equal(found[other], wanted), (matrix, other)


@pytest.mark.thorough
def test_what_attention_reads_left_the_linear_layers():
    """A diagnosis of q, k and v that the run never had: those of linear layers that round
    nothing.
    """
    config = replace(CONFIG, plan="fp32")
    params = model.init(config, jax.random.key(0))
    tokens = (np.arange(33, dtype=np.int32) % 32)[None]
    linears = plans(config, "layer=1 matrix=qkv site=Y -> e4m3fn:toward-zero")
    table = by_layer(plans_of(config))
    _, (_, *read) = model.read(params, tokens, table, config, linears=linears)
    for x in map(np.asarray, read):
        on_grid = [np.array_equal(round_to(own, "e4m3fn"), own) for own in x]
        assert on_grid == [False, True]


def test_taps_are_what_the_products_read(step):
    """Audited numbers that are not those of the step: x^T g of the taps is the gradient of the
    weights.
    """
    grads, taps = step("matrix=all -> fp32")
    for matrix, name in WEIGHTS.items():
        x, g = taps[matrix]
        wanted = np.einsum("lri,lro->lio", x.astype(float), g.astype(float))
        assert np.abs(wanted).max() > 0.0
        assert np.allclose(
            grads["layers"][name].reshape(wanted.shape), wanted, atol=1e-5 * np.abs(wanted).max()
        )


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            "-> mx=mxfp4",
            {(m, s): "mxfp4" if "_" in s or s in "XW" else "bf16" for m in MATRICES for s in Site},
        ),
        (
            "layer=1 matrix=fc1 site=operands -> mxfp8_e4m3:rceil",
            {("fc1", s): "e4m3fn:saturate[32]*e8m0fnu:rceil" for s in OPERANDS},
        ),
        (
            "layer=1 site=weights,Y -> bf16:toward-zero",
            {(m, s): "bf16:toward-zero" for m in MATRICES for s in ("W", "W_X", "Y")},
        ),
        (
            "layer=1 matrix=qkv,fc2 site=X -> mxfp8_e5m2",
            {("qkv", "X"): "mxfp8_e5m2", ("fc2", "X"): "mxfp8_e5m2"},
        ),
        (
            "layer=1 matrix=all site=backward -> mxfp4; layer=1 matrix=qkv,fc1,fc2 -> fp32",
            {("proj", s): "mxfp4" for s in OPERANDS[2:]},
        ),
    ],
)
def test_words_reach_their_events(text, places):
    """A place or a format that is read as another; a change that reaches the other layer."""
    found = formats_of(CONFIG, [text]).formats
    wanted = {
        (matrix, site): places.get((str(matrix), str(site)), "fp32")
        for matrix in MATRICES
        for site in Site
    }
    assert {
        (m, s): str(own[INDEX[s]]) for m, own in zip(MATRICES, found[1], strict=True) for s in Site
    } == wanted
    assert {str(f) for own in found[0] for f in own} == (
        {"mxfp4", "bf16"} if "layer" not in text else {"fp32"}
    )


def test_attention_keeps_its_words():
    """site=X, forward and backward of attention, or P in blocks, that became words of linear
    layers; and the reverse.
    """
    config = replace(CONFIG, plan="fp32")
    for text, site in (
        ("site=X -> bf16", "X"),
        ("site=backward -> bf16", "DQ"),
        ("site=P -> mxfp8_e4m3", "P"),
    ):
        assert formats_of(config, [text]) is None
        assert str(plans_of(config, [text])[0][0][AttentionSite(site)]) in (
            "bf16",
            "e4m3fn:saturate",
        )
    both = "-> mx=mxfp4; layer=0 site=O -> bf16; matrix=all site=X -> fp32"
    assert (
        len({str(row[0]) for row in plans_of(config, [both])}) == 2
        and formats_of(config, [both]) is not None
    )
    assert (
        plans_of(config, ["-> mx=mxfp4"]) == plans_of(config)
        and plans_of(CONFIG, ["-> mx=mxfp4"]) is None
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("matrix=up -> fp32", ["unknown matrix 'up'", "qkv"]),
        ("matrix=fc1 site=PV -> fp32", ["unknown site 'PV'"]),
        ("head=1 matrix=fc1 -> fp32", ["leave head= out"]),
        ("matrix=fc1 -> plan=fp32", ["plan=", "not of linear layers"]),
        ("site=X -> mx=mxfp4", ["leave site= out"]),
        ("-> mx=mxfp9", ["mxfp9"]),
        ("matrix=fc1 -> nvfp4", ["powers of two"]),
        ("layer=2 -> mx=mxfp4", ["numbered from 0 to 1"]),
        ("site=all -> mxfp4", ["all"]),
    ],
)
def test_errors_quote_the_change_and_say_the_repair(text, words):
    """A traceback, or a change that is misread as another."""
    with pytest.raises(UsageError) as error:
        formats_of(CONFIG, [text])
    assert str(error.value).startswith(f"change '{text}'") and all(
        word in str(error.value) for word in words
    )


def test_blocks_divide_the_model():
    """A last block that is cut where the emulator cannot: said before anything runs."""
    with pytest.raises(UsageError, match=r"context 48: .*needs a multiple of the block of 32"):
        formats_of(replace(CONFIG, context=48), ["-> mx=mxfp4"])


def test_arms_of_other_formats_share_an_executable():
    """A compilation for every format, rule and layer; or a table in a run that has no change of
    linear layers.
    """
    from roundscope.experiments.train.groups import firsts, formats_at, numbers

    arms = [
        "plain=",
        "floor=-> mx=mxfp8_e4m3",
        "other=layer=1 matrix=fc1 site=X -> mxfp4:rceil",
        "lots=-> mx=mxfp4:stochastic",
    ]
    s = settings(
        ["plan=jax", "layers=2", "width=32", "context=32"],
        arms=arms,
        at=["5: layer=0 matrix=all -> bf16"],
    )
    assert numbers(s) == [[0], [1, 2], [3]] and firsts(s) == [0, 5]
    assert formats_at(s, s.arms[0], 4) is None and formats_at(s, s.arms[0], 5) is not None
    found = [formats_at(s, arm, 0) for arm in s.arms[1:3]]
    assert (
        how_of(found).even and how_of(found).rounded == frozenset(Site) and not how_of(found).drawn
    )
    assert [len(own["layers_matrices"]) for own in described(found[1])] == [7, 1]


def test_a_run_goes_on_with_its_bits(tmp_path):
    """Random bits that depend on where a run starts, a checkpoint without its formats, a branch
    that keeps the old ones.
    """
    size = [
        "layers=1",
        "heads=1",
        "width=32",
        "context=32",
        "vocab=16",
        "batch=1",
        "mlp_ratio=1",
        "warmup=1",
        "data=repeat",
    ]
    often = [
        "plan=jax",
        "matmul=fp32",
        "steps=4",
        "checkpoint_every=2",
        "monitor_every=4",
        "keep=9",
    ]
    lots, other = (
        "run=site=G_W -> " + name for name in ("mxfp4:stochastic", "mxfp8_e4m3:stochastic")
    )

    def train(*asked):
        with pytest.raises(SystemExit, match="0"):
            main(["train", *map(str, asked), "--json"])

    train(
        *size,
        *often,
        "--arm",
        lots,
        "--at",
        "1: matrix=fc1 site=W -> mxfp8_e4m3",
        "--out",
        tmp_path / "whole",
    )
    train("--resume", tmp_path / "whole", "--from", 2, "--out", tmp_path / "again")
    train("--resume", tmp_path / "whole", "--from", 2, "--arm", other, "--out", tmp_path / "other")
    whole, again, other = (
        jax.tree.leaves(checkpoint.load(tmp_path / name, 4)[0])
        for name in ("whole", "again", "other")
    )
    assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(whole, other, strict=True))
    losses = [
        [row["loss"] for row in record.rows(tmp_path / name, "steps")]
        for name in ("whole", "again", "other")
    ]
    assert (
        losses[0][2:] == losses[1] and losses[1][0] == losses[2][0] and losses[1][1] != losses[2][1]
    )  # gradients alone are other ones
    [arm] = json.loads(record.rows(tmp_path / "again", "runs")[0]["arms"])["arms"]
    kept = {
        matrix: own["formats"] for own in arm["linears"] for _, matrix in own["layers_matrices"]
    }
    assert [kept[m]["W"] for m in ("qkv", "fc1")] == [
        "fp32",
        "mxfp8_e4m3",
    ] and "stochastic" in kept["fc1"]["G_W"]
