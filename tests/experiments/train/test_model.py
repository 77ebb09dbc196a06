"""The GPT: shapes, initial weights and loss, derivatives, options; and the plans that reach its
attention.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from roundscope.attention import Plan, Site
from roundscope.attention.plans.traced import HeadPlans, head_plans, reseeded
from roundscope.emu.backends.xla.traced import FIELDS
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, plans
from roundscope.experiments.train.gpt.linear import formats_of, linear
from roundscope.tools.errors import UsageError

TINY = Config(
    layers=2,
    heads=2,
    width=8,
    context=6,
    vocab=11,
    batch=2,
    plan="exact",
    sums="preset",
    matmul="fp32",
)
SMALL = Config(
    layers=2, heads=4, width=32, context=16, vocab=64, batch=4, plan="jax", matmul="fp32"
)
TOKENS = np.random.default_rng(5).integers(0, 11, (2, 7)).astype(np.int32)


initial = jax.jit(model.init, static_argnums=0)


def weights(config, seed=0):
    return initial(config, jax.random.key(seed))


gradient = jax.jit(jax.value_and_grad(model.loss), static_argnums=3)
inputs = jax.jit(model.attention_inputs, static_argnums=3)


def tokens_of(config, seed=1):
    return (
        np.random.default_rng(seed)
        .integers(0, config.vocab, (config.batch, config.context + 1))
        .astype(np.int32)
    )


def wide(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), tree)


def test_shapes_and_options():
    """An option that adds no weight, or one too many; attention inputs with axes in another
    order.
    """
    full = weights(replace(SMALL, qk_norm=True, tied=False))
    shapes = jax.tree.map(jnp.shape, full)
    assert shapes["layers"] == {
        "norm1": (2, 32),
        "norm2": (2, 32),
        "qkv": (2, 32, 3, 4, 8),
        "proj": (2, 4, 8, 32),
        "up": (2, 32, 128),
        "down": (2, 128, 32),
        "norm_q": (2, 8),
        "norm_k": (2, 8),
    }
    assert (shapes["embedding"], shapes["head"], shapes["position"], shapes["norm"]) == (
        (64, 32),
        (64, 32),
        (16, 32),
        (32,),
    )
    plain = weights(replace(SMALL, position=False))
    assert {"position", "head"}.isdisjoint(plain) and "norm_q" not in plain["layers"]
    q, k, v = inputs(plain, tokens_of(SMALL), None, replace(SMALL, position=False))
    assert q.shape == k.shape == v.shape == (2, 4, 16, 4, 8) and q.dtype == jnp.float32


def test_initial_weights_and_loss():
    """Weights of another spread than GPT-2's, residual projections that are not scaled down: the
    first loss leaves ln(vocab).
    """
    params = weights(replace(SMALL, width=128))
    spread = {name: float(leaf.std()) for name, leaf in params["layers"].items()}
    assert spread["qkv"] == pytest.approx(0.02, rel=0.03) and float(
        params["embedding"].std()
    ) == pytest.approx(0.02, rel=0.03)
    assert spread["proj"] == pytest.approx(0.01, rel=0.03) and spread["down"] == pytest.approx(
        0.01, rel=0.03
    )  # 0.02 / sqrt(2 * 2)
    config = replace(SMALL, vocab=256)
    found = float(gradient(weights(config), tokens_of(config), None, config)[0])
    assert found == pytest.approx(math.log(256), abs=0.05)


@pytest.mark.thorough
def test_gradient_is_the_derivative():
    """A wrong derivative in any part, embedding, norms, attention, loss: float64, every event
    exact, against central differences.
    """
    config = replace(TINY, qk_norm=True)
    with jax.enable_x64(True):
        own = plans.uniform(config)
        value = jax.jit(jax.value_and_grad(lambda p: model.loss(p, TOKENS, own, config)))
        params = wide(weights(config))
        found = value(params)[1]
        for seed in range(3):
            direction = jax.tree.map(
                lambda x, s=seed: jnp.asarray(
                    np.random.default_rng(x.size + s).standard_normal(x.shape)
                ),
                params,
            )
            up, down = (
                float(value(jax.tree.map(lambda p, d, e=e: p + e * d, params, direction))[0])
                for e in (1e-6, -1e-6)
            )
            slope = sum(
                float((g * d).sum())
                for g, d in zip(*map(jax.tree.leaves, (found, direction)), strict=True)
            )
            assert slope == pytest.approx((up - down) / 2e-6, rel=1e-7)


def test_every_weight_has_a_gradient():
    """A weight that the model does not use."""
    config = replace(SMALL, qk_norm=True, tied=False)
    _, found = gradient(weights(config), tokens_of(config), None, config)
    assert all(float(jnp.abs(leaf).max()) > 0.0 for leaf in jax.tree.leaves(found))


def test_future_tokens_are_not_seen():
    """Attention that is not causal, or targets that are the inputs."""
    params, tokens = weights(SMALL), tokens_of(SMALL)
    changed = tokens.copy()
    changed[:, -2] = (changed[:, -2] + 1) % SMALL.vocab  # the last input
    a, b = (inputs(params, t, None, SMALL)[0] for t in (tokens, changed))
    assert np.array_equal(a[:, :, :-1], b[:, :, :-1]) and not np.array_equal(
        a[1, :, -1], b[1, :, -1]
    )


@pytest.mark.thorough
def test_exact_attention_is_jax_attention():
    """Emulated attention wired with another scale, mask or order of axes than the baseline."""
    tokens, params = tokens_of(SMALL), weights(SMALL)
    emulated = replace(SMALL, plan="fp32")
    ours = gradient(params, tokens, plans.uniform(emulated), emulated)
    theirs = gradient(params, tokens, None, SMALL)
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        assert np.allclose(a, b, rtol=2e-5, atol=2e-6)


def test_each_layer_and_head_follows_its_own_plan():
    """A table that is indexed by head where a layer is meant: only the named layer's named head may
    change.
    """
    config = replace(TINY, plan="fp32", sums="native")
    base = plans.base(config)
    fine, coarse = [base, base], [base, base.at(Site.Q, "e8m1")]
    params = weights(config)
    params["layers"]["qkv"] = params["layers"]["qkv"] * 30.0
    run = jax.jit(lambda own: model.run(params, TOKENS, own, config))
    second, first, none = (
        run(plans.by_layer(p)) for p in ([fine, coarse], [coarse, fine], [fine, fine])
    )
    assert len({float(loss) for loss, _ in (second, first, none)}) == 3
    assert np.array_equal(second[1].x[1], none[1].x[1])  # what layer 1 reads was written by layer 0
    moved = np.asarray(first[1].x[1] != none[1].x[1])
    assert moved.any()


@pytest.mark.parametrize(("kind", "form"), [("bf16", jnp.bfloat16), ("fp16", jnp.float16)])
def test_operands_round_forwards_alone(kind, form):
    """Operands that XLA leaves unrounded or rounds to the other format; a gradient rounded on its
    way back.
    """
    x, w = (
        np.random.default_rng(i).standard_normal(s).astype(np.float32)
        for i, s in enumerate([(5, 7), (7, 3)])
    )
    g = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32)
    near = [np.asarray(jnp.asarray(a).astype(form)).astype(np.float64) for a in (x, w)]
    out, pull = jax.vjp(jax.jit(lambda x, w: linear(x, w, kind)), x, w)
    assert np.allclose(out, near[0] @ near[1], rtol=1e-6, atol=1e-6)
    assert np.abs(out - x.astype(np.float64) @ w).max() > 1e-4
    for found, expected in zip(pull(g), (g @ near[1].T, near[0].T @ g), strict=True):
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_reseeding_changes_seeds_alone():
    """A number mixed into a format's fields, a seed that steps share, two seeds that swap places (a
    plain XOR would).
    """
    plan = Plan.preset("qiu-yao").at("O", "bf16", mode="stochastic", seed=3)
    own = head_plans([plan, plan.at("O", "bf16", mode="stochastic", seed=2)])
    tables = {
        n: np.asarray(
            jax.jit(lambda t, n=n: reseeded(HeadPlans(own.like, t), np.uint32(n)).table)(own.table)
        )
        for n in range(4)
    }
    for table in tables.values():
        assert np.array_equal(table[:, :, : FIELDS - 1], own.table[:, :, : FIELDS - 1])
        assert np.array_equal(
            table[..., FIELDS - 1, 0], own.table[..., FIELDS - 1, 0]
        )  # the upper word stays 0
    site = list(Site).index(Site.O)
    seeds = [tables[n][h, site, -1, 1] for n in range(4) for h in range(2)]
    assert len(set(seeds)) == 8
    each = reseeded(own, np.array([1, 3], np.uint32)).table
    assert np.array_equal(each[0], tables[1][0]) and np.array_equal(each[1], tables[3][1])


@pytest.mark.parametrize(
    ("field", "value", "repair"),
    [
        ("width", 30, "multiple of the 4 heads"),
        ("vocab", 1, "2 to 65536"),
        ("min_lr", 1.0, "between 0 and lr"),
        ("plan", "qiu-ya", "qiu-yao"),
        ("sums", "fast", "native or preset"),
        ("engine", "fused", "xla, pallas or cudnn"),
        ("engine", "pallas", "give sums=preset"),
        ("engine", "cudnn", "give plan=jax"),
        ("matmul", "fp8", "bf16, fp16, fp32 or autocast"),
        ("steps", 0, "at least 1"),
        ("clip", 0.0, "positive norm"),
        ("beta2", 1.0, "below 1"),
        ("decay_steps", 5, "smaller warmup"),
    ],
)
def test_config_names_what_is_wrong(field, value, repair):
    """A run that starts with numbers that cannot work, or an error that does not say which."""
    with pytest.raises(UsageError, match=repair):
        Config(**{field: value})


def test_autocast_has_the_bits_of_torch():
    """A result or a gradient that stays wide, an operand that is not rounded, a transpose too many:
    the layer and both gradients beside torch.autocast, on numbers whose sums are exact.
    """
    rng = np.random.default_rng(2)
    x, w, g = (
        (1 + rng.integers(0, 2**9, shape) / 2**9).astype(np.float32) * rng.choice([-1, 1], shape)
        for shape in ((2, 3, 16), (16, 8), (2, 3, 8))
    )
    x, w, g = (a.astype(np.float32) for a in (x, w, g))
    y, back = jax.vjp(lambda x, w: linear(x, w, "autocast"), x, w)
    at, weight = (torch.from_numpy(a).requires_grad_() for a in (x, w))
    with torch.autocast("cpu", torch.bfloat16):
        theirs = at @ weight
    theirs.backward(torch.from_numpy(g).to(torch.bfloat16))
    given = zip((y, *back(jnp.asarray(g))), (theirs, at.grad, weight.grad), strict=True)
    for ours, of_torch in given:
        np.testing.assert_array_equal(ours, of_torch.detach().float().numpy())


def test_changed_linear_layers_refuse_autocast():
    """A change of an event that would leave the results of the others wide."""
    config = Config(width=64, heads=2, matmul="autocast")
    with pytest.raises(UsageError, match="matmul=bf16 or fp32"):
        formats_of(config, ("layer=0 -> mx=mxfp4",))


def test_llama_layers_and_a_gate_are_those_of_numpy():
    """A rotation of other pairs or by another angle, silu on the other half, a norm with a mean, a
    gate before attention: the loss by plain NumPy in binary64, written from the equations.
    """
    config = replace(SMALL, width=16, heads=2, llama=True, gated=True, position=False)
    params, tokens = weights(config), tokens_of(config)
    found = float(gradient(params, tokens, None, config)[0])
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) * 10.0, params)  # far from linear
    big = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), p)
    assert found != pytest.approx(by_numpy(p, tokens, config), rel=1e-3)
    assert float(gradient(big, tokens, None, config)[0]) == pytest.approx(
        by_numpy(p, tokens, config), rel=1e-4
    )


def by_numpy(p, tokens, config):
    """The loss of Llama's layers with gated attention."""
    width, half = config.width, config.head_width // 2

    def norm(x, scale):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def turned(x):  # as complex numbers: feature i is real, i + half imaginary
        z = x[..., :half] + 1j * x[..., half:]
        t = np.arange(x.shape[1])[:, None, None]
        z = z * np.exp(1j * t * 10000.0 ** (-np.arange(half) / half))
        return np.concatenate([z.real, z.imag], -1)

    def sigmoid(x):
        return 1.0 / (1.0 + np.exp(-x))

    x = p["embedding"][tokens[:, :-1]]
    for n in range(config.layers):
        w = {name: leaf[n] for name, leaf in p["layers"].items()}
        read = norm(x, w["norm1"])
        q, k, v = np.einsum("btd,dcnh->cbtnh", read, w["qkv"])
        s = np.einsum("btnh,bsnh->bnts", turned(q), turned(k)) / math.sqrt(config.head_width)
        s = np.where(np.tri(s.shape[-1], dtype=bool), s, -np.inf)
        e = np.exp(s - s.max(-1, keepdims=True))
        out = np.einsum("bnts,bsnh->btnh", e / e.sum(-1, keepdims=True), v)
        out = out * sigmoid(np.einsum("btd,dnh->btnh", read, w["gate"]))
        x = x + np.einsum("btnh,nhd->btd", out, w["proj"])
        read = norm(x, w["norm2"])
        inner = read @ w["inner"]
        x = x + (inner * sigmoid(inner) * (read @ w["up"])) @ w["down"]
    logits = norm(x, p["norm"]) @ p["embedding"].T
    rest = np.log(np.exp(logits).sum(-1))
    chosen = np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    assert x.shape[-1] == width
    return float((rest - chosen).mean())


@pytest.mark.thorough
def test_muon_turns_gradients_of_matrices_to_orthogonal_steps():
    """Axes of a matrix taken for others, all heads' matrices as one or q, k, v as one, an
    embedding that Muon trains, a step against the wrong sign.
    """
    from roundscope.experiments.train.step import optimiser

    config = replace(SMALL, optimizer="muon", width=16, heads=2, vocab=32)
    params = weights(config)
    rng = np.random.default_rng(0)
    grads = jax.tree.map(lambda x: jnp.asarray(rng.standard_normal(x.shape), jnp.float32), params)
    own, adam = optimiser(config), optimiser(replace(config, optimizer="adamw"))
    with jax.numpy_dtype_promotion("standard"):
        lr = jnp.float32(1.0)
        found, _ = own.update(grads, own.init(params), params, lr=lr)
        other, _ = adam.update(grads, adam.init(params), params, lr=lr)
    shapes = {"qkv": (2, 16, 3, 16), "proj": (2, 16, 16), "up": (2, 16, 64), "down": (2, 64, 16)}
    for name, shape in shapes.items():
        step = np.asarray(found["layers"][name]).reshape(shape)
        given = np.asarray(grads["layers"][name]).reshape(shape)
        if name == "qkv":
            step, given = step.swapaxes(1, 2), given.swapaxes(1, 2)
        size = 0.2 * math.sqrt(max(step.shape[-2:]))
        sigma = np.linalg.svd(step, compute_uv=False) / size
        # five steps of Newton and Schulz bring all but the smallest to 0.5 to 1.5
        assert np.quantile(sigma, 0.1) > 0.5 and sigma.max() < 1.5
        assert (step * given).sum() < 0.0
    moved = np.asarray(found["embedding"])
    assert np.abs(moved).max() < 2.5 and (moved * np.asarray(other["embedding"]) > 0).mean() > 0.99
