"""`attend` as a JAX function: jit, vmap, grad, narrow and wide types, 64-bit mode off and on, no
needless compilation.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import FlipBit, Injection, Plan, Record, SetTo, Site, attend, examine
from roundscope.attention.engines.xla import _enter, _leave
from roundscope.attention.plans.traced import head_plans
from tests.checks.engines import bits, normal

SHAPES = (2, 20, 4, 8), (2, 24, 2, 8), (2, 24, 2, 8), (2, 20, 4, 8)
Q, K, V, DO = (normal(140 + i, *s) for i, s in enumerate(SHAPES))  # BF16 numbers in binary32
OPTIONS = {"plan": Plan.preset("fa2-bf16"), "block_q": 8, "block_k": 8, "is_causal": True}


def same(x, y):
    x, y = np.asarray(x), np.asarray(y)
    return x.dtype == y.dtype and np.array_equal(bits(x), bits(y))


def loss(q, k, v):
    return (attend(q, k, v, **OPTIONS).astype(jnp.float32) * DO).sum()


@pytest.fixture(scope="module")
def truth():
    """The numpy engine's result."""
    return examine(Q, K, V, DO, engine="numpy", record=None, **OPTIONS)


def on_device():
    return [jnp.asarray(x) for x in (Q, K, V)]


@pytest.mark.parametrize("transformed", [jax.jit, jax.vmap, jax.grad])
def test_a_trace_without_numbers_is_refused(transformed):
    """JAX's own words of tracers, which do not say what to do."""
    q = on_device()[0]
    with pytest.raises(
        ValueError, match=r"record: inside jit, grad or vmap .* call examine outside"
    ):
        transformed(lambda q: examine(q, K, V, record=Record(), **OPTIONS).out.sum())(
            q[None] if transformed is jax.vmap else q
        )


def test_arrays_choose_the_engine():
    """A NumPy user who waits for XLA to compile, or a JAX user who gets NumPy arrays back."""
    assert isinstance(attend(Q, K, V, **OPTIONS), np.ndarray)
    assert isinstance(attend(*on_device(), **OPTIONS), jax.Array)
    assert isinstance(attend(Q, K, V, engine="xla", **OPTIONS), jax.Array)


def test_jit_gives_the_same_bits(truth):
    """Inlined into a caller's program, XLA may fuse roundings away."""
    arrays = on_device()
    assert same(attend(*arrays, **OPTIONS), truth.out)
    assert same(jax.jit(lambda q, k, v: attend(q, k, v, **OPTIONS))(*arrays), truth.out)
    surrounded = jax.jit(lambda q, k, v: 2 * attend(q * 2 / 2, k, v + 0, **OPTIONS))(*arrays)
    assert same(surrounded, 2 * truth.out)


def test_grad_is_the_emulated_backward(truth):
    """JAX differentiating through the roundings (zero almost everywhere), or a backward of its
    own.
    """
    for transform in (lambda f: f, jax.jit):
        dq, dk, dv = transform(jax.grad(loss, argnums=(0, 1, 2)))(*on_device())
        assert same(dq, truth.dq)
        assert same(dk, truth.dk)
        assert same(dv, truth.dv)


def test_vmap_maps_calls(truth):
    """Heads or batches mixed when a leading axis is mapped."""
    mapped = jax.vmap(lambda q, k, v: attend(q[None], k[None], v[None], **OPTIONS)[0])(*on_device())
    assert same(mapped, truth.out)
    gradient = jax.vmap(
        jax.grad(lambda q, k, v, do: (attend(q[None], k[None], v[None], **OPTIONS)[0] * do).sum())
    )
    assert same(gradient(*on_device(), jnp.asarray(DO)), truth.dq)


def test_bf16_inputs_enter_exactly(truth):
    """A narrow input that is rounded once more, or a gradient in another type than its input."""
    narrow = [x.astype(jnp.bfloat16) for x in on_device()]
    assert same(attend(*narrow, **OPTIONS).astype(jnp.float32), truth.out)
    dq, dk, dv = jax.grad(loss, argnums=(0, 1, 2))(*narrow)
    for got, want in ((dq, truth.dq), (dk, truth.dk), (dv, truth.dv)):
        assert got.dtype == jnp.bfloat16
        assert same(
            np.asarray(got).astype(np.float32), want
        )  # the outputs of fa2-bf16 are BF16 numbers
    as_numpy = [x.astype(ml_dtypes.bfloat16) for x in (Q, K, V)]
    assert same(attend(*as_numpy, **OPTIONS).astype(np.float32), truth.out)


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        ("float16", {}),
        ("bfloat16", {"plan": "fa3-fp8"}),
        ("bfloat16", {"inject": (Injection(site=Site.K, what=FlipBit(bit=3), rows=2),)}),
        ("bfloat16", {"plan": Plan.preset("fa2-bf16").at("V", "bf16", overflow="saturate")}),
    ],
    ids=["wider than the event", "rounded", "injected", "infinities"],
)
def test_the_event_of_a_narrow_input_happens(dtype, change):
    """A 16-bit input taken for what its event makes of it."""
    narrow = [(1.01 * x).astype(dtype) for x in on_device()]
    narrow[2] = narrow[2].at[0, 3, 0, 2].set(jnp.inf)
    options = OPTIONS | change
    wide = [np.asarray(x.astype(jnp.float32)) for x in narrow]
    got = np.asarray(attend(*narrow, **options)).astype(np.float32)
    assert same(got, attend(*wide, engine="numpy", **options))


def test_the_event_of_a_narrow_input_happens_by_head():
    """The first head's plan taken for that of all."""
    narrow = [(1.01 * x).astype(jnp.bfloat16) for x in on_device()]
    plans = [Plan.preset("fa2-bf16")] * 4
    plans[1] = plans[1].at("Q", "e5m2")
    together = attend(*narrow, **OPTIONS | {"plan": head_plans(plans)})
    alone = attend(*narrow, **OPTIONS | {"plan": plans[1]})
    assert same(together[:, :, 1], alone[:, :, 1].astype(jnp.float32))


def test_64_bit_mode_changes_no_bit(truth):
    """Types that depend on a global switch."""
    with jax.enable_x64(True):
        arrays = on_device()
        assert arrays[0].dtype == jnp.float32
        assert same(attend(*arrays, **OPTIONS), truth.out)
        gradients = jax.grad(loss, argnums=(0, 1, 2))(*arrays)
    for got, want in zip(gradients, (truth.dq, truth.dk, truth.dv), strict=True):
        assert same(got, want)


def test_float64_inputs_with_64_bit_mode_off_and_on():
    """binary64 inputs silently made binary32."""
    wide = [x.astype(np.float64) * (1 + 2.0**-30) for x in (Q, K, V)]
    options = OPTIONS | {"plan": Plan.preset("exact")}
    want = attend(*wide, engine="numpy", **options)
    assert want.dtype == np.float64
    assert same(attend(*wide, engine="xla", **options), want)
    with jax.enable_x64(True):
        assert same(attend(*(jnp.asarray(x) for x in wide), **options), want)
        dq = jax.grad(lambda q: (attend(q, *wide[1:], **options) * DO.astype(np.float64)).sum())(
            jnp.asarray(wide[0])
        )
    full = examine(*wide, DO.astype(np.float64), engine="numpy", record=None, **options)
    assert same(dq, full.dq)


def test_equal_setups_compile_once():
    """A static argument that compares by identity: every call would compile again."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(name) if "backend_compile" in name else None
    )

    def call(shift, injected=0.0):
        plan = Plan.preset("fp32").at(Site.O, "fp16", "stochastic", seed=6)
        inject = [Injection(site=Site.O, what=SetTo(value=injected), rows=range(3))]
        arrays = [x + shift for x in (Q, K, V)]
        return np.asarray(
            attend(*arrays, plan=plan, block_q=8, block_k=8, inject=inject, engine="xla")
        )

    call(0)
    assert compiled
    compiled.clear()
    call(np.float32(1))
    assert compiled == []
    call(0, injected=1.0)
    assert compiled  # another setup is another program


def test_no_narrow_type_in_the_program():
    """`astype(bf16).astype(f32)`, which XLA deletes: roundings must be integer steps."""
    for preset in ("fa2-bf16", "all:e4m3fn", "qiu-yao"):
        options = OPTIONS | {"plan": Plan.preset(preset)}
        gradient = jax.grad(
            lambda q, k, v, o=options: attend(q, k, v, **o).sum(), argnums=(0, 1, 2)
        )
        program = str(jax.make_jaxpr(gradient)(*on_device()))
        assert "f64[" in program
        assert not re.search(r"\b(bf16|f16|f8\w*|f4\w*)\[|reduce_precision", program)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_q": 0}, ("block_q=0",)),
        ({"block_k": -8}, ("block_k=-8",)),
        ({"engine": "cuda"}, ("engine='cuda'", "numpy", "xla")),
        ({"mask": np.ones((2, 1, 20, 24), np.int8)}, ("mask", "int8", "bool")),
        ({"mask": np.ones((3, 1, 20, 24), bool)}, ("mask", "(3, 1, 20, 24)", "(2, 4, 20, 24)")),
        ({"q": Q[0]}, ("q", "(20, 4, 8)")),
        ({"q": Q[:, :0]}, ("q", "none 0")),
        ({"q": Q[..., :5]}, ("k", "features")),
        ({"q": Q[:, :, :3]}, ("3 heads", "multiple")),
        ({"k": K[:, :20]}, ("v", "agree")),
        ({"do": DO[:, :9]}, ("do", "(2, 9, 4, 8)", "(2, 20, 4, 8)")),
    ],
)
def test_errors_name_the_argument(change, words):
    """A shape that broadcasts by accident."""
    arguments = {"q": Q, "k": K, "v": V, "do": DO} | OPTIONS | change
    arrays = [arguments.pop(name) for name in ("q", "k", "v", "do")]
    with pytest.raises(ValueError, match=r".") as caught:
        examine(*arrays, **arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("f", "shape", "dtype", "steps"),
    [
        (
            lambda x: _leave(x, 1, 4, jnp.dtype("float32")),
            (1, 4, 2),
            "float64",
            ["convert", "optimization_barrier"],
        ),
        (lambda x: _enter(x, 4), (1, 4, 1, 2), "float32", ["optimization_barrier", "convert"]),
        (
            lambda x: _enter(x, 4),
            (1, 4, 1, 2),
            "bfloat16",
            ["optimization_barrier", "convert", "convert"],
        ),
    ],
    ids=["leave", "enter", "enter from bfloat16"],
)
def test_xla_on_a_gpu_sees_no_conversion_to_undo(f, shape, dtype, steps):
    """To a narrower type and back XLA leaves out both, and the rounding with them: results of one
    call that enter the next would be wider, and inputs that the caller's program rounds.
    """
    with jax.enable_x64(True):
        lowered = (
            jax.jit(f).trace(jnp.zeros(shape, dtype)).lower(lowering_platforms=("cuda",)).as_text()
        )
    assert [
        word
        for word in re.findall(r"stablehlo\.(\w+)", lowered)
        if word in ("convert", "optimization_barrier")
    ] == steps
