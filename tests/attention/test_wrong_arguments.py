"""Wrong calls of the public API, one table: each is refused in one line that names the argument,
its value and the repair.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import roundscope as rs
from roundscope import emu
from roundscope.attention import Injection, Plan, Record, Site, attend, examine
from tests.checks.engines import normal

Q, K, V, DO = (
    np.ones(shape, np.float32)
    for shape in ((2, 8, 4, 16), (2, 12, 2, 16), (2, 12, 2, 16), (2, 8, 4, 16))
)
ULP = rs.AddUlps(ulps=1.0)
A, B = np.ones((2, 3)), np.ones((3, 2))
X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
NAN, INF = float("nan"), float("inf")
RAW = (
    "Traceback",
    "tracer",
    "Tracer",
    "broadcast_shapes",
    "operands could not",
    "object has no attribute",
    "unsupported operand",
    "dot_general",
)


def call(q=Q, k=K, v=V, **options):
    """`attend`, with one thing wrong."""
    return lambda: attend(q, k, v, **{"plan": "qiu-yao", "block_q": 4, "block_k": 4} | options)


def look(q=Q, k=K, v=V, do=None, **options):
    """`examine`, with one thing wrong."""
    return lambda: examine(q, k, v, do, **{"plan": "qiu-yao", "block_q": 4, "block_k": 4} | options)


def at(site, **where):
    """An injection at a place."""
    return Injection(site=site, what=ULP, **where)


def examined_in_grad(**options):
    """`examine` where JAX has no numbers."""
    return lambda: jax.grad(lambda q: examine(q, K, V, plan="qiu-yao", **options).out.sum())(
        jnp.asarray(Q)
    )


def differentiated(**options):
    """The gradient of `attend` under JAX, with one thing wrong."""

    arrays = [jnp.asarray(x) for x in (Q, K, V)]
    return lambda: jax.grad(
        lambda q: attend(q, *arrays[1:], **{"plan": "qiu-yao"} | options).sum()
    )(arrays[0])


def pulled(**options):
    """`attention.differentiable.pulled`, with one thing wrong."""

    def run():
        from roundscope.attention.differentiable import pulled as pull
        from roundscope.attention.plans.traced import head_plans

        given = {
            "q": Q,
            "k": K,
            "v": V,
            "do": DO,
            "plan": head_plans([Plan.preset("fp32")] * 4),
        } | options
        return pull(**given)

    return run


def sharded(**options):
    """`attention.sharded.attend_sharded`, with one thing wrong."""

    def run():
        import jax

        from roundscope.attention.sharded import attend_sharded

        mesh = jax.make_mesh((1, 1), ("batch", "heads"))
        given = {
            "q": jnp.asarray(Q),
            "k": jnp.asarray(K),
            "v": jnp.asarray(V),
            "mesh": mesh,
            "plan": "fp32",
        } | options
        return attend_sharded(**given)

    return run


FP32 = Plan.preset("fp32")

# (name, call, error, words that the message holds)
CALLS = [
    # tensors
    ("complex", call(q=Q.astype("complex64")), TypeError, ("q: dtype complex64", "astype")),
    ("objects", call(k=K.astype(object)), TypeError, ("k: dtype object", "astype")),
    ("strings", call(v=V.astype(str)), TypeError, ("v: dtype", "astype")),
    ("integers", call(q=Q.astype("int32")), TypeError, ("q: dtype int32", "astype")),
    ("bools", call(q=Q.astype(bool)), TypeError, ("q: dtype bool", "astype")),
    ("list", call(q=Q.tolist()), TypeError, ("q: a list", "numpy.asarray")),
    ("no-array", call(q=None), TypeError, ("q: None", "numpy.asarray")),
    ("rank", call(q=Q[0]), ValueError, ("q: shape (8, 4, 16)", "(batch, tokens, heads, features)")),
    ("empty", call(q=Q[:, :0]), ValueError, ("q: shape (2, 0, 4, 16)", "none 0")),
    (
        "width",
        call(q=Q[..., :8]),
        ValueError,
        ("k: shape (2, 12, 2, 16)", "agree with q (2, 8, 4, 8)"),
    ),
    ("batch", call(q=Q[:1]), ValueError, ("k: shape", "agree with q", "batch")),
    ("keys", call(v=V[:, :5]), ValueError, ("v: shape (2, 5, 2, 16)", "agree with k")),
    ("heads", call(q=Q[:, :, :3]), ValueError, ("q: 3 heads", "multiple of the 2")),
    (
        "layout of k",
        call(k=K.swapaxes(1, 2), v=V.swapaxes(1, 2)),
        ValueError,
        ("if k and v are (B, G, S, H), give k.swapaxes(1, 2) and v.swapaxes(1, 2)",),
    ),
    ("name of a plan", call(plan="fa-2"), ValueError, ("plan: unknown preset 'fa-2'", "'fa2'")),
    ("do-shape", look(do=DO[:, :4]), ValueError, ("do: shape (2, 4, 4, 16)", "that of the output")),
    ("do-type", look(do=DO.astype(int)), TypeError, ("do: dtype int64", "astype")),
    # mask, window, softcap, sinks
    (
        "mask-dtype",
        call(mask=np.ones((8, 12), int)),
        (TypeError, ValueError),
        ("mask: dtype int64", "bool"),
    ),
    (
        "mask-shape",
        call(mask=np.ones((8, 11), bool)),
        ValueError,
        ("mask: shape (8, 11)", "(2, 4, 8, 12)"),
    ),
    (
        "mask-rank",
        call(mask=np.ones((1, 1, 1, 8, 12), bool)),
        ValueError,
        ("mask: shape", "(2, 4, 8, 12)"),
    ),
    (
        "mask-ragged",
        call(mask=[[True], [True, False]]),
        (TypeError, ValueError),
        ("mask", "array of bool"),
    ),
    ("mask-text", call(mask="causal"), (TypeError, ValueError), ("mask", "bool")),
    (
        "mask-of-jax",
        call(q=jnp.asarray(Q), mask=jnp.ones((8, 11), bool)),
        ValueError,
        ("mask: shape (8, 11)", "(2, 4, 8, 12)"),
    ),
    ("window-zero", call(window=0), ValueError, ("window=0", "None for all keys")),
    ("window-float", call(window=2.0), TypeError, ("window=2.0", "whole number")),
    ("window-bool", call(window=True), TypeError, ("window=True", "whole number")),
    ("window-array", call(window=np.ones(2, int)), TypeError, ("window=", "whole number")),
    ("softcap-nan", call(softcap=NAN), ValueError, ("softcap=nan", "above 0")),
    ("softcap-zero", call(softcap=0), ValueError, ("softcap=0", "above 0")),
    ("softcap-text", call(softcap="50"), TypeError, ("softcap='50'", "give a number")),
    ("softcap-array", call(softcap=np.ones(2)), TypeError, ("softcap=", "give a number")),
    ("softcap-complex", call(softcap=np.complex64(2)), TypeError, ("softcap=", "give a number")),
    ("sinks-shape", call(sinks=np.ones(3, np.float32)), ValueError, ("sinks: shape (3,)", "(4,)")),
    ("sinks-type", call(sinks=np.ones(4, int)), TypeError, ("sinks: dtype int64", "astype")),
    ("sinks-list", call(sinks=[1.0] * 4), TypeError, ("sinks: a list", "numpy.asarray")),
    # numbers and switches
    ("scale-nan", call(scale=NAN), ValueError, ("scale=nan", "0.125")),
    ("scale-zero", call(scale=0.0), ValueError, ("scale=0.0", "not 0")),
    ("scale-inf", call(scale=-INF), ValueError, ("scale=-inf", "finite")),
    ("scale-text", call(scale="1"), TypeError, ("scale='1'", "give a number")),
    ("scale-complex", call(scale=np.complex64(1)), TypeError, ("scale=", "give a number")),
    ("scale-array", call(scale=np.ones(1)), TypeError, ("scale=", "give a number")),
    (
        "scale-negative",
        call(plan=FP32.changed("scale_roots=true"), scale=-1.0),
        ValueError,
        ("scale=-1", "positive"),
    ),
    ("causal-text", call(is_causal="no"), TypeError, ("is_causal='no'", "True or False")),
    ("causal-one", call(is_causal=1), TypeError, ("is_causal=1", "True or False")),
    ("block-zero", call(block_q=0), ValueError, ("block_q=0", "from 1 to 2^31 rows")),
    ("block-negative", call(block_k=-4), ValueError, ("block_k=-4", "from 1 to 2^31 rows")),
    ("block-bool", call(block_q=True), TypeError, ("block_q=True", "whole number")),
    ("block-float", call(block_k=4.0), TypeError, ("block_k=4.0", "whole number")),
    ("block-array", call(block_k=np.ones(2, int)), TypeError, ("block_k=", "whole number")),
    ("engine", call(engine="cuda"), ValueError, ("engine='cuda'", "Known: numpy xla pallas")),
    ("engine-near", call(engine="xlaa"), ValueError, ("engine='xlaa'", "did you mean 'xla'")),
    (
        "engine-list",
        call(engine=["xla"]),
        (TypeError, ValueError),
        ("engine=['xla']", "'numpy', 'xla', 'pallas'"),
    ),
    (
        "engine-array",
        call(engine=np.ones(2)),
        (TypeError, ValueError),
        ("engine=", "'numpy', 'xla', 'pallas'"),
    ),
    # plans
    ("plan-none", call(plan=None), TypeError, ("plan=None", "give a Plan")),
    ("plan-absent", lambda: attend(Q, K, V), TypeError, ("plan=None", "'fa2'", "roundscope plans")),
    ("plan-number", look(plan=3), TypeError, ("plan=3", "give a Plan")),
    ("plan-near", call(plan="fa2-bf61"), ValueError, ("'fa2-bf61'", "did you mean 'fa2-bf16'")),
    ("plan-core", call(plan="fa2-bf16@hoper"), ValueError, ("hoper", "did you mean 'hopper'")),
    ("plans-count", look(plan=["fp32"] * 3), ValueError, ("plan: 3 plans", "2 batch entries")),
    ("plans-attend", call(plan=["fp32", "fp32"]), TypeError, ("plan=", "examine")),
    ("plans-heads", pulled(plan=FP32), TypeError, ("plan=", "head_plans")),
    (
        "plan-site",
        lambda: FP32.at("PP", "bf16"),
        ValueError,
        ("unknown site 'PP'", "did you mean 'P'"),
    ),
    (
        "plan-format",
        lambda: FP32.at("P", "bf61"),
        ValueError,
        ("unknown format 'bf61'", "did you mean 'bf16'"),
    ),
    (
        "plan-mode",
        lambda: FP32.at("P", "bf16", "stochastik"),
        ValueError,
        ("'stochastik'", "did you mean 'stochastic'"),
    ),
    (
        "plan-overflow",
        lambda: FP32.at("P", "bf16", overflow="saturat"),
        ValueError,
        ("'saturat'", "did you mean 'saturate'"),
    ),
    ("plan-format-none", lambda: FP32.at("P", None), TypeError, ("format=None", "bf16")),
    (
        "plan-seed",
        lambda: FP32.at("P", "bf16", "stochastic", seed=-1),
        ValueError,
        ("seed=-1", "from 0 to 2^32 - 1"),
    ),
    (
        "plan-seed-bool",
        lambda: FP32.at("P", "bf16", "stochastic", seed=True),
        (TypeError, ValueError),
        ("seed=True", "from 0 to"),
    ),
    ("plan-sum", lambda: FP32.adding("P", emu.Accumulator()), ValueError, ("site=P", "S ROWSUM")),
    ("plan-changed-number", lambda: FP32.changed(3), TypeError, ("changes=3", "a text")),
    (
        "plan-changed-seed",
        lambda: FP32.changed("O=bf16", seed=-1),
        ValueError,
        ("seed=-1", "from 0 to 2^32 - 1"),
    ),
    ("plan-changed", lambda: FP32.changed("O=bf61"), ValueError, ("bf61", "did you mean 'bf16'")),
    (
        "plan-changed-site",
        lambda: FP32.changed("PW=bf16"),
        ValueError,
        ("'PW'", "did you mean 'P'"),
    ),
    # injections
    ("inject-heads", call(inject=at("P", heads=9)), ValueError, ("inject P:heads=9", "0 to 3")),
    ("inject-rows", call(inject=at("P", rows=8)), ValueError, ("inject P:rows=8", "0 to 7")),
    ("inject-tiles", call(inject=at("P", tiles=3)), ValueError, ("inject P:tiles=3", "0 to 2")),
    (
        "inject-features",
        call(inject=at("PV", features=16)),
        ValueError,
        ("inject PV:features=16", "0 to 15"),
    ),
    ("inject-backward", call(inject=at("DS")), ValueError, ("inject at DS", "examine with do")),
    ("inject-number", call(inject=3), TypeError, ("inject=3", "give an Injection")),
    ("inject-what", call(inject=ULP), TypeError, ("inject=AddUlps", "give an Injection")),
    ("inject-none", call(inject=None), TypeError, ("inject=None", "give an Injection", "()")),
    (
        "inject-text-site",
        call(inject="PW:ulps=1"),
        ValueError,
        ("inject='PW:ulps=1'", "did you mean 'P'"),
    ),
    (
        "inject-text-what",
        call(inject=["O:ulp=1"]),
        ValueError,
        ("inject='O:ulp=1'", "did you mean 'ulps'"),
    ),
    (
        "inject-text-place",
        call(inject="O:ulps=1:row=3"),
        ValueError,
        ("inject='O:ulps=1:row=3'", "did you mean 'rows'"),
    ),
    (
        "inject-text-held",
        call(plan="fa2-bf16", inject="P:set=1000.1"),
        ValueError,
        ("inject", "P", "bf16 cannot hold 1000.1", "1000"),
    ),
    (
        "inject-held",
        call(plan="fa2-bf16", inject=Injection(site="P", what=rs.SetTo(value=1000.1))),
        ValueError,
        ("inject", "P", "bf16 cannot hold 1000.1", "1000"),
    ),
    (
        "inject-bit",
        call(plan="fa2-bf16", inject=Injection(site="P", what=rs.FlipBit(bit=16))),
        ValueError,
        ("bit=16", "bits 0 to 15"),
    ),
    ("injection-site", lambda: at("PW"), ValueError, ("site", "'PW'", "did you mean 'P'")),
    ("injection-site-none", lambda: at(None), (TypeError, ValueError), ("site", "None", "Known")),
    ("injection-what", lambda: Injection(site="P", what=3), TypeError, ("what=3", "give AddUlps")),
    ("injection-nan", lambda: rs.AddUlps(ulps=NAN), ValueError, ("AddUlps: ulps=nan", "finite")),
    ("injection-bias", lambda: rs.Bias(value=INF), ValueError, ("Bias: value=inf", "finite")),
    (
        "injection-bit",
        lambda: rs.FlipBit(bit=-1),
        ValueError,
        ("FlipBit: bit=-1", "whole number from 0"),
    ),
    (
        "injection-seed",
        lambda: rs.Noise(ulps=1.0, seed=2**32),
        ValueError,
        ("Noise: seed=4294967296", "2^32 - 1"),
    ),
    (
        "injection-no-number",
        call(inject="P:ulps"),
        ValueError,
        ("'ulps' needs a number", "write ulps=1"),
    ),
    ("injection-negative", lambda: at("P", rows=-1), ValueError, ("rows=-1", "count from 0")),
    ("injection-empty", lambda: at("P", heads=()), ValueError, ("heads=()", "None names all")),
    (
        "injection-columns",
        lambda: at("O", columns=1),
        ValueError,
        ("columns=(1,)", "use rows or features"),
    ),
    (
        "injection-slice",
        lambda: at("P", rows=slice(0, "4")),
        (TypeError, ValueError),
        ("rows=slice", "give"),
    ),
    (
        "injection-slice-step",
        lambda: at("P", rows=slice(0, 4, 0)),
        (TypeError, ValueError),
        ("rows=slice", "step", "give"),
    ),
    (
        "injection-slice-back",
        lambda: at("P", rows=slice(-4, 4)),
        ValueError,
        ("rows=slice(-4, 4, None)", "count from 0"),
    ),
    ("injection-parse", lambda: Injection.parse(3), TypeError, ("3", "SITE:WHAT")),
    (
        "injection-parse-seed",
        lambda: Injection.parse("O:noise=1", seed=-1),
        ValueError,
        ("seed=-1", "from 0"),
    ),
    # records
    ("record-text", lambda: Record(events="P"), TypeError, ("events='P'", "tuple of sites")),
    ("record-number", lambda: Record(ones=3), TypeError, ("ones=3", "tuple of sites")),
    ("record-none", lambda: Record(steps=None), TypeError, ("steps=None", "tuple of sites")),
    ("record-texts", lambda: Record(events="P, O"), TypeError, ("events='P, O'", "('P', 'O')")),
    ("record-own-text", lambda: Record(steps="PV"), TypeError, ("steps='PV'", "('PV',)")),
    ("record-lone-site", lambda: Record(ones=Site.P), TypeError, ("ones=<Site.P", "('P',)")),
    ("record-bytes", lambda: Record(events=b"P"), TypeError, ("events=b'P'", "tuple of sites")),
    (
        "record-array",
        lambda: Record(events=np.array("P")),
        TypeError,
        ("events=array('P'", "tuple of sites"),
    ),
    (
        "record-site",
        lambda: Record(events=("PW",)),
        ValueError,
        ("events", "'PW'", "did you mean 'P'"),
    ),
    ("record-steps", lambda: Record(steps=("P",)), ValueError, ("steps=P", "sums of products")),
    ("record-every", lambda: Record(every=0), ValueError, ("every=0", "whole number")),
    (
        "record-every-bool",
        lambda: Record(every=True),
        (TypeError, ValueError),
        ("every=True", "whole number"),
    ),
    (
        "record-every-float",
        lambda: Record(every=2.0),
        (TypeError, ValueError),
        ("every=2.0", "whole number"),
    ),
    (
        "record-absent",
        look(plan="fa2-bf16", record=Record(events=("PV",))),
        ValueError,
        ("record: events=PV", "use O"),
    ),
    ("record-bool", look(record=True), TypeError, ("record=True", "give a Record")),
    (
        "record-backward",
        look(record=Record(events=("DS",))),
        ValueError,
        ("record: events=DS", "backward", "examine with do"),
    ),
    (
        "record-backward-steps",
        look(record=Record(steps=("DQ",))),
        ValueError,
        ("record: steps=DQ", "backward", "examine with do"),
    ),
    (
        "record-backward-ones",
        look(record=Record(ones=("P_B",))),
        ValueError,
        ("record: ones=P_B", "backward", "examine with do"),
    ),
    # under JAX
    (
        "grad-record",
        examined_in_grad(),
        ValueError,
        ("record", "inside jit", "attend, which records nothing"),
    ),
    (
        "grad-examined-numpy",
        examined_in_grad(record=None, engine="numpy"),
        ValueError,
        ("engine='numpy': examine has no numbers inside jit", "attend"),
    ),
    ("grad-scale", differentiated(scale=NAN), ValueError, ("scale=nan", "finite")),
    ("delta-error", call(delta_error=DO), ValueError, ("delta_error", "engine='xla'")),
    (
        "delta-error-shape",
        call(engine="xla", delta_error=DO[:1]),
        ValueError,
        ("delta_error: shape (1, 8, 4, 16)", "output"),
    ),
    ("pulled-do", pulled(do=DO[:, :4]), ValueError, ("do: shape (2, 4, 4, 16)", "output")),
    ("pulled-do-type", pulled(do=DO.astype(int)), TypeError, ("do: dtype int64", "astype")),
    ("pulled-block", pulled(block_q=0), ValueError, ("block_q=0", "from 1 to 2^31 rows")),
    ("sharded-mesh", sharded(mesh=None), TypeError, ("mesh=None", "jax.make_mesh")),
    ("sharded-plan", sharded(plan=None), TypeError, ("plan=None", "give a Plan")),
    (
        "sharded-rank",
        sharded(q=jnp.asarray(Q)[0]),
        ValueError,
        ("q: shape (8, 4, 16)", "(batch, tokens, heads, features)"),
    ),
    ("rotated-list", lambda: rs.rotated(Q.tolist(), K), TypeError, ("q: a list", "numpy.asarray")),
    (
        "rotated-integers",
        lambda: rs.rotated(Q.astype(int), K),
        TypeError,
        ("q: dtype int64", "astype"),
    ),
    (
        "rotated-width",
        lambda: rs.rotated(Q[..., :12], K[..., :12]),
        ValueError,
        ("12", "power of two", "pad"),
    ),
    (
        "rotated-seed",
        lambda: rs.rotated(Q, K, seed=-1),
        ValueError,
        ("seed=-1", "from 0 to 2^32 - 1"),
    ),
    (
        "rotated-seed-float",
        lambda: rs.rotated(Q, K, seed=0.5),
        (TypeError, ValueError),
        ("seed=0.5", "from 0 to 2^32 - 1"),
    ),
    # the arithmetic
    (
        "round-format",
        lambda: emu.round_to(X, "bf61"),
        ValueError,
        ("unknown format 'bf61'", "did you mean 'bf16'"),
    ),
    ("round-format-number", lambda: emu.round_to(X, 16), TypeError, ("format=16", "bf16")),
    (
        "round-format-list",
        lambda: emu.round_to(X, ["bf16"]),
        TypeError,
        ("format=['bf16']", "bf16"),
    ),
    (
        "round-mode",
        lambda: emu.round_to(X, "bf16", "nearest"),
        ValueError,
        ("unknown rounding mode 'nearest'", "ties-to-even"),
    ),
    (
        "round-mode-number",
        lambda: emu.round_to(X, "bf16", 3),
        (TypeError, ValueError),
        ("mode", "3", "ties-to-even"),
    ),
    (
        "round-overflow",
        lambda: emu.round_to(X, "bf16", overflow="clip"),
        ValueError,
        ("unknown overflow 'clip'", "saturate"),
    ),
    (
        "round-overflow-lacking",
        lambda: emu.round_to(X, "e4m3fn", overflow="inf"),
        ValueError,
        ("overflow=inf", "saturate"),
    ),
    (
        "round-nan",
        lambda: emu.round_to(X, "e2m1fn", nan="drop"),
        ValueError,
        ("unknown nan policy 'drop'", "keep zero"),
    ),
    (
        "round-seed",
        lambda: emu.round_to(X, "bf16", "stochastic", seed=1.5),
        (TypeError, ValueError),
        ("seed=1.5", "from 0 to 2^32 - 1"),
    ),
    (
        "round-first",
        lambda: emu.round_to(X, "bf16", "stochastic", first=-1),
        ValueError,
        ("first=-1", "from 0"),
    ),
    (
        "round-first-float",
        lambda: emu.round_to(X, "bf16", "stochastic", first=0.5),
        (TypeError, ValueError),
        ("first=0.5", "whole number"),
    ),
    (
        "round-integers",
        lambda: emu.round_to(np.arange(3), "bf16"),
        TypeError,
        ("x: dtype int64", "astype"),
    ),
    (
        "round-complex",
        lambda: emu.round_to(1j, "bf16"),
        TypeError,
        ("x: dtype complex128", "astype"),
    ),
    (
        "round-objects",
        lambda: emu.round_to([object()], "bf16"),
        TypeError,
        ("x: dtype object", "astype"),
    ),
    ("round-none", lambda: emu.round_to(None, "bf16"), TypeError, ("x: dtype object", "astype")),
    ("round-text", lambda: emu.round_to("0.5", "bf16"), TypeError, ("x: dtype", "astype")),
    ("round-text-short", lambda: emu.round_to("1", "bf16"), TypeError, ("x: dtype", "astype")),
    (
        "round-dates",
        lambda: emu.round_to(np.array(["NaT"], "datetime64[s]"), "bf16"),
        TypeError,
        ("x: dtype", "astype"),
    ),
    (
        "round-ragged",
        lambda: emu.round_to([[1.0], [1.0, 2.0]], "bf16"),
        (TypeError, ValueError),
        ("x", "array of floats"),
    ),
    (
        "round-longdouble",
        lambda: emu.round_to(X.astype(np.longdouble), "bf16"),
        TypeError,
        ("x: dtype", "astype"),
    ),
    ("round-wide", lambda: emu.round_to(X, "fp64"), ValueError, ("format=fp64", "pass float64")),
    (
        "round-out",
        lambda: emu.round_to(X, "bf16", out=np.ones(3, np.float32)),
        ValueError,
        ("out: float32(3,)", "as x"),
    ),
    (
        "round-out-list",
        lambda: emu.round_to(X, "bf16", out=[0.0] * 8),
        TypeError,
        ("out: a list", "numpy.empty_like(x)"),
    ),
    (
        "stats-out-list",
        lambda: emu.round_with_stats(X, "bf16", out=[0.0] * 8),
        TypeError,
        ("out: a list", "numpy.empty_like(x)"),
    ),
    (
        "stats-policy",
        lambda: emu.round_with_stats(X, "bf16", rule="even"),
        TypeError,
        ("unknown argument 'rule'", "Known: format mode overflow"),
    ),
    (
        "dot-shapes",
        lambda: emu.dot(np.ones((2, 3)), np.ones((2, 3))),
        ValueError,
        ("a, b: shapes (2, 3) and (2, 3)", "(T, K) and (K, N)"),
    ),
    (
        "dot-integers",
        lambda: emu.dot(np.ones((2, 3), int), np.ones((3, 2))),
        TypeError,
        ("a: dtype int64", "astype"),
    ),
    (
        "dot-accumulator",
        lambda: emu.dot(A, B, "exact"),
        TypeError,
        ("accumulator='exact'", "Accumulator"),
    ),
    (
        "dot-init",
        lambda: emu.dot(A, B, init=np.ones(2)),
        ValueError,
        ("init: shape (2,)", "(2, 2)"),
    ),
    (
        "dot-init-type",
        lambda: emu.dot(A, B, init=np.ones((2, 2), complex)),
        TypeError,
        ("init: dtype", "astype"),
    ),
    ("dot-steps", lambda: emu.dot(A, B, steps=True), TypeError, ("steps=True", "list")),
    ("sum-axis", lambda: emu.sum(X, axis=1), ValueError, ("axis=1", "give -1 to 0")),
    ("sum-axis-float", lambda: emu.sum(X, axis=0.0), TypeError, ("axis=0.0", "whole number")),
    ("sum-accumulator", lambda: emu.sum(X, None), TypeError, ("accumulator=None", "Accumulator")),
    (
        "accumulator-chunk",
        lambda: emu.Accumulator(order=emu.Order.CHUNKED, chunk=0),
        ValueError,
        ("chunk=0", "at least one"),
    ),
    (
        "accumulator-chunk-float",
        lambda: emu.Accumulator(order=emu.Order.CHUNKED, chunk=4.0),
        TypeError,
        ("chunk=4.0", "whole number"),
    ),
    (
        "accumulator-order",
        lambda: emu.Accumulator(order="pairwize"),
        ValueError,
        ("'pairwize'", "did you mean 'pairwise'"),
    ),
    (
        "accumulator-step",
        lambda: emu.Accumulator(step="bf16"),
        TypeError,
        ("step='bf16'", "rounding('bf16')"),
    ),
    (
        "accumulator-core",
        lambda: emu.Accumulator.tensor_core("hoper", "bf16"),
        ValueError,
        ("'hoper'", "did you mean 'hopper'"),
    ),
    (
        "rounding-format",
        lambda: emu.Rounding(format="bf16"),
        TypeError,
        ("format='bf16'", "rounding('bf16')"),
    ),
    (
        "blocks-format",
        lambda: emu.round_blocks(X, "mxfp88"),
        ValueError,
        ("unknown block format 'mxfp88'", "did you mean"),
    ),
    (
        "blocks-format-none",
        lambda: emu.round_blocks(X, None),
        TypeError,
        ("format=None", "mxfp8_e4m3"),
    ),
    (
        "blocks-rule",
        lambda: emu.round_blocks(X, "mxfp4", rule="flor"),
        ValueError,
        ("unknown scale rule 'flor'", "did you mean 'floor'"),
    ),
    (
        "blocks-axis",
        lambda: emu.round_blocks(X, "mxfp4", axis=3),
        ValueError,
        ("axis=3", "give -1 to 0"),
    ),
    (
        "blocks-axis-text",
        lambda: emu.round_blocks(X, "mxfp4", axis="0"),
        TypeError,
        ("axis='0'", "whole number"),
    ),
    (
        "blocks-size",
        lambda: emu.BlockFormat(element=emu.E4M3, size=0),
        ValueError,
        ("size=0", "at least one"),
    ),
    (
        "blocks-size-float",
        lambda: emu.BlockFormat(element=emu.E4M3, size=4.0),
        TypeError,
        ("size=4.0", "whole number"),
    ),
    (
        "blocks-out-list",
        lambda: emu.round_blocks(X, "mxfp4", out=[0.0] * 8),
        TypeError,
        ("out: a list", "numpy.empty_like(x)"),
    ),
    ("blocks-from", lambda: emu.from_blocks(X), TypeError, ("b: an array", "to_blocks")),
    ("blocks-codes", lambda: emu.codes_of(X), TypeError, ("b: an array", "to_blocks")),
    ("explain-text", lambda: emu.explain("one", emu.BF16), ValueError, ("'one'", "number")),
    (
        "explain-rounding",
        lambda: emu.explain("1", "bf61"),
        ValueError,
        ("'bf61'", "did you mean 'bf16'"),
    ),
]


# calls whose checks belong into attention/plans: not refused with the repair yet
OF_PLANS = [
    ("preset-none", lambda: Plan.preset(None), TypeError, ("name=None", "fa2-bf16")),
    (
        "plan-rounded-name",
        lambda: FP32.rounded({"PW": emu.BF16}),
        ValueError,
        ("'PW'", "did you mean 'P'"),
    ),
    ("plan-rounded-text", lambda: FP32.rounded({"P": "bf16"}), TypeError, ("'bf16'", "rounding")),
    ("plan-rounded-nothing", lambda: FP32.rounded(3), TypeError, ("events=3",)),
    ("plan-item", lambda: FP32["PW"], ValueError, ("'PW'", "did you mean 'P'")),
    ("plan-accumulator", lambda: FP32.accumulator("P"), ValueError, ("site=P", "S ROWSUM")),
    (
        "plan-adding-text",
        lambda: FP32.adding("S", "exact"),
        TypeError,
        ("accumulator='exact'", "Accumulator"),
    ),
    ("stabiliser-text", lambda: rs.Stabilizer(beta="2"), TypeError, ("beta='2'", "number")),
]


def fault_of(make, error, words):
    """Return what is wrong with how a call is refused, in words, or None where nothing is."""
    try:
        made = make()
    except Exception as caught:
        text = str(caught)
        if not isinstance(caught, error) or isinstance(caught, (KeyError, AttributeError)):
            return f"{type(caught).__name__}: {text}"
        if "\n" in text or any(raw in text for raw in RAW):
            return f"raw: {text}"
        lacking = [word for word in words if word not in text]
        return f"lacks {lacking}: {text}" if lacking else None
    return f"accepted: {type(made).__name__}"


@pytest.mark.parametrize(
    ("make", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in CALLS]
)
def test_a_wrong_call_is_refused_with_the_repair(make, error, words):
    """Silent acceptance; an error of a library, deep inside; a message that does not say what to
    change.
    """
    assert fault_of(make, error, words) is None


@pytest.mark.parametrize(
    ("make", "error", "words"), [pytest.param(*row[1:], id=row[0]) for row in OF_PLANS]
)
def test_a_wrong_plan_is_refused_with_the_repair(make, error, words):
    """A KeyError or a plan that is silently the same as before."""
    assert fault_of(make, error, words) is None


def test_sites_are_accepted_by_name_in_any_case():
    """A name that only one function reads."""
    assert at("dk_out") == at(Site.DK_OUT)
    assert Record(events=("p", "Out"), ones=["P"], steps=("pv",)) == Record(
        events=(Site.P, Site.OUT), ones=(Site.P,), steps=(Site.PV,)
    )
    assert FP32.at("p", "bf16") == FP32.at(Site.P, "bf16")
    assert FP32.adding("pv", emu.Accumulator(order="exact")) == FP32.adding(
        Site.PV, emu.Accumulator(order=emu.Order.EXACT)
    )


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("O:ulps=0.5", rs.AddUlps(ulps=0.5), {}),
        ("o:ulps=0.5:rows=0:4:heads=3", rs.AddUlps(ulps=0.5), {"rows": range(4), "heads": 3}),
        ("P:flip=3:rows=5,7", rs.FlipBit(bit=3), {"rows": (5, 7)}),
        ("PV:exact:tiles=0:2,2", rs.Exact(), {"tiles": (0, 1, 2)}),
        ("OUT:bias=-1e-3:features=0:4", rs.Bias(value=-1e-3), {"features": range(4)}),
        ("S:noise=0.5:columns=0:12", rs.Noise(ulps=0.5), {"columns": range(12)}),
        ("P:set=0.25:batch=1", rs.SetTo(value=0.25), {"batch": 1}),
    ],
)
def test_injections_are_accepted_as_texts(text, what, where):
    """The words of docs/reference/grammar.md: alone, in a list, and beside an injection; the bits
    of the injection that they name.
    """
    q, k, v = (normal(140 + n, *x.shape) for n, x in enumerate((Q, K, V)))
    made = Injection(site=text.partition(":")[0], what=what, **where)
    options = {"plan": "qiu-yao", "block_q": 4, "block_k": 4, "engine": "numpy"}
    want = attend(q, k, v, inject=[made], **options)
    assert not np.array_equal(want, attend(q, k, v, **options)), "the injection does something"
    assert np.array_equal(attend(q, k, v, inject=text, **options), want)
    assert np.array_equal(examine(q, k, v, inject=(text,), **options).out, want)
    both = attend(q, k, v, inject=[text, at("V", rows=2)], **options)
    assert np.array_equal(both, attend(q, k, v, inject=[made, at("V", rows=2)], **options))


@pytest.mark.parametrize("value", [1, np.float32(0.5), NAN, INF])
def test_values_that_a_format_has_may_be_set(value):
    """NaN and infinities are set on purpose; of blocks, the scale decides which numbers there
    are.
    """
    attend(
        Q,
        K,
        V,
        plan="fa2-bf16",
        inject=Injection(site="P", what=rs.SetTo(value=value)),
        engine="numpy",
    )
    in_blocks = Plan.preset("fa2-bf16").at("Q", "mxfp8_e4m3")
    attend(
        Q,
        K,
        V,
        plan=in_blocks,
        inject=Injection(site="Q", what=rs.SetTo(value=512.0)),
        engine="numpy",
    )


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_a_call_returns_one_type(engine):
    """`attend` returns an array and takes no record; `examine` returns the trace as well."""
    arrays = [jnp.asarray(x) if engine == "xla" else x for x in (Q, K, V)]
    out = attend(*arrays, plan="qiu-yao", engine=engine)
    again = examine(*arrays, plan="qiu-yao", engine=engine, record=Record())
    assert isinstance(again.trace, rs.Trace) and out.shape == again.out.shape == Q.shape
    assert out.dtype == again.out.dtype == np.float32 and np.array_equal(out, again.out)
    with pytest.raises(TypeError, match="record"):
        attend(*arrays, plan="qiu-yao", engine=engine, record=Record())


def test_what_looks_wrong_and_is_not():
    """A check that is too strict: numbers of NumPy and fractions are numbers."""
    from fractions import Fraction

    want = attend(Q, K, V, plan="fp32", scale=0.5, window=3, softcap=2.0, block_q=4, is_causal=True)
    numpy = {
        "scale": np.float64(0.5),
        "window": np.int32(3),
        "softcap": np.array(2.0),
        "block_q": np.uint8(4),
        "is_causal": np.True_,
    }
    assert np.array_equal(attend(Q, K, V, plan="fp32", **numpy), want)
    assert np.array_equal(
        attend(Q, K, V, plan="fp32", **numpy | {"scale": Fraction(1, 2), "softcap": 2}), want
    )
    assert np.array_equal(
        emu.round_to([0.3, 1.0], emu.Rounding(format=emu.NAMED["bf16"], mode="toward_zero")),
        [0.298828125, 1.0],
    )
    assert emu.dot(A, B, emu.Accumulator(order="exact"), init=np.ones((2, 2), int))[0, 0] == 4.0


@pytest.mark.parametrize(
    ("function", "name"),
    [(attend, name) for name in "qkv"]
    + [(f, n) for f in (examine, rs.error_budget, rs.row_sums) for n in ("q", "k", "v", "do")],
)
def test_a_shape_is_no_array(function, name):
    """An error that Python words, from the depth of an engine."""
    names = "qkv" if function is attend else ("q", "k", "v", "do")
    given = dict.fromkeys(names, np.ones((1, 8, 1, 8), np.float32))
    given |= {name: jax.ShapeDtypeStruct((1, 8, 1, 8), "float32")}
    with pytest.raises(TypeError, match=f"^{name}: a ShapeDtypeStruct"):
        function(**given, plan="fa2-bf16")


def test_a_budget_takes_no_engine():
    """Any word at all, without an effect."""
    x = np.ones((1, 8, 1, 8), np.float32)
    with pytest.raises(TypeError, match=r"^engine: "):
        rs.error_budget(x, x, x, engine="xla")
    with pytest.raises(ValueError, match=r"^do: shape \(8, 8\)"):
        rs.error_budget(x, x, x, x[0, :, 0])
