"""The NumPy engine inside JAX programs on a CPU: the bits of XLA's engine, under every
transformation, and where it is chosen.
"""

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, attend, examine
from roundscope.attention.engines import custom_call, fused, host, xla
from roundscope.attention.plans.traced import head_plans
from tests.checks.engines import normal
from tests.some import some

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu",
    reason="inside JAX programs the engine needs JAX on a CPU, and elsewhere refuses in a sentence",
)
SHAPES = (2, 20, 4, 8), (2, 24, 2, 8), (2, 24, 2, 8)
Q, K, V = (normal(240 + i, *s) for i, s in enumerate(SHAPES))
TILES = {"block_q": 8, "block_k": 8, "is_causal": True}


def same(found, expected):
    leaves = [jax.tree.leaves(x) for x in (found, expected)]
    return all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(*leaves, strict=True)
    )


def attention(engine, **options):
    return partial(attend, engine=engine, **{"plan": "fa2-bf16"} | TILES | options)


def gradients(engine, **options):
    """All gradients of a sum whose entries weigh differently."""
    run = attention(engine, **options)

    def loss(*x):
        out = run(*x).astype(jnp.float32)
        return (out * jnp.arange(out.size, dtype=jnp.float32).reshape(out.shape)).sum()

    return jax.grad(loss, (0, 1, 2))


def arrays(dtype=jnp.float32):
    return [jnp.asarray(x, dtype) for x in (Q, K, V)]


LONG = ("whole rows", "random", "injection")  # of test_engines.py too; a second or two to compile
CASES = {
    "float32": {},
    "bfloat16": {"dtype": jnp.bfloat16},
    "float16": {"dtype": jnp.float16},
    "whole rows": {"plan": "qiu-yao-compiled"},
    "blocks": {"plan": "fa3-fp8-scaled"},
    "random": {"plan": Plan.preset("fa2-bf16").changed("P=bf16:stochastic")},
    "rounded keys again": {"plan": "triton-tutorial"},
    "injection": {"inject": "P:ulps=0.5"},
    "mask": {"mask": np.random.default_rng(0).random((2, 1, 20, 24)) < 0.7},
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(n, marks=[pytest.mark.thorough] if n in LONG else []) for n in CASES],
)
def test_the_bits_are_those_of_xla(case):
    """Results in other types, arguments in another order, streams of other heads."""
    options = dict(CASES[case])
    x = arrays(options.pop("dtype", jnp.float32))
    assert same(jax.jit(attention("numpy", **options))(*x), attention("xla", **options)(*x))
    assert same(gradients("numpy", **options)(*x), gradients("xla", **options)(*x))


def test_sinks_have_their_gradient():
    sinks = jnp.linspace(-1.0, 1.0, 4)

    def gradient(engine):
        run = attention(engine, plan="qiu-yao")
        return jax.grad(lambda s: (run(*arrays(), sinks=s) ** 2).sum())(sinks)

    assert same(gradient("numpy"), gradient("xla"))


def plans_of_heads():
    """Plans that differ in formats and modes, the last one the first again; one has wide scores."""
    plan = Plan.preset("fa2-bf16")
    changed = plan.changed("P=fp16; O=bf16:toward-zero"), plan.changed("SCALED=fp64")
    return head_plans([plan, *changed, plan])


@pytest.mark.parametrize("arms", [pytest.param(None, marks=pytest.mark.thorough), 2])
def test_plans_of_heads_are_data(arms, monkeypatch):
    """Heads with the plan of another head, or whose results are at another's place."""
    plans, key = plans_of_heads(), jnp.asarray([1.0, 0.5])
    k, v = (normal(260 + i, 2, 24, 4, 8) for i in range(2))  # as many heads as q

    def run(engine, table, weight):
        own = partial(attend, plan=replace(plans, table=table), engine=engine, **TILES)
        out, pull = jax.vjp(own, jnp.asarray(Q), k, v)
        return out, pull(weight * jnp.arange(out.size, dtype=jnp.float32).reshape(out.shape))

    used, with_plan = [], host._with_plan
    monkeypatch.setattr(host, "_with_plan", lambda *x: used.append(1) or with_plan(*x))
    tables = plans.table if arms is None else np.stack([plans.table, plans.table[::-1]])
    weights = key[0] if arms is None else key
    with fused.from_scores(0):
        found, expected = (
            (jax.jit(partial(run, engine)) if arms is None else jax.vmap(partial(run, engine)))(
                tables, weights
            )
            for engine in (None, "xla")
        )
        jax.block_until_ready(found)
    assert used and same(found, expected)


def test_sinks_of_heads_with_plans():
    """The gradient of sinks was asked of XLA's engine with plans in the form of this one."""
    plans, (k, v) = plans_of_heads(), (jnp.asarray(normal(260 + i, 1, 24, 4, 8)) for i in range(2))
    q, sinks = jnp.asarray(Q[:1]), jnp.asarray([0.5, -0.25, 1.0, 0.0], jnp.float32)

    def run(engine):
        def loss(q, sinks):
            return attend(q, k, v, plan=plans, sinks=sinks, engine=engine, **TILES).sum()

        return jax.grad(loss, (0, 1))(q, sinks)

    with fused.from_scores(0):
        assert same(run(None), run("xla"))


def mapped(engine):
    entries = [x[:, None] for x in arrays()]
    return jax.jit(jax.vmap(gradients(engine)))(*entries)


def mapped_queries(engine):
    """Keys and values have no axis of the map."""
    q, k, v = arrays()
    return jax.vmap(attention(engine), (0, None, None))(jnp.stack([q, 2 * q]), k, v)


def in_layers(engine):
    """A scan over layers that are computed again for the gradient."""

    def loss(x):
        layer = jax.checkpoint(lambda x: attention(engine)(x, x, x))
        return jax.lax.scan(lambda x, _: (layer(x), None), x, None, length=3)[0].sum()

    return jax.jit(jax.grad(loss))(arrays()[0])


def sharded(engine):
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("batch")
    return jax.jit(jax.shard_map(attention(engine), mesh=mesh, in_specs=spec, out_specs=spec))(
        *arrays()
    )


def in_64_bits(engine):
    with jax.enable_x64(True):
        return jax.jit(gradients(engine))(*arrays(jnp.float64))


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(mapped, marks=pytest.mark.thorough),
        mapped_queries,
        in_layers,
        sharded,
        in_64_bits,
    ],
)
def test_under_transformations(run):
    assert same(run("numpy"), run("xla"))


def test_a_large_call_on_a_cpu_is_numpys(monkeypatch):
    """A user who waits for XLA, six times as long; a call whose bits or speed are XLA's."""
    used = []
    monkeypatch.setattr(host, "forward", lambda *x: used.append("host") or xla.forward(*x))
    plan = Plan.preset("fa2-bf16")
    with fused.from_scores(0):
        out = attention(None)(*arrays())
        assert used.pop() == "host" and isinstance(out, jax.Array)
        for options in (
            {"engine": "xla"},
            {"plan": plan.changed("PV.sum=native")},
            {"plan": head_plans([plan] * 4)},  # which share key heads
            {"inject": "P:ulps=0.5"},
            {"plan": plan.changed("P=bf16:stochastic")},
        ):
            attend(*arrays(), **{"plan": plan} | TILES | options)
            assert not used, options
    attention(None)(*arrays())  # it is too small
    assert not used


@pytest.mark.parametrize("dtype", some([np.float64, np.float32]))
def test_a_large_call_of_examine_is_numpys(dtype, monkeypatch):
    """Results of another type than those of XLA's engine; one of its calls."""
    do = normal(250, 2, 20, 4, 8)
    with jax.enable_x64(dtype == np.float64):
        x = [jnp.asarray(x, dtype) for x in (Q, K, V, do)]
        expected = examine(*x, plan="fa2-bf16", engine="xla", **TILES)
        monkeypatch.delattr(xla, "forward")
        with fused.from_scores(0):
            found = examine(*x, plan="fa2-bf16", **TILES)
    for name in ("out", "lse", "dq", "dk", "dv", "delta"):
        assert isinstance(getattr(found, name), jax.Array)
        assert same(getattr(found, name), getattr(expected, name)), name
    assert found.dsinks is None and found.trace.stats["P"].total().n == 1680


def test_on_a_gpu_numpy_is_refused_inside_jit(monkeypatch):
    """XLA's own words of a target that it does not know."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="needs JAX on a CPU, not on a gpu; use engine='xla'"):
        jax.jit(attention("numpy"))(*arrays())


def _twice(x, y):
    if y is not None:
        raise ValueError("no y, please")
    return (x + x,)


TYPES = [bool, np.int64, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3)])
@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_of_a_call(dtype, shape):
    """The memory of a program, read in another type or shape."""
    with jax.enable_x64(True):
        x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        (found,) = jax.jit(lambda x: custom_call.call(_twice, [shape], dtype, x, None))(x)
    assert same(found, x + x) and found.shape == shape


@pytest.mark.parametrize(
    ("shape", "more", "said"),
    [
        ((4,), (None,), r"shape \(3,\), and the program \(4,\)"),
        ((3,), (np.ones(1),), "no y, please"),
    ],
)
def test_an_error_of_the_function_reaches_the_caller(shape, more, said):
    """A result that nobody computed."""
    with pytest.raises(jax.errors.JaxRuntimeError, match=said):
        jax.jit(lambda x: custom_call.call(_twice, [shape], np.float32, x, *more))(jnp.ones(3))


def _small(x):
    """Products that are subnormal, here and in a thread that starts here."""
    with ThreadPoolExecutor(1) as pool:
        found = x * np.float32(1e-40), pool.submit(lambda: x * np.float32(1e-40)).result()
    return found


def test_subnormal_numbers_stay():
    """Threads of XLA flush them to 0, and threads that they start."""
    both = jax.jit(lambda x: custom_call.call(_small, [(3,)] * 2, np.float32, x))
    x = np.ones(3, np.float32)
    expected = (x * np.float32(1e-40)).tobytes()
    assert [np.asarray(y).tobytes() for y in both(x)] == [expected] * 2
    # a program that is not run by the thread that calls it
    later = jax.jit(lambda x: custom_call.call(_small, [(9, 9)] * 2, np.float32, (x @ x)[:9, :9]))
    assert all(np.asarray(y).all() for y in later(jnp.ones((900, 900))))


@pytest.mark.parametrize("plan", ["fa2-bf16", "qiu-yao-compiled"])
def test_scores_far_apart_have_the_bits_of_xla(plan):
    """Subnormal P and gradients."""
    q, k, v = (30 * x for x in arrays())
    assert same(gradients("numpy", plan=plan)(q, k, v), gradients("xla", plan=plan)(q, k, v))


def test_eight_bits_enter():
    x = [jnp.asarray(x, jnp.float8_e5m2) for x in (Q, K, V)]
    assert same(jax.jit(attention("numpy"))(*x), attention("xla")(*x))


@pytest.mark.parametrize(
    "code",
    [
        # two threads whose first calls come together
        """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(6) as pool:
            found = [x.result() for x in [pool.submit(f, x) for _ in range(6)]]
        print(all((y == found[0]).all() for y in found))
        """,
        # threads that want Python when there is none any more
        """
        for _ in range(3): f(x)
        outs = [f(x + n) for n in range(200)]
        print(True)
        """,
        # a call when Python ends
        """
        import atexit
        def last():
            try: f(x + 1).block_until_ready()
            except Exception as error: print("is ending" in str(error))
        atexit.register(last)
        f(x).block_until_ready()
        """,
        # Ctrl-C, which is raised again where Python goes on
        """
        import signal, time, numpy as np
        from roundscope.attention.engines.custom_call import call
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def interrupted(x): raise KeyboardInterrupt
        try:
            try: jax.jit(lambda x: call(interrupted, [(3,)], np.float32, x))(jnp.ones(3))
            except Exception: time.sleep(0.1)
        except KeyboardInterrupt: print(True)
        """,
    ],
    ids=["threads", "pending", "last", "interrupted"],
)
def test_processes(code):
    """A process that hangs or aborts; results that nobody computed."""
    begin = (
        "import jax, jax.numpy as jnp; from roundscope.attention import attend\n"
        "f = jax.jit(lambda x: attend(x, x, x, plan='qiu-yao', engine='numpy', block_q=32))\n"
        "x = jnp.ones((1, 128, 2, 8))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code)],
        capture_output=True,
        timeout=120,
        text=True,
    )
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
