"""What a call refuses: an experiment that silently does nothing, or does another thing than was
written.

Each in words, with the repair.
"""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import (
    AddUlps,
    Bias,
    FlipBit,
    Injection,
    Noise,
    Plan,
    Record,
    SetTo,
    Site,
    attend,
    examine,
)
from roundscope.attention.places import Sizes, limits
from roundscope.emu.sums.accumulator import Accumulator, Order
from tests.checks.engines import normal

Q, K, V, DO = (
    np.ones(shape, np.float32)
    for shape in ((2, 20, 4, 8), (2, 24, 2, 8), (2, 24, 2, 6), (2, 20, 4, 6))
)
OPTIONS = {"plan": "qiu-yao", "block_q": 8, "block_k": 8, "engine": "numpy"}
ULP = AddUlps(ulps=1.0)


def refused(told, q=Q, k=K, v=V, do=None, *, error=ValueError, **options):
    """Both calls refuse, `examine` with or without a backward; in one line."""
    with pytest.raises(error, match=told) as caught:
        examine(q, k, v, do, **OPTIONS | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("site", "place", "told"),
    [
        ("P", {"heads": 9}, "P:heads=9: the call has 4, numbered from 0 to 3"),
        ("K", {"heads": 2}, "K:heads=2: the call has 2"),
        ("P", {"rows": range(100, 200)}, "P:rows=199: the call has 20"),
        ("K", {"rows": 24}, "K:rows=24: the call has 24"),
        ("P", {"columns": (3, 24)}, "P:columns=24: the call has 24"),
        ("P", {"batch": (0, 5)}, "P:batch=5: the call has 2"),
        ("P", {"tiles": 3}, "P:tiles=3: the call has 3"),
        ("DK", {"tiles": 3}, "DK:tiles=3: the call has 3"),
        ("OUT", {"tiles": 1}, "OUT:tiles=1: the call has 1"),
        ("Q", {"features": 8}, "Q:features=8: the call has 8"),
        ("PV", {"features": 6}, "PV:features=6: the call has 6"),
    ],
)
def test_an_injection_where_there_is_nothing(site, place, told):
    """No bit would change, which looks like a result."""
    refused(f"inject {told}", do=DO, inject=[Injection(site=site, what=ULP, **place)])


def test_the_last_entries_are_there():
    """A limit that is one too small: an injection at the last of everything changes the result it
    should.
    """
    q, k, v = (normal(130 + n, *x.shape) for n, x in enumerate((Q, K, V)))
    clean, last = attend(q, k, v, **OPTIONS), {"batch": 1, "heads": 3, "rows": 19}
    for site, more in (
        ("P", {"columns": 23, "tiles": 2}),
        ("PV", {"features": 5, "tiles": 2}),
        ("Q", {"features": 7}),
    ):
        hurt = attend(
            q, k, v, inject=Injection(site=site, what=SetTo(value=100.0), **last, **more), **OPTIONS
        )
        assert {tuple(place[:3]) for place in np.argwhere(hurt != clean)} == {(1, 19, 3)}
    sizes = Sizes(
        batch=2,
        queries=20,
        keys=24,
        heads=4,
        key_heads=2,
        features=8,
        value_features=6,
        block_q=8,
        block_k=5,
    )
    assert limits(Site.DV, sizes) == {
        "batch": 2,
        "heads": 4,
        "rows": 24,
        "columns": 24,
        "features": 6,
        "tiles": 3,
    }
    assert limits(Site.S, sizes)["tiles"] == 5


def test_a_batch_entry_with_a_plan_of_its_own_is_a_call_of_its_own():
    """It counts as batch entry 0: an injection at entry 1 would do nothing."""
    refused(
        "inject P:batch=1: the call has 1",
        plan=["fp32", "fp32"],
        inject=[Injection(site=Site.P, what=ULP, batch=1)],
    )


@pytest.mark.parametrize("name", ["batch", "heads", "rows", "columns", "tiles"])
@pytest.mark.parametrize("nothing", [(), [], range(3, 3), np.array([], int), slice(2, 2)], ids=str)
def test_empty_selections(name, nothing):
    """An injection that names nothing, from a list that came out empty."""
    with pytest.raises(ValueError, match=f"{name}=.*names nothing.*None names all"):
        Injection(site=Site.P, what=ULP, **{name: nothing})


@pytest.mark.parametrize("where", [True, (0, True), np.True_, 1.0, np.float64(1), "1"])
def test_what_counts_no_entries(where):
    """True taken for head 1."""
    with pytest.raises(ValueError, match=r"heads=.*give an int"):
        Injection(site=Site.P, what=ULP, heads=where)


def test_integers_of_numpy_select():
    want = Injection(site=Site.P, what=ULP, heads=(1,), rows=(0, 2))
    assert Injection(site=Site.P, what=ULP, heads=np.int64(1), rows=np.array([0, 2])) == want


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
@pytest.mark.parametrize(("kind", "name"), [(AddUlps, "ulps"), (Noise, "ulps"), (Bias, "value")])
def test_amounts_are_finite(kind, name, amount):
    """Every number it meets would become NaN."""
    with pytest.raises(ValueError, match=rf"{kind.__name__}: {name}=.*finite.*SetTo"):
        kind(**{name: amount})


def test_a_number_may_be_set_to_anything():
    for value in (float("nan"), float("inf"), 0, np.float32(1.5)):
        out = attend(
            Q, K, V, inject=Injection(site=Site.OUT, what=SetTo(value=value), rows=3), **OPTIONS
        )
        assert np.array_equal(out[:, 3], np.full_like(out[:, 3], value), equal_nan=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AddUlps(ulps="a"),
        lambda: Bias(value=None),
        lambda: Noise(ulps=1j),
        lambda: SetTo(value="nan"),
        lambda: AddUlps(ulps=True),
        lambda: FlipBit(bit=1.0),
        lambda: FlipBit(bit=True),
        lambda: Noise(ulps=1.0, seed=0.5),
    ],
)
def test_amounts_are_numbers(make):
    """A TypeError of Python's, deep inside the call."""
    with pytest.raises(TypeError, match=r"^(AddUlps|Bias|Noise|SetTo|FlipBit): \w+=.*give a"):
        make()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_have_32_bits(seed):
    with pytest.raises(ValueError, match="Noise: seed="):
        Noise(ulps=1.0, seed=seed)


def test_sites_by_name_and_single_injections():
    """A string that fails later, without saying where; a list asked for where there is one."""
    assert Injection(site="p", what=ULP) == Injection(site=Site.P, what=ULP)
    with pytest.raises(ValueError, match="unknown site 'PP'"):
        Injection(site="PP", what=ULP)
    with pytest.raises(TypeError, match="what='ulps=1': give AddUlps"):
        Injection(site="P", what="ulps=1")
    one = Injection(site="OUT", what=ULP, rows=3)
    assert np.array_equal(
        attend(Q, K, V, inject=one, **OPTIONS), attend(Q, K, V, inject=[one], **OPTIONS)
    )
    refused("inject=3: give an Injection", error=TypeError, inject=3)
    refused("inject=.*: give an Injection", error=TypeError, inject=[3])


@pytest.mark.parametrize("site", [Site.DS, Site.DELTA, Site.DO])
def test_a_backward_that_does_not_run(site):
    refused(
        f"inject at {site}: this call runs no backward", inject=[Injection(site=site, what=ULP)]
    )
    with pytest.raises(ValueError, match=f"inject at {site}: this call runs no backward"):
        attend(Q, K, V, inject=Injection(site=site, what=ULP), **OPTIONS)


def test_unfused_attention_never_rescales():
    refused(
        "site=ALPHA: .*never rescales; inject at P",
        plan="baseline-bf16",
        inject=Injection(site=Site.ALPHA, what=ULP),
    )


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"events": "PV"}, "events='PV': give a tuple"),
        ({"ones": Site.PV}, "ones=.*give a tuple"),
        ({"steps": None}, "steps=None: give a"),
        ({"ones": ("PVV",)}, "ones: unknown site 'PVV'"),
        ({"events": (3,)}, "events: unknown site 3"),
        ({"steps": ("P",)}, "steps=P: steps are of sums of products: S ROWSUM"),
        ({"every": 0}, "every=0: a whole number"),
    ],
)
def test_records_of_nothing(record, told):
    """A record that stays empty, and a KeyError later."""
    with pytest.raises((TypeError, ValueError), match=told):
        Record(**record)


def test_records_of_what_the_plan_does_not_have():
    refused(
        "record: events=PV: fa2-bf16 accumulates P V into O.*use O",
        plan="fa2-bf16",
        record=Record(events=("PV",)),
    )
    native = Plan.preset("fa2-bf16").adding("S", Accumulator(order=Order.NATIVE))
    refused("record: steps=S: .*natively", plan=native, record=Record(steps=("S",)))
    everything = Record(events=tuple(Site), ones=(Site.P, Site.PV), steps=("S", "PV"))
    trace = examine(Q, K, V, record=everything, **OPTIONS | {"plan": native}).trace
    assert (
        "PV" not in trace.events
        and "P" in trace.events
        and "PV.step" in trace.stats
        and "S.step" not in trace.stats
    )
    refused("record=True: give a Record", error=TypeError, record=True)
    assert Record(events=("p",), steps=[Site.S]) == Record(events=(Site.P,), steps=(Site.S,))


@pytest.mark.parametrize(
    "scale", [float("nan"), 0, 0.0, -0.0, float("inf"), 1e-60, 1e300, np.float32("nan")]
)
def test_scales_of_nothing(scale):
    """NaN everywhere; scores that are all 0, also by the rounding to binary32."""
    refused("scale=.*finite and not 0", scale=scale)


@pytest.mark.parametrize("scale", ["0.5", True, 1j, [0.5, 0.5]])
def test_scales_are_numbers(scale):
    refused("scale=.*give a number", error=TypeError, scale=scale)


def test_scales_that_only_binary32_lacks():
    """Refused where SCALED is binary64, which holds them."""
    assert np.isfinite(attend(Q, K, V, scale=1e-60, **OPTIONS | {"plan": "exact"})).all()


@pytest.mark.parametrize("is_causal", ["no", 0, 1, None, np.ones(1, bool)])
def test_causal_is_a_bool(is_causal):
    """'no' taken for True."""
    refused("is_causal=.*give True or False", error=TypeError, is_causal=is_causal)


@pytest.mark.parametrize(
    "dtype",
    [
        "complex64",
        "complex128",
        "object",
        "bool",
        "int32",
        "uint8",
        ml_dtypes.int4,
        "str",
        np.longdouble,
    ],
)
@pytest.mark.parametrize("name", ["q", "k", "v", "do"])
def test_arrays_are_floats(name, dtype):
    """A real part taken silently; integers, codes perhaps, taken for numbers; bits that binary64
    does not hold.
    """
    given = {"q": Q, "k": K, "v": V, "do": DO}
    refused(
        f"{name}: dtype .*must be {'real' if 'complex' in str(dtype) else 'a float'}",
        error=TypeError,
        **given | {name: given[name].astype(dtype)},
    )


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_all_floats_enter(dtype):
    assert np.array_equal(attend(Q.astype(dtype), K, V, **OPTIONS), attend(Q, K, V, **OPTIONS))


SIXTEEN = [
    ("bfloat16", "fa2-bf16", (), "bfloat16"),
    ("float16", "all:fp16", "O:ulps=0.25", "float16"),
    ("bfloat16", "all:e4m3fn", (), "bfloat16"),
    ("bfloat16", "fp32", (), "float32"),
    ("float16", "fa2-bf16", (), "float32"),
    ("bfloat16", "all:fp16", (), "float32"),
    ("bfloat16", "fa2-bf16", "OUT:ulps=0.25", "float32"),
]


@pytest.mark.parametrize(
    ("engine", "case"), [*(("numpy", n) for n in range(len(SIXTEEN))), ("xla", 0), ("xla", 1)]
)
def test_16_bits_in_16_bits_out_where_nothing_is_lost(engine, case):
    """A result that is rounded once more as it leaves, or a wider type than the caller works in.

    V is tiny in its second head, so that a conversion that flushes subnormal numbers shows;
    `examine` has the same numbers in float32, as has `attend` of the same numbers in float32.
    """
    dtype, plan, inject, want = SIXTEEN[case]
    tiny = np.array([1.0, 2.0**-120 if dtype == "bfloat16" else 2.0**-12])[:, None]
    arrays = [x[:, :6].astype(dtype) for x in (Q[..., :2, :], K, V * tiny * 2.0**-8)]
    options = {"plan": plan, "inject": inject, "block_q": 4, "block_k": 4}
    given = [jnp.asarray(x) if engine == "xla" else x for x in arrays]
    out = attend(*given, engine=engine, **options)
    exact = examine(*arrays, engine="numpy", **options).out
    assert out.dtype == want and exact.dtype == np.float32 and np.any(exact)
    got = np.asarray(out).astype(np.float32)
    assert np.array_equal(got.view(np.uint32), exact.view(np.uint32))
    wide = attend(*(x.astype("float32") for x in arrays), engine="numpy", **options)
    assert wide.dtype == np.float32 and np.array_equal(wide, exact)


def test_16_bits_of_two_kinds_leave_as_float32():
    """A result in the type of q alone."""
    q, k, v = Q.astype(ml_dtypes.bfloat16), K.astype("float16"), V.astype(ml_dtypes.bfloat16)
    assert attend(q, k, v, **OPTIONS).dtype == np.float32


def test_a_torch_tensor_is_no_array():
    """PyTorch's own words, deep in the call, of a type that NumPy does not know."""
    tensor = type("Tensor", (), {"shape": Q.shape, "dtype": "torch.bfloat16"})
    tensor.__module__ = "torch"
    refused(
        r"q: a .*roundscope\.torch\.attention.*q\.detach\(\)\.float\(\)",
        error=TypeError,
        q=tensor(),
    )


def test_a_list_is_no_array():
    refused("q: a list, must be an array", error=TypeError, q=Q.tolist())
    refused("do: a float, must be an array", error=TypeError, do=1.0)
    refused(r"k: shape \(2, 24\), must be \(batch, tokens", k=K[..., 0, 0])


@pytest.mark.parametrize("plan", [None, 3, {}, [None], [], Plan])
def test_plans_are_plans(plan):
    refused("plan=.*give a Plan", error=TypeError, plan=plan)
    with pytest.raises(TypeError, match=r"plan=.*give a Plan"):
        attend(Q, K, V, plan=plan)


@pytest.mark.parametrize("rows", [1.5, "a", None, True])
def test_tiles_have_whole_rows(rows):
    refused("block_q=.*whole number", error=TypeError, block_q=rows)
    refused("block_k=.*whole number", error=TypeError, block_k=rows)
