"""The calls of attention in PyTorch models: which modules call, and who answers them."""

import copy
import io
import pickle
import warnings
from contextlib import ExitStack
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.overrides import _get_current_function_mode_stack

from roundscope.torch import (
    attention_function,
    attention_layers,
    capture,
    correct,
    intercept,
    use,
    watch,
)
from tests.attention.torch import helpers_of_calls
from tests.attention.torch.helpers_of_calls import attended, normalized
from tests.attention.torch.models import batch, gpt, pretrained

WIDTH, HEADS, TOKENS = 16, 2, 6
X = torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
HIDDEN = torch.arange(TOKENS) >= torch.tensor([[4], [6], [5]])  # padding of three entries
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)


class Plain(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Aliased(nn.Module):
    def forward(self, x):
        return sdpa(x, x, x)


class Helped(nn.Module):
    def forward(self, x):
        return attended(x)


class HelpedByModule(nn.Module):
    def forward(self, x):
        return helpers_of_calls.attended(x)


class NotHelped(nn.Module):
    def forward(self, x):
        return normalized(x)


class Holding(nn.Module):
    """Calls the function that an attribute holds, and one of them by the name "a"."""

    def __init__(self, function):
        super().__init__()
        self.kernel = function

    def forward(self, x):
        return (self.kernel["a"] if isinstance(self.kernel, dict) else self.kernel)(x, x, x)


class HoldingBackend(nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.backend, self.parts = backend, nn.ModuleList([Holding(F.relu)])

    def forward(self, x):
        return self.backend.attend(x)


class Backend:
    def attend(self, x):
        return attended(x)


class Passing(nn.Module):
    """Gives the function to its parts, and calls it nowhere itself."""

    def __init__(self, kernel=F.scaled_dot_product_attention):
        super().__init__()
        self.kernel, self.parts = kernel, nn.ModuleList(Holding(kernel) for _ in range(2))

    def forward(self, x):
        return self.parts[1](self.parts[0](x))


def by_hand(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def given(kernel):
    return lambda q, k, v: kernel(q, k, v)


def by_default(q, k, v, kernel=F.scaled_dot_product_attention):
    return kernel(q, k, v)


HELD = {
    "itself": sdpa,
    "marked": attention_function(by_hand),
    "partial": partial(sdpa, is_causal=True),
    "partial of a marked one": partial(attention_function(by_hand)),
    "given to a partial": partial(lambda q, k, v, kernel: kernel(q, k, v), kernel=sdpa),
    "lambda": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "closure": given(sdpa),
    "closure of a marked one": given(attention_function(by_hand)),
    "default": by_default,
    "dictionary": {"a": sdpa},
}


class Kept:
    """A handler that runs the model's own attention and keeps the calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, call):
        self.calls.append(call)
        return call.run(call.q, call.k, call.v)


def multi_head(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(WIDTH, HEADS, **options)


def encoder(dropout=0.0, layers=2):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, layers)


def gradients(model, out):
    model.zero_grad()
    out.square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def nothing_is_left(model):
    return not any(
        {"forward", "_roundscope_handlers"} & set(module.__dict__) for module in model.modules()
    )


def names(model, modules=None):
    return [layer.name for layer in attention_layers(model, modules)]


@pytest.mark.parametrize("kind", [Plain, Aliased, Helped, HelpedByModule])
def test_a_class_that_calls_attention_is_found(kind):
    """A name of its own for SDPA; a function of another file, decorated, or through its module."""
    model = nn.Sequential(nn.Linear(4, 4), kind())
    assert names(model) == ["1"]
    kept = Kept()
    with intercept(model, kept):
        model(torch.ones(1, 2, 3, 4))
    assert len(kept.calls) == 1


@pytest.mark.parametrize("kernel", HELD.values(), ids=HELD)
def test_a_function_that_an_attribute_holds_is_found(kernel):
    """`exact` is binary64 attention of these FP64 numbers, so it moves last bits alone."""
    model, x = nn.Sequential(nn.Identity(), Holding(kernel)), torch.randn(1, 2, 3, 4).double()
    assert names(model) == ["1"]
    own, kept = model(x), Kept()
    with use(model, "exact"), intercept(model, kept):
        torch.testing.assert_close(model(x), own, rtol=0, atol=1e-14)
    assert len(kept.calls) == 1


def test_a_function_is_the_layer_of_who_calls_it():
    """A function in an object that an attribute holds makes the holder a layer; a module that only
    passes a function on to others is none.
    """
    assert names(HoldingBackend(Backend())) == [""]
    model, kept = Passing(), Kept()
    assert names(model) == ["parts.0", "parts.1"]
    with intercept(model, kept):
        model(torch.ones(1, 2, 3, 4))
    assert len(kept.calls) == 2


def test_a_refusal_names_paths_of_the_model():
    """A function in which no attention is seen; one that writes it out; none at all."""
    for model, message in (
        (
            nn.Sequential(Holding(F.relu), Holding(Kept())),
            r"\(0.kernel, 1.kernel.__call__\) none is seen to call it: give modules=\['0', '1'\]",
        ),
        (nn.Sequential(Holding(by_hand)), "its code writes it out, it seems, in 0: mark"),
        (nn.Sequential(nn.Linear(2, 2)), r"modules=\['0'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            attention_layers(model)


def test_a_class_that_calls_other_functions_is_not_found():
    with pytest.raises(ValueError, match="no module of this Sequential"):
        attention_layers(nn.Sequential(NotHelped(), nn.Linear(2, 2)))


def test_layers_of_pytorch_transformers_are_found():
    assert names(encoder()) == ["layers.0.self_attn", "layers.1.self_attn"]
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 32), 1)
    assert names(decoder) == ["layers.0.self_attn", "layers.0.multihead_attn"]


def test_modules_by_name():
    """A name that is given twice; an order that is not the model's."""
    model = gpt()
    assert names(model, ["blocks.1.attention"] * 2) == ["blocks.1.attention"]
    assert names(model, "blocks.2.attention") == ["blocks.2.attention"]
    with pytest.raises(ValueError, match="'nowhere' is no path"):
        attention_layers(model, ["nowhere"])
    with pytest.raises(TypeError, match="model: 'model'"):
        attention_layers("model")


@pytest.mark.parametrize("layers", ["1-2", "layers.1-2", [1, 2], (2, 1), "blocks.[12].*"])
def test_layers_are_chosen(layers):
    kept = Kept()
    with intercept(gpt(), kept, layers=layers) as own:
        assert [layer.number for layer in own.layers] == [1, 2]


MASKS = {
    "all": {},
    "causal": {"attn_mask": CAUSAL},
    "hint": {"attn_mask": CAUSAL, "is_causal": True},
    "padded": {"key_padding_mask": HIDDEN},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": HIDDEN.float() * -1e4},
    "learned": {"attn_mask": nn.Parameter(CAUSAL.clone())},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_keeps_its_bits(need_weights, masks):
    """Outputs, weights and gradients, of weights too."""
    model, options = multi_head(batch_first=True), MASKS[masks] | {"need_weights": need_weights}

    def run():
        out, weights = model(X, X, X, **options)
        both = out if weights is None else torch.cat([out.flatten(), weights.flatten()])
        return [both.detach(), *gradients(model, both)]

    expected, kept = run(), Kept()
    with intercept(model, kept):
        found = run()
    assert all(map(torch.equal, found, expected))
    assert [tuple(c.q.shape) for c in kept.calls] == [(3, HEADS, TOKENS, WIDTH // HEADS)]


def test_multi_head_attention_is_that_of_its_call():
    """The textbook's attention of q, k, v and mask of the call, in float64, gives the output."""
    model = multi_head(batch_first=True).double()
    for need_weights in (False, True):
        options = {"attn_mask": CAUSAL.double(), "key_padding_mask": HIDDEN.double() * -1e4}
        expected, weights = model(X.double(), X.double(), X.double(), need_weights=need_weights,
                                  average_attn_weights=False, **options)  # fmt: skip
        seen = []

        def textbook(call, seen=seen):
            scores = call.q @ call.k.mT * call.scale + call.mask
            seen.append(scores.softmax(-1))
            return seen[-1] @ call.v

        with intercept(model, textbook):
            found, other = model(X.double(), X.double(), X.double(), need_weights=need_weights,
                                 average_attn_weights=False, **options)  # fmt: skip
        assert (found - expected).abs().max() < 1e-12 and len(seen) == 1
        if need_weights:
            assert torch.equal(other, weights) and (weights - seen[0]).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["unbatched", "first axis", "cross", "widths", "extra keys"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_other_forms_of_multi_head_attention(need_weights, kind):
    options = {
        "widths": {"kdim": 8, "vdim": 4},
        "extra keys": {"add_bias_kv": True, "add_zero_attn": True},
    }
    model = multi_head(**options.get(kind, {}))
    x = {
        "unbatched": (X[0],) * 3,
        "cross": (X, X[:2].repeat(2, 1, 1), X[:2].repeat(2, 1, 1)),
        "widths": (X, X[..., :8], X[..., :4]),
    }.get(kind, (X,) * 3)
    expected, kept = model(*x, need_weights=need_weights), Kept()
    with intercept(model, kept):
        found = model(*x, need_weights=need_weights)
    assert torch.equal(found[0], expected[0]) and len(kept.calls) == 1
    assert torch.equal(found[1], expected[1]) if need_weights else found[1] is None


def test_weights_are_the_modules_own():
    """A handler that does not run the module's attention, or on tensors without its graph."""
    model = multi_head(batch_first=True)
    out, weights = model(X, X, X)
    (expected,) = torch.autograd.grad(weights.square().sum(), model.in_proj_weight)
    assert expected.abs().max() > 1e-3
    for handler, is_own in (
        (lambda call: torch.zeros_like(call.q), False),
        (lambda call: call.run(call.q.detach(), call.k.detach(), call.v), True),
    ):
        with intercept(model, handler):
            found = model(X, X, X)
        assert torch.equal(found[1], weights) and torch.equal(found[0], out) == is_own
        (gradient,) = torch.autograd.grad(found[1].square().sum(), model.in_proj_weight)
        assert torch.equal(gradient, expected)


def test_dropout_of_multi_head_attention_draws_the_same():
    model = multi_head(batch_first=True, dropout=0.5)
    results = []
    for handler in (None, Kept()):
        torch.manual_seed(3)
        if handler is None:
            results.append(model(X, X, X))
        else:
            with intercept(model, handler):
                results.append(model(X, X, X))
            assert handler.calls[0].dropout == 0.5
    assert all(map(torch.equal, *results))


def test_the_causal_hint_without_a_mask_is_refused_as_by_pytorch():
    model = multi_head()
    with intercept(model, Kept()), pytest.raises(RuntimeError, match="Need attn_mask"):
        model(X, X, X, is_causal=True)
    assert nothing_is_left(model) and not _get_current_function_mode_stack()


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoders_of_pytorch_are_seen(is_training):
    """The fast path of eval mode, which calls no attention, and drops padding."""
    model = encoder().train(is_training)
    with torch.set_grad_enabled(is_training), warnings.catch_warnings():
        own = model(X, src_key_padding_mask=HIDDEN)
        warnings.filterwarnings("ignore", "the fast path")  # the next test is about it
        kept = Kept()
        with intercept(model, kept):
            found = model(X, src_key_padding_mask=HIDDEN)
            assert not torch.backends.mha.get_fastpath_enabled()
        with use(model, "fp32"):
            emulated = model(X, src_key_padding_mask=HIDDEN)
        with use(model, "all:bf16"):
            coarse = model(X, src_key_padding_mask=HIDDEN)
    assert torch.backends.mha.get_fastpath_enabled()
    assert [call.layer.number for call in kept.calls] == [0, 1]
    for x in (found, emulated):
        assert (x - own)[~HIDDEN].abs().max() < 1e-5
    assert torch.equal(found, own) == is_training
    # some processors add as the plan fp32 does, so a coarse plan shows that calls are answered
    assert (coarse - own)[~HIDDEN].abs().max() > 1e-3


MASK = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
IS_TAKEN = {  # autocast on a CPU is none to `nn.MultiheadAttention`
    "plain": True,
    "hidden": True,
    "autocast": True,
    "encoder": True,
    "encoder with a mask": True,
    "encoder with SiLU and a mask": False,
    "train": False,
    "grad": False,
    "time first": False,
    "mask of numbers": False,
    "odd heads": False,
    "user's mode": False,
}


@pytest.mark.parametrize("case", IS_TAKEN)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_warning_says_where_the_fast_path_is_off(case, monkeypatch, tmp_path):
    """It comes exactly where PyTorch calls its fused functions without an interception."""
    fused = []
    for name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
        own = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *a, own=own: (fused.append(1), own(*a))[1])
    heads = 1 if case == "odd heads" else HEADS
    model = nn.MultiheadAttention(WIDTH, heads, batch_first=case != "time first")
    given, options = (X, X, X), {}
    if "encoder" in case:
        how = {"activation": F.silu} if "SiLU" in case else {}
        model = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, **how)
        given = (X, MASK) if "mask" in case else (X,)
    elif case == "hidden":
        options = {"key_padding_mask": HIDDEN}
    elif case == "mask of numbers":
        options = {"attn_mask": torch.zeros(MASK.shape).masked_fill(MASK, -torch.inf)}
    model.train(case == "train")
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(case == "grad"))
        if case == "autocast":
            stack.enter_context(torch.autocast("cpu"))
        if case == "user's mode":
            stack.enter_context(torch.device("cpu"))
        model(*given, **options)
        found = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        count = len(fused)
        with capture(model, tmp_path / "calls.safetensors") as calls:
            model(*given, **options)
    told = [w for w in found if "fast path of nn.MultiheadAttention" in str(w.message)]
    assert len(fused) == count and bool(told) == bool(count)
    assert any("fast path" in note for note in calls[0].notes) == bool(count)
    assert bool(count) == IS_TAKEN[case]


def test_the_fast_path_returns_after_the_last_interception():
    models = [encoder(layers=1).eval() for _ in range(2)]
    first, second = (intercept(model, Kept()) for model in models)
    first.remove()
    first.remove()
    assert not torch.backends.mha.get_fastpath_enabled()
    second.remove()
    assert torch.backends.mha.get_fastpath_enabled()
    with intercept(gpt(), Kept()):
        assert torch.backends.mha.get_fastpath_enabled()  # nothing to do with it


def test_encoders_are_captured_watched_and_corrected(tmp_path):
    model = encoder()
    own = gradients(model, model(X))
    with capture(model, tmp_path / "calls.safetensors") as calls:
        captured = gradients(model, model(X))
    assert all(map(torch.equal, captured, own)) and [c.number for c in calls] == [0, 1]
    assert all(c.dq.shape == c.q.shape for c in calls)

    with watch(model, every=1) as watched:
        seen = gradients(model, model(X))
        numbers = watched.numbers()
    assert all(map(torch.equal, seen, own)) and 0 <= numbers["attention/drift"] < 1e-5

    with correct(model):
        corrected = gradients(model, model(X))
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(corrected, own, strict=True))
    assert not all(map(torch.equal, corrected, own))


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_compiled(need_weights):
    model = multi_head(batch_first=True)
    run = partial(model, need_weights=need_weights)
    with use(model, "fa2-bf16"):
        expected = run(X, X, X)[0]
        torch.compiler.reset()
        found = torch.compile(run, backend="aot_eager", fullgraph=True)(X, X, X)[0]
    assert torch.equal(found, expected) and not torch.equal(expected, run(X, X, X)[0])


def test_the_last_handler_is_asked_first():
    model, order = Plain(), []

    def named(name):
        def handler(call):
            order.append(name)
            return call.run(call.q, call.k, 2 * call.v)

        return handler

    x = torch.randn(1, 1, 3, 4)
    handles = [intercept(model, named(n)) for n in "abc"]
    assert torch.equal(model(x), 8 * Plain()(x)) and order == ["c", "b", "a"]
    for gone, left in ((1, ["c", "a"]), (0, ["c"]), (2, [])):
        order.clear()
        handles[gone].remove()
        model(x)
        assert order == left
    assert nothing_is_left(model)


def test_a_handler_that_is_installed_twice_is_asked_twice():
    model, kept = Plain(), Kept()
    first, second = intercept(model, kept), intercept(model, kept)
    model(torch.ones(1, 1, 3, 4))
    assert len(kept.calls) == 2
    second.remove()
    model(torch.ones(1, 1, 3, 4))
    first.remove()
    assert len(kept.calls) == 3 and nothing_is_left(model)


def test_each_handler_has_its_own_numbers_of_layers():
    """Layers that two interceptions count from different beginnings."""
    model, all_of_it, one = gpt(), Kept(), Kept()
    with intercept(model, one, modules=["blocks.2.attention"]), intercept(model, all_of_it):
        model(batch())
    assert [c.layer.number for c in all_of_it.calls] == [0, 1, 2]
    assert [c.layer.number for c in one.calls] == [0]


def test_shared_modules_are_one_layer():
    layer = Plain()
    model, kept = nn.Sequential(layer, nn.Identity(), layer), Kept()
    with intercept(model, kept):
        model(torch.ones(1, 1, 3, 4))
    assert [c.layer.name for c in kept.calls] == ["0", "0"] and nothing_is_left(model)


@pytest.mark.parametrize("model", [Plain(), multi_head()], ids=["plain", "multi-head"])
def test_exceptions_leave_nothing_behind(model):
    """A handler, or a forward, that raises."""
    x = (torch.ones(1, 1, 3, 4),) if isinstance(model, Plain) else (X, X, X)

    def failing(call):
        raise KeyError(call.layer.name)

    with intercept(model, failing), pytest.raises(KeyError):
        model(*x)
    with intercept(model, Kept()), pytest.raises((RuntimeError, AssertionError)):
        model(*(y.flatten() for y in x))
    assert nothing_is_left(model) and not _get_current_function_mode_stack()
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_interception_that_fails_leaves_nothing_behind():
    model = nn.Sequential(Plain(), pretrained("gpt2", "eager"))
    model[1].transformer.h[1].attn.reorder_and_upcast_attn = True
    with pytest.raises(ValueError, match="reorder_and_upcast_attn"):
        intercept(model, Kept())
    assert nothing_is_left(model) and model[1].config._attn_implementation == "eager"


def test_a_forward_without_attention_is_an_error():
    class Sometimes(nn.Module):
        def forward(self, x):
            return x if x.sum() == 0 else F.scaled_dot_product_attention(x, x, x)

    model = Sometimes()
    with intercept(model, Kept()):
        model(torch.ones(1, 1, 3, 4))
        with pytest.raises(RuntimeError, match="its forward ended without a call"):
            model(torch.zeros(1, 1, 3, 4))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), saved],
    ids=["deepcopy", "pickle", "save"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["gpt", "llama", "encoder"])
def test_copies_of_an_intercepted_model_have_their_own_attention(kind, copied):
    """A copy whose forward is the original's, with its weights."""
    model = {"gpt": gpt, "llama": partial(pretrained, "llama", "eager"), "encoder": encoder}[kind]()
    x = X if kind == "encoder" else batch()
    kept = Kept()
    with intercept(model, kept):
        other = copied(model)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.5)
    again = copied(other)
    expected = {"gpt": gpt, "llama": partial(pretrained, "llama", "eager"), "encoder": encoder}
    plain = expected[kind]()
    plain.load_state_dict(other.state_dict())
    for one in (other, again):
        out, wanted = one(x), plain(x)
        assert torch.equal(getattr(out, "logits", out), getattr(wanted, "logits", wanted))
    assert not kept.calls
    assert kind != "llama" or other.config._attn_implementation == "eager"
    with intercept(other, kept):
        other(x)
    assert len(kept.calls) == len(attention_layers(model)) and nothing_is_left(model)


def test_a_forward_of_the_instance_comes_back():
    """A removal that loses the forward which a library set on a module, before or meanwhile."""
    model, x = Plain(), torch.randn(1, 1, 3, 4)
    own, wrapped = model.forward, []

    def around(forward, y):
        wrapped.append(y)
        return forward(y) + 1

    model.forward = first = partial(around, own)
    kept = Kept()
    with intercept(model, kept):
        assert torch.equal(model(x), own(x) + 1) and len(kept.calls) == len(wrapped) == 1
        assert torch.equal(copy.deepcopy(model)(x), own(x) + 1) and len(kept.calls) == 1
    assert model.__dict__["forward"] is first

    handle = intercept(model, kept)
    model.forward = second = partial(around, model.forward)
    with intercept(model, kept):
        kept.calls.clear()
        assert torch.equal(model(x), own(x) + 1 + 1) and len(kept.calls) == 2
    handle.remove()
    assert model.__dict__["forward"] is second
    kept.calls.clear()
    assert torch.equal(model(x), own(x) + 1 + 1) and not kept.calls
    with intercept(model, kept):
        model(x)
    assert len(kept.calls) == 1


def test_functional_call_is_seen():
    model, kept = gpt(), Kept()
    other = {name: 1.5 * p.detach() for name, p in model.named_parameters()}
    expected = torch.func.functional_call(model, other, (batch(),))
    with intercept(model, kept):
        found = torch.func.functional_call(model, other, (batch(),))
    assert torch.equal(found, expected) and len(kept.calls) == 3


def test_data_parallel_is_refused():
    with pytest.raises(ValueError, match=r"nn\.DataParallel runs copies"):
        intercept(nn.DataParallel(gpt()), Kept())


def test_interceptions_of_transformers_end_in_any_order():
    """A config that has a name of ours for good; a handler that is not asked any more."""
    model, one, two = pretrained("llama", "eager"), Kept(), Kept()
    own = model(batch()).logits
    first, second = intercept(model, one), intercept(model, two)
    first.remove()
    assert torch.equal(model(batch()).logits, own)
    assert (len(one.calls), len(two.calls)) == (0, 2)
    second.remove()
    assert model.config._attn_implementation == "eager" and nothing_is_left(model)
    with intercept(model, one):
        model.set_attn_implementation("sdpa")
    assert model.config._attn_implementation == "sdpa"


def test_models_that_share_a_config():
    model = pretrained("llama", "eager")
    other = type(model)(model.config)
    own, kept = other(batch()).logits, Kept()
    with intercept(model, kept):
        assert torch.equal(other(batch()).logits, own) and not kept.calls
        with intercept(other, kept):
            other(batch())
        model(batch())
    assert len(kept.calls) == 4 and model.config._attn_implementation == "eager"


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generation_with_a_cache(implementation):
    """Calls of one query and all keys so far, and cross attention."""
    from transformers import AutoModelForSeq2SeqLM, BartConfig

    sizes = {f"{part}_{what}": n for part in ("encoder", "decoder")
             for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))}  # fmt: skip
    config = BartConfig(
        vocab_size=61, d_model=16, max_position_embeddings=64, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None, init_std=0.3, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation=implementation).eval()
    ids = batch().clamp(min=3)
    generated = partial(model.generate, ids, do_sample=False, max_new_tokens=3, min_new_tokens=3)
    own, kept = generated(), Kept()
    with intercept(model, kept):
        assert torch.equal(generated(), own)
    shapes = [(c.q.shape[2], c.k.shape[2]) for c in kept.calls]
    t = ids.shape[1]
    assert shapes == [(t, t)] + [pair for n in range(3) for pair in ((1, n + 1), (1, t))]
    with use(model, "fp32"):
        assert torch.equal(generated(), own)
