"""`roundscope.torch.use`: models of PyTorch and of the transformers library on chosen plans."""

import inspect
import re
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundscope import Plan, attend
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.torch.replacement import FORWARD_ONLY, NO_BACKWARD
from roundscope.torch import attention, intercept, use
from tests.attention.torch.models import batch, gpt, pretrained
from tests.some import some

KINDS = ("llama", "qwen2", "qwen3", "gpt2")
TOKENS = batch()
SIZES = {"block_q": 4, "block_k": 8}


def in_binary64(model):
    """The model in float64, also where the transformers library computes in float32."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model.double()


def trained(model, run=None, **inputs):
    """The logits of the tokens that count, the loss, and the gradient of every parameter."""
    model.zero_grad()
    out = (model if run is None else run)(TOKENS, **inputs)
    logits = getattr(out, "logits", out)
    counted = inputs.get("attention_mask", torch.ones_like(TOKENS)).bool()
    both = counted[:, 1:] & counted[:, :-1]
    loss = F.cross_entropy(logits[:, :-1][both], TOKENS[:, 1:][both])
    loss.backward()
    return [logits.detach()[counted], loss.detach()], {
        name: p.grad.clone() for name, p in model.named_parameters()
    }


def same(one, other):
    """Whether two results of `trained` have the same bits."""
    return all(map(torch.equal, one[0], other[0])) and all(
        torch.equal(x, other[1][name]) for name, x in one[1].items()
    )


def differ(one, other):
    """The largest difference of two results of `trained`."""
    pairs = [*zip(one[0], other[0], strict=True), *((x, other[1][n]) for n, x in one[1].items())]
    return max((x - y).abs().max().item() for x, y in pairs)


def textbook(call):
    """Attention in the type of q: softmax of scores of which those that are hidden are -inf."""
    k, v = (x.repeat_interleave(call.q.shape[1] // x.shape[1], 1) for x in (call.k, call.v))
    scores = call.q @ k.transpose(2, 3) * call.scale
    sees = torch.ones(scores.shape[2:], dtype=torch.bool)
    sees = sees.tril() if call.is_causal else sees
    if call.mask is not None:
        sees = sees & (call.mask if call.mask.dtype is torch.bool else call.mask == 0)
    scores = scores.masked_fill(~sees, -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


def padded():
    """An attention mask that hides the first tokens of one entry."""
    mask = torch.ones_like(TOKENS)
    mask[0, :5] = 0
    return mask


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(
    ("kind", "implementation", "is_padded"),
    [
        pytest.param(
            *(kind, implementation, is_padded),
            marks=[pytest.mark.thorough] if (i + j + is_padded) % 2 else [],
        )
        for i, kind in enumerate(KINDS)
        for j, implementation in enumerate(("sdpa", "eager"))
        for is_padded in (False, True)
    ],
)
def test_exact_is_eager_attention_in_binary64(kind, implementation, is_padded):
    """A mask that is lost, keys of another group, a scale that is applied twice; a gradient that
    attention does not pass on.
    """
    model = in_binary64(pretrained(kind, implementation))
    inputs = {"attention_mask": padded()} if is_padded else {}
    with intercept(model, textbook):
        expected = trained(model, **inputs)
    with use(model, "exact"):
        found = trained(model, **inputs)
    assert differ(found, expected) < 1e-12
    assert all(x.abs().max() > 1e-6 for name, x in found[1].items() if "k_proj.bias" not in name)
    if kind == "gpt2" and not (is_padded and implementation == "eager"):
        assert differ(trained(model, **inputs), expected) < 1e-12  # the model's own


@pytest.mark.parametrize("groups", [4, 2])
def test_exact_is_eager_attention_in_a_plain_gpt(groups):
    model = gpt(groups=groups).double()
    mask = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    for inputs in ({}, {"mask": mask | torch.eye(12, dtype=torch.bool)}):
        expected = trained(model, **inputs)
        with use(model, "exact"):
            found = trained(model, **inputs)
        assert differ(found, expected) < 1e-12 and not same(found, expected)
    assert same(trained(model), trained(model))  # as it was


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        pytest.param(kind, dtype, marks=[pytest.mark.thorough] if (i + j) % 2 else [])
        for i, kind in enumerate([*KINDS, "gpt"])
        for j, dtype in enumerate([torch.float32, torch.bfloat16])
    ],
    ids=str,
)
def test_a_layer_has_the_bits_of_attend(kind, dtype):
    """Tensors in another layout, a type that was changed on the way, a gradient of another call."""
    import jax
    import jax.numpy as jnp

    model = (gpt(groups=2) if kind == "gpt" else pretrained(kind)).to(dtype)
    seen = []

    def kept(call):
        tensors = [x.detach().requires_grad_() for x in (call.q, call.k, call.v)]
        seen.append([call, tensors, call.run(*tensors)])
        return call.run(call.q, call.k, call.v)

    with use(model, "fa2-bf16", **SIZES), intercept(model, kept):
        model(TOKENS)
    assert len(seen) == (3 if kind == "gpt" else 2)
    for call, tensors, out in seen:
        do = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found = [out, *torch.autograd.grad(out, tensors, do)]

        def ours(q, k, v, call=call):
            turned = (x.swapaxes(1, 2) for x in (q, k, v))
            mask = None if call.mask is None else np.asarray(call.mask)
            options = {"scale": call.scale, "is_causal": call.is_causal, "mask": mask}
            return attend(*turned, plan="fa2-bf16", **options, **SIZES).swapaxes(1, 2)

        name = str(dtype)[6:]
        of_jax = (jnp.asarray(x.detach().float().numpy()).astype(name) for x in (*tensors, do))
        *inputs, do = of_jax
        wanted, pull = jax.vjp(ours, *inputs)
        for one, other in zip(found, (wanted, *pull(do)), strict=True):
            assert str(other.dtype) == str(one.dtype)[6:]
            numbers = np.asarray(other.astype("float32"))
            assert np.array_equal(one.detach().float().numpy(), numbers) and np.any(numbers)


@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(k, marks=pytest.mark.thorough) for k in ("gpt2", "gpt"))]
)
def test_compiled_models(kind):
    """A graph in which the model's own kernel runs."""
    model = gpt() if kind == "gpt" else pretrained(kind)
    own = trained(model)
    with use(model, "fa2-bf16", **SIZES):
        expected = trained(model)
        compiled = trained(model, torch.compile(model, backend="aot_eager"))
    assert same(compiled, expected) and not same(expected, own)


@pytest.mark.parametrize(
    ("kind", "is_reentrant"),
    some(
        [
            ("llama", False),
            ("llama", True),
            ("gpt2", True),
            ("gpt2", False),
            ("gpt", True),
            ("gpt", False),
        ]
    ),
)
def test_checkpointed_models(kind, is_reentrant):
    """A forward that is repeated in the backward, on the model's own kernel."""
    if kind == "gpt":
        plain, model = gpt(), gpt(checkpointing=is_reentrant)
    else:
        plain, model = pretrained(kind), pretrained(kind).train()
        name = "activation_checkpointing_enable"  # its name since transformers 5.24
        enable = getattr(model, name, model.gradient_checkpointing_enable)
        enable({"use_reentrant": is_reentrant})
    with use(plain, "fa2-bf16", **SIZES), use(model, "fa2-bf16", **SIZES):
        expected, found = trained(plain), trained(model)
    assert same(found, expected)


def test_each_layer_has_its_own_plan():
    """A key that counts although an earlier one fits; a layer that no key fits and that changed."""
    model = gpt()
    asked = {}

    def kept(name):
        def handler(call):
            asked.setdefault(name, []).append(call.layer.number)
            return call.run(call.q, call.k, call.v)

        return handler

    with use(model, {"layers.1": kept("one"), "blocks.0*": kept("path"), "*": kept("rest")}):
        trained(model)
    assert asked == {"one": [1], "path": [0], "rest": [2]}
    asked.clear()
    with use(model, {"layers.1-2": kept("some")}):
        trained(model)
    assert asked == {"some": [1, 2]}

    plan = Plan.preset("fa2-bf16").at("O", "bf16")

    def by_hand(call):
        if call.layer.number == 2:
            return call.run(call.q, call.k, call.v)
        return attention(
            call.q, call.k, call.v, plan="exact" if call.layer.number else plan, is_causal=True
        )

    with intercept(model, by_hand):
        expected = trained(model)
    with use(model, {"layers.0": plan, "layers.1": "exact"}):
        assert same(trained(model), expected)


def test_autocast_decides_the_types_before_the_plan():
    """An output in float32 where the model's kernel gives 16 bits."""
    model = gpt()
    types = []

    def kept(call):
        out = call.run(call.q, call.k, call.v)
        types.append((call.q.dtype, out.dtype))
        return out

    with use(model, "exact"), intercept(model, kept), torch.autocast("cpu", dtype=torch.bfloat16):
        trained(model)
    assert types == [(torch.bfloat16, torch.bfloat16)] * 3


def test_the_model_gets_its_own_attention_back():
    model = gpt()
    own = trained(model)
    handle = use(model, "fa2-bf16")
    assert not same(trained(model), own) and len(handle.layers) == 3
    handle.remove()
    handle.remove()
    assert same(trained(model), own)


class Biased(nn.Module):
    """Attention with a bias of the scores, or with dropout."""

    def __init__(self, bias=None, dropout=0.0):
        super().__init__()
        self.bias, self.dropout = bias, dropout

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, self.bias, self.dropout)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (Biased(dropout=0.25), r"layer 0 \(0\): its attention drops weights with probability 0.25"),
        (Biased(bias=-torch.arange(4.0)), r"layer 0 \(0\): bias: fa2 multiplies"),
        (Biased(bias=nn.Parameter(torch.zeros(4))), r"layer 0 \(0\): bias: fa2 multiplies"),
    ],
    ids=["dropout", "bias", "learned bias"],
)
def test_what_plans_do_not_model_is_refused(layer, said):
    """A kernel's dropout or bias that is ignored."""
    x = torch.randn(1, 2, 4, 8)
    model = nn.Sequential(layer)
    with use(model, "fa2"), pytest.raises(ValueError, match=said):
        model(x)
    with use(model, "fa2"), pytest.raises(Exception, match=r"attention drops|bias: fa2 multiplies"):
        torch.compile(model, backend="aot_eager")(x)


@pytest.mark.parametrize(
    ("plans", "more", "error", "said"),
    [
        ({"layers.7": "fp32"}, {}, ValueError, r"layers\.7.: there are \d+ layers, 0 to"),
        ({"encoder.*": "fp32"}, {}, ValueError, r"encoder.*0 blocks\.0\.attention"),
        ({}, {}, ValueError, "plans={}"),
        ("fp33", {}, ValueError, "fp33"),
        ({"*": 3}, {}, TypeError, "plans=3"),
        ("fp32", {"block_q": 0}, ValueError, "block_q=0"),
        ("fp32", {"modules": ["head.0"]}, ValueError, r"head\.0"),
    ],
)
def test_refusals(plans, more, error, said):
    with pytest.raises(error, match=said):
        use(gpt(), plans, **more)


def test_a_window_softcap_and_sinks_are_passed_on():
    """An option of another implementation than SDPA that a plan would silently leave out."""
    from dataclasses import replace

    from roundscope.attention.torch.replacement import _attended

    q, k, v = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(0)).unbind()
    sinks, model = torch.tensor([0.5, -1.0]), gpt()
    calls = []
    with intercept(model, lambda call: calls.append(call) or call.run(call.q, call.k, call.v)):
        model(TOKENS)
    more = {"window": 3, "softcap": 2.0, "sinks": sinks}
    call = replace(calls[0], q=q, k=k, v=v, scale=0.5, **more)
    expected = attention(q, k, v, plan="fp32", is_causal=True, scale=0.5, **more)
    assert torch.equal(_attended(call, "fp32", 128, 128)[0], expected)
    for name in more:
        other = attention(q, k, v, plan="fp32", is_causal=True, scale=0.5, **(more | {name: None}))
        assert not torch.equal(other, expected)


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_numbers_that_a_format_has_no_range_for_are_told():
    """E4M3 ends at 448 and 2^-9: gradients of 1e-4 become 0 there, and not in BF16."""
    model, x = nn.Sequential(Attention()), torch.randn(1, 1, 16, 128).bfloat16().requires_grad_()
    with use(model, "fa2-bf16") as found:
        (model(x).sum() * 1e-4).backward()
    assert dict(found.ranges) == {0: ""}
    with use(model, "cudnn-fp8") as found:
        with pytest.warns(UserWarning, match=r"layer 0 \(0\): cudnn-fp8: 100% of DO") as told:
            (model(x).sum() * 1e-4).backward()
        (model(x).sum() * 1e-4).backward()  # is told once
    assert "(100% become 0)" in found.ranges[0] and told[0].filename == __file__
    with use(model, "fa3-fp8"), pytest.warns(UserWarning, match="numbers of Q are too large for"):
        model(1e4 * x.detach())


def test_one_warning_numbers_all_layers_that_lose_range():
    model, x = nn.Sequential(*(Attention() for _ in range(3))), torch.randn(1, 1, 16, 128)
    plans = {"layers.1": "fa2-bf16", "*": "cudnn-fp8"}
    with use(model, plans) as found, pytest.warns(UserWarning, match="of DO") as told:
        (sum(layer(x.requires_grad_()) for layer in model).sum() * 1e-4).backward()
    (text,) = (str(w.message) for w in told if "of DO" in str(w.message))
    first = 2 if text.startswith("use: layer 2 (2): cudnn-fp8") else 0
    assert f"and 1 more layer ({2 - first})" in text
    assert found.ranges[0] and not found.ranges[1]


@pytest.mark.parametrize(("plan", "text"), [
    ("sage-int8", "the kernel has no backward"),
    ("fa3-fp8", "the kernel has no backward"),
    ("fa3-fp8-scaled; O=bf16", "the kernel has no backward"),
    ("cudnn-mxfp8", "the plan has no kernel's backward"),
])  # fmt: skip
def test_gradients_that_no_kernel_computes_are_told(plan, text):
    model, x = nn.Sequential(Attention()), torch.randn(1, 1, 4, 32).half().requires_grad_()
    with use(model, plan), pytest.warns(UserWarning, match=text):
        model(x)


def test_every_preset_with_the_backward_of_another_plan_is_told():
    """Their texts say whose backward it is."""
    made = PRESETS | {name: own.make for name, own in TWINS.items()}
    texts = {
        name: " ".join((inspect.getdoc(function) or "").split()) for name, function in made.items()
    }
    borrowed = {name for name, text in texts.items() if re.search(r"that of\s+fa2-bf16", text)}
    assert len(borrowed) > 4 and borrowed <= {*NO_BACKWARD, *FORWARD_ONLY}


def test_wrong_plans_and_layers_are_named():
    model = nn.Sequential(Attention())
    with pytest.raises(TypeError, match="plans=None: give a Plan"):
        use(model, None)
    with pytest.raises(ValueError, match=r"plans='layers.7': there is layer 0 alone"):
        use(model, {"layers.7": "fa2"})


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16])
def test_a_model_whose_type_a_plan_rounds_is_told(kind):
    """And not where the plan reads that type, or the model has the plan's."""
    model, x = nn.Sequential(Attention()), torch.randn(1, 1, 4, 8)
    name = str(kind).removeprefix("torch.")
    text = f"use: q is {name}, and the plan fa2 rounds it to bf16"
    with use(model, "fa2"), pytest.warns(UserWarning, match=text):
        model(x.to(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with use(model, "fa2"):
            model(x.bfloat16())
        with use(model, "exact"):
            model(x.to(kind))
