"""`roundscope.torch.attention`: the bits of `attend`, as an operator of PyTorch."""

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch.utils.checkpoint import checkpoint

from roundscope import PRESETS, Plan, Site, attend
from roundscope.attention.grammar.text import plan_of, text_of
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.words import plan_of as plan_of_case
from roundscope.attention.testing.words import plans as plan_words
from roundscope.attention.torch import operator
from roundscope.emu import BlockFormat, Format, rounding
from roundscope.torch import attention

B, N, G, T, S, H, HV = 2, 4, 2, 11, 13, 8, 6
SIZES = {"block_q": 4, "block_k": 8}
NUMPY = {torch.bfloat16: ml_dtypes.bfloat16, torch.float16: np.float16}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def tensors(dtype=torch.float32, seed=0):
    """q, k, v and dO, the last in float64."""
    draw = torch.Generator().manual_seed(seed)
    shapes = (B, N, T, H), (B, G, S, H), (B, G, S, HV), (B, N, T, HV)
    *qkv, do = (torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)
    return *(x.to(dtype) for x in qkv), do


def of_jax(x):
    """A tensor as an array of JAX in the same type, by way of float64, which is exact."""
    if x.dtype is torch.bool:
        return jnp.asarray(x.numpy())
    return jnp.asarray(x.detach().double().numpy().astype(NUMPY.get(x.dtype, str(x.dtype)[6:])))


def reference(q, k, v, do, sinks=None, **options):
    """Output and gradients of `attend` under JAX, in SDPA's layout, with types."""
    mask = options.pop("mask", None)
    with jax.enable_x64(torch.float64 in (q.dtype, k.dtype, v.dtype)):
        mask = None if mask is None else of_jax(mask)
        of = [of_jax(x) for x in (q, k, v, *(() if sinks is None else (sinks,)))]

        def call(q, k, v, sinks=None):
            turned = (x.swapaxes(1, 2) for x in (q, k, v))
            return attend(*turned, sinks=sinks, mask=mask, **options).swapaxes(1, 2)

        out, pull = jax.vjp(call, *of)
        do = of_jax(do.to(getattr(torch, str(out.dtype))))
        return [np.asarray(x) for x in (out, *pull(do))]


def check(found, wanted):
    """Assert that tensors have the types and bits of arrays, and are contiguous."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert str(ours.dtype) == f"torch.{theirs.dtype}" and ours.is_contiguous()
        assert tuple(ours.shape) == theirs.shape and np.any(theirs)
        as_integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[theirs.itemsize]
        raw = theirs.view(f"i{theirs.itemsize}")
        assert np.array_equal(ours.detach().view(as_integers).numpy(), raw)


def run(q, k, v, do, sinks=None, function=attention, **options):
    """Output and gradients of the operator."""
    of = [x.detach().requires_grad_() for x in (q, k, v, *(() if sinks is None else (sinks,)))]
    out = function(*of[:3], **({} if sinks is None else {"sinks": of[3]}), **options)
    return out, *torch.autograd.grad(out, of, do.to(out.dtype))


# under XLA an operator compiles for ten seconds, and calls what it calls under NumPy
UNDER_XLA = pytest.param("xla", marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ("numpy", torch.float32),
        *(
            pytest.param("numpy", x, marks=pytest.mark.thorough)
            for x in TYPES
            if x != torch.float32
        ),
        ("xla", torch.bfloat16),
        *(pytest.param("xla", x, marks=pytest.mark.thorough) for x in TYPES if x != torch.bfloat16),
    ],
    ids=str,
)
def test_it_is_attend(dtype, engine):
    """A cast on the way, a layout that is mixed up, groups of heads, tiles that are padded."""
    options = {"plan": "fa2-bf16", "is_causal": True, **SIZES}
    given = *tensors(dtype), SINKS.to(dtype)
    check(run(*given, engine=engine, **options), reference(*given, **options))


@pytest.mark.parametrize("engine", ["numpy", UNDER_XLA])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.bfloat16, {"plan": "exact"}),  # float32 leaves
        (torch.float16, {"plan": "qiu-yao", "scale": 0.3}),
        (torch.float32, {"plan": "fa2-bf16; O=bf16:stochastic; seed=3"}),
        (torch.float32, {"plan": "fp32", "window": 4, "softcap": 2.0, "is_causal": True}),
        (torch.float64, {"plan": Plan.preset("fa2-bf16").at("P", "e4m3fn")}),
        (torch.bfloat16, {"plan": "cudnn", "mask": torch.rand(B, 1, T, S) < 0.5}),
    ],
    ids=lambda x: str(x)[:20],
)
def test_options_arrive(dtype, options, engine):
    """One that is dropped, or given in another's place."""
    given = tensors(dtype)
    plan = options["plan"]
    asked = options | {"plan": plan_of(plan) if isinstance(plan, str) else plan} | SIZES
    check(run(*given, engine=engine, **options, **SIZES), reference(*given, **asked))


def test_mixed_types():
    """The type of q for all gradients."""
    q, k, v, do = tensors()
    given = q, k.bfloat16(), v.half(), do
    options = {"plan": "fa2-bf16", **SIZES}
    found = run(*given, **options)
    assert [x.dtype for x in found] == [torch.float32, torch.float32, torch.bfloat16, torch.float16]
    check(found, reference(*given, **options))


@pytest.mark.parametrize("engine", ["numpy", "xla"])
def test_any_strides(engine):
    """Memory read in its own order."""
    q, k, v, do = tensors(torch.bfloat16)
    strided = (
        q.transpose(1, 3).contiguous().transpose(1, 3),
        torch.stack([k, -k], dim=-1)[..., 0],
        v[:, :1].expand(B, G, S, HV),
        do[:, :, :1].expand(B, N, T, HV),
    )
    plain = [x.clone(memory_format=torch.contiguous_format) for x in strided]
    assert not any(x.is_contiguous() for x in strided) and all(x.is_contiguous() for x in plain)
    options = {"plan": "fa2-bf16", "engine": engine, **SIZES}
    ours, theirs = run(*strided, **options), run(*plain, **options)
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


MASK = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(5)) < 0.6
LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("hidden", [-torch.inf, LOWEST, torch.finfo(torch.bfloat16).min])
def test_masks_of_numbers(hidden):
    """A mask whose numbers are taken for truth values, the lowest number for a bias."""
    dtype = torch.float32 if hidden in (LOWEST, -torch.inf) else torch.bfloat16
    added = torch.zeros(MASK.shape, dtype=dtype).masked_fill(~MASK, hidden)
    options = {"plan": "fa2-bf16", **SIZES}
    ours, theirs = (run(*tensors(), mask=mask, **options) for mask in (added, MASK))
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


BIAS = torch.randn(1, N, T, S, generator=torch.Generator().manual_seed(6))


def test_a_bias_is_that_of_sdpa_in_binary64():
    """A bias or its gradient that is lost, also where it is 0 and learns; a hidden key that is not
    hidden.
    """
    q, k, v, do = tensors(torch.float64)
    k, v = (x.repeat_interleave(N // G, 1) for x in (k, v))
    for start in (BIAS.double().masked_fill(~MASK[:1], -torch.inf), torch.zeros(T, S).double()):
        found = []
        for function in (partial(attention, plan="exact"), by_sdpa):
            of = [x.detach().clone().requires_grad_() for x in (q, k, v, start)]
            out = function(*of[:3], mask=of[3])
            found.append((out, *torch.autograd.grad(out, of, do)))
        for x, y in zip(*found, strict=True):
            assert (x - y).abs().max() < 1e-13


def by_sdpa(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_exact_is_sdpa_in_binary64():
    """The formula itself, and its derivative: causal from the start, scale, groups of heads."""
    given = tensors(torch.float64)

    def sdpa(q, k, v):
        scores = torch.einsum("bnth,bnsh->bnts", q, k.repeat_interleave(N // G, 1)) * 0.25
        scores = scores.masked_fill(torch.ones(T, S).triu(1).bool(), -torch.inf)
        return scores.softmax(-1) @ v.repeat_interleave(N // G, 1)

    ours = run(*given, plan="exact", is_causal=True, scale=0.25)
    for x, y in zip(ours, run(*given, function=sdpa), strict=True):
        assert (x - y).abs().max() < 1e-13


OPERATOR = ("fa2-bf16", True, None, 4, 8, None, None)


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [
        ("numpy", torch.float32),
        pytest.param("xla", torch.bfloat16, marks=pytest.mark.thorough),
        pytest.param("numpy", torch.bfloat16, marks=pytest.mark.thorough),
        pytest.param("xla", torch.float32, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_opcheck(dtype, engine):
    """A type, shape or stride that tracing expects otherwise, an output that is an input."""
    *qkv, do = tensors(dtype)
    of_bias = [(BIAS.clone(), None)] if engine == "numpy" else []
    for mask, sinks in ((None, None), (MASK, SINKS.clone()), *of_bias):
        given = [x.requires_grad_() for x in (*qkv, *(() if sinks is None else (sinks,)))]
        learns = mask is not None and mask.is_floating_point()
        mask = mask.requires_grad_() if learns else mask
        own = mask, given[3] if sinks is not None else None
        args = (*given[:3], *own, *OPERATOR, engine, None, learns)
        torch.library.opcheck(operator._attention, args)
        plain = (x.detach() if isinstance(x, torch.Tensor) else x for x in args)
        torch.library.opcheck(operator._backward, (do.to(dtype), *plain))


def loss(q, k, v, mask=None):
    return attention(2 * q, k, v, plan="fa2-bf16", mask=mask, **SIZES).float().square().mean()


def gradients(function, *more):
    of = [x.requires_grad_() for x in tensors(torch.bfloat16)[:3]]
    value = function(*of, *more)
    return value, *torch.autograd.grad(value, of)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    """A graph that breaks, or gradients that tracing lost; a mask of numbers, looked at in it."""
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    added = torch.zeros(MASK.shape).masked_fill(~MASK, -torch.inf)
    for more in ((), (added,)):
        ours, theirs = gradients(compiled, *more), gradients(loss, *more)
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    with pytest.raises(ValueError, match="bias: fa2 multiplies the scores"):
        torch.compile(partial(attention, plan="fa2"), backend="aot_eager")(
            *tensors(torch.bfloat16)[:3], mask=added + 0.5
        )


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's own, of torch.jit
def test_compiled_by_inductor():
    """Strides that Inductor chooses. The sum of the loss is its own, so only the bits of the
    operator are compared.
    """

    def call(q, k, v):
        return attention(2 * q, k, v, plan="fa2-bf16", **SIZES)

    compiled = torch.compile(call, fullgraph=True)
    do = tensors()[3].bfloat16()
    results = []
    for function in (compiled, call):
        of = [x.requires_grad_() for x in tensors(torch.bfloat16)[:3]]
        out = function(*of)
        results.append((out, *torch.autograd.grad(out, of, do)))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_a_plan_inside_a_compiled_function_has_to_be_a_text():
    """torch.compile's own words about a record."""
    plan = Plan.preset("fa2-bf16").at("O", "bf16")
    q, k, v, _ = tensors()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"text_of\(plan\)"):
        torch.compile(lambda: attention(q, k, v, plan=plan), fullgraph=True, backend="eager")()


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointed(is_reentrant):
    """A saved tensor that is read twice, which checkpointing refuses."""
    of = [x.requires_grad_() for x in tensors(torch.bfloat16)[:3]]
    value = checkpoint(loss, *of, use_reentrant=is_reentrant)
    value.backward()
    ours = value, *(x.grad for x in of)
    assert all(torch.equal(x, y) for x, y in zip(ours, gradients(loss), strict=True))


def test_autocast_casts_nothing_and_no_grad_keeps_nothing():
    q, k, v, _ = tensors()
    plain = attention(q, k, v, plan="fp32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(q, k, v, plan="fp32"), plain)
    q.requires_grad_()
    with torch.no_grad():
        assert not attention(q, k, v, plan="fp32").requires_grad
    assert attention(q, k, v, plan="fp32").requires_grad


def test_vmap_is_a_loop():
    """Entries that share a result, an axis in another place."""
    q, k, v, _ = tensors()
    many = torch.stack([q, 2 * q, -q], dim=2).requires_grad_()
    out = torch.func.vmap(
        lambda x: attention(x, k, v, plan="fa2-bf16; O=bf16:stochastic"), in_dims=2, out_dims=1
    )(many)
    out.square().sum().backward()
    for n in range(3):
        one = many.detach()[:, :, n].requires_grad_()
        single = attention(one, k, v, plan="fa2-bf16; O=bf16:stochastic")
        single.square().sum().backward()
        assert torch.equal(out[:, n], single) and torch.equal(many.grad[:, :, n], one.grad)


def test_a_second_derivative_is_refused():
    """Zero in its place."""
    q, k, v, _ = tensors()
    q.requires_grad_()
    out = attention(q, k, v, plan="fp32").square().sum()
    (gradient,) = torch.autograd.grad(out, q, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative, which is not modelled"):
        gradient.sum().backward()


def test_inputs_stay_as_they_are():
    """Memory that is shared with NumPy or JAX, and written."""
    for engine in ("numpy", "xla"):
        given = tensors(torch.float64)
        run(*given, plan="exact", engine=engine)
        assert all(torch.equal(x, y) for x, y in zip(given, tensors(torch.float64), strict=True))


Q, K, V, _ = tensors()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"q": Q.numpy()}, TypeError, "q: an array of shape .*, must be a PyTorch tensor"),
        ({"k": K.long()}, TypeError, r"k: dtype torch.int64.*k\.float\(\)"),
        ({"q": Q[0]}, ValueError, r"q: shape \(4, 11, 8\), must be \(batch, heads, tokens"),
        ({"v": V[:, :, :-1]}, ValueError, "v: shape"),
        ({"k": K[..., :-1]}, ValueError, "k: shape"),
        ({"q": Q[:, :3]}, ValueError, "q: 3 heads, must be a multiple of the 2"),
        ({"k": K.to("meta")}, ValueError, "k: on meta, must be on cpu"),
        ({"plan": "fa2-bf61"}, ValueError, "fa2-bf16"),
        ({"plan": "fa2-bf16; O=bf61"}, ValueError, "bf61"),
        ({"plan": 3}, TypeError, "plan=3: give a Plan"),
        ({"plan": None}, TypeError, "plan=None"),
        ({"is_causal": 1}, TypeError, "is_causal=1"),
        ({"scale": "a"}, TypeError, "scale='a'"),
        ({"scale": float("nan")}, ValueError, "scale=nan"),
        ({"block_q": 0}, ValueError, "block_q=0"),
        ({"block_k": 1.5}, TypeError, r"block_k=1\.5"),
        ({"window": 0}, ValueError, "window=0"),
        ({"softcap": -1.0}, ValueError, r"softcap=-1\.0"),
        ({"engine": "cuda"}, ValueError, "engine='cuda'"),
        ({"sinks": SINKS[:3]}, ValueError, r"sinks: shape \(3,\)"),
        ({"mask": MASK.int()}, TypeError, "mask: torch.int32"),
        ({"mask": "a"}, TypeError, "mask: str"),
        ({"mask": MASK[:, :, :3]}, ValueError, r"mask: shape \(2, 1, 3, 13\), must broadcast"),
        ({"mask": torch.full((T, S), 0.1), "plan": "fa2"}, ValueError, "bias: fa2 multiplies"),
    ],
)
def test_refusals(changes, error, said):
    """PyTorch's words about a schema."""
    given = {"q": Q, "k": K, "v": V, "plan": "fp32"} | changes
    with pytest.raises(error, match=said) as raised:
        attention(**given)
    assert "\n" not in str(raised.value)


def unnamed(plan):
    return replace(plan, name="")


FORMAT = Format(name="mine", precision=6, emin=-9, max_finite=500.0, inf=False, nan=True)
EDITED = {
    "a seed": Plan.preset("fp32").at("O", "bf16", "stochastic").seeded(7),
    "two seeds": Plan.preset("fp32").rounded(
        {site: rounding("bf16", "stochastic", seed=n) for n, site in enumerate((Site.P, Site.O))}
    ),
    "a format": Plan.preset("fp32").at("O", FORMAT),
    "a NaN policy": Plan.preset("fp32").rounded({Site.P: rounding("e2m1fn", nan="zero")}),
    "blocks": Plan.preset("fp32").at(Site.P, BlockFormat(element=rounding("e4m3fn"), size=7)),
    "seeded blocks": Plan.preset("fp32").at("P", "mxfp4", "stochastic").seeded(2),
    "a third": replace(Plan.preset("fa2-bf16"), softcap=1 / 3),
    "a stabilizer": Plan.preset("fa2-bf16").changed(f"stabilizer={10 / 3}"),
    "a site that it does not reach": replace(Plan.preset("fp32").at("OA", "bf16"), name="mine"),
    "fused again": replace(Plan.preset("eager"), name="baseline-bf16"),
}


@pytest.mark.parametrize(
    "plan",
    [*map(Plan.preset, [*PRESETS, *TWINS, "fa2-bf16@blackwell"]), *EDITED.values()],
    ids=[*PRESETS, *TWINS, "blackwell", *EDITED],
)
def test_a_text_is_its_plan(plan):
    """A field, seed or format that the text leaves out."""
    assert unnamed(plan_of(text_of(plan))) == unnamed(plan)


def test_texts_are_words_where_words_suffice():
    """JSON of thousands of letters in every graph."""
    for name in (*PRESETS, *TWINS):
        assert text_of(Plan.preset(name)) == name
    assert text_of(EDITED["a seed"]) == "fp32; O=bf16:stochastic; seed=7"
    assert text_of(Plan.preset("cudnn").changed("delta_from=CENTRED")) == (
        "cudnn; delta_from=CENTRED"
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=plan_words())
def test_random_edits_have_texts(text):
    """A change whose words make another plan."""
    for seed in (0, 9):
        plan = plan_of_case(text, seed)
        assert unnamed(plan_of(text_of(plan))) == unnamed(plan)


@pytest.mark.parametrize("text", ["", "fp32; seed=-1", "fp32; seed=x", "fp32; layer=1 -> O=bf16"])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError):
        plan_of(text)


def test_a_call_that_is_repeated_has_the_same_bits_from_programs(monkeypatch):
    """Forward and backward of a later call against the first; another kind counts anew."""
    asked = []
    inner = operator.from_scores
    monkeypatch.setattr(operator, "from_scores", lambda n: asked.append(n) or inner(n))
    monkeypatch.setattr(operator, "REPEATED", 1)
    monkeypatch.setattr(operator, "_calls", Counter())
    q, k, v, do = torch.randn(4, 1, 2, 5, 8, generator=torch.manual_seed(0)).bfloat16().unbind()
    found = []
    for _ in range(2):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, plan="fa2-bf16", is_causal=True)
        found.append([out, *torch.autograd.grad(out, leaves, do)])
        assert len(asked) == 2 * (len(found) - 1)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    attention(q[:, :1], k[:, :1], v[:, :1], plan="fa2-bf16", is_causal=True)
    assert len(asked) == 2
