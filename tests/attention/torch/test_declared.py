"""Attention that a model writes out: marked functions, what is told of unmarked ones."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import nn

from roundscope.attention.torch.discovery import written_out
from roundscope.attention.torch.flex import dense
from roundscope.tools.tensors.layers import read_layers
from roundscope.torch import attention_function, attention_layers, capture, correct, use, watch
from tests.checks.models_table import of_transformers, rows
from tests.checks.models_table import stepped as table_step

B, N, T, H = 2, 3, 6, 8
X = torch.randn(B, N, T, H, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SEES = torch.ones(T, T, dtype=torch.bool).tril()
NEAR = SEES & ~SEES.tril(-3)


def scores(q, k, scale):
    return q @ k.mT * scale


@attention_function(scale=H**-0.5)
def full(q, k, v):
    return scores(q, k, H**-0.5).softmax(-1) @ v


@attention_function(is_causal=True)
def causal(query, key, value, scale=None):
    s = scores(query, key, query.shape[-1] ** -0.5 if scale is None else scale)
    return s.masked_fill(~SEES, -torch.inf).softmax(-1) @ value


@attention_function
def masked(q, k, v, attn_mask, softmax_scale):
    return (scores(q, k, softmax_scale) + attn_mask).softmax(-1) @ v


@attention_function(mask=lambda q, k, v: NEAR, scale=1.0)
def window(q, k, v):
    weights = scores(q, k, 1.0).masked_fill(~NEAR, -torch.inf).softmax(-1)
    return weights @ v, weights


@attention_function(layout="BTNH", scale=1.0)
def turned(q, k, v):
    weights = torch.einsum("bthd,bshd->bhts", q, k).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v)


class Attention(nn.Module):
    """Projects the queries, and attends by a marked function, or a method."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.own = nn.Linear(H, H, dtype=torch.float64)


class Full(Attention):
    def forward(self, x):
        return full(self.own(x), x, x)


class Causal(Attention):
    def forward(self, x):
        return causal(self.own(x), x, value=x)


class Biased(Attention):
    def forward(self, x):
        return masked(self.own(x), x, x, torch.zeros(T, T).masked_fill(~NEAR, -torch.inf), 0.5)


class Window(Attention):
    def forward(self, x):
        return window(self.own(x), x, x)[0]


class Turned(Attention):
    def forward(self, x):
        q, k, v = (y.transpose(1, 2) for y in (self.own(x), x, x))
        return turned(q, k, v).transpose(1, 2)


class Method(Attention):
    @attention_function(scale=H**-0.5)
    def attend(self, q, k, v):
        return scores(q, k, H**-0.5).softmax(-1) @ v

    def forward(self, x):
        return self.attend(self.own(x), x, x)


class ByHand(Attention):
    def forward(self, x):
        return scores(self.own(x), x, 1.0).softmax(-1) @ x @ torch.eye(H, dtype=x.dtype)


class WithoutHeads(Attention):
    def forward(self, x):
        q, k, v = (y.flatten(0, 1) for y in (self.own(x), x, x))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=SEES).view(x.shape)


class OfOneRow(Attention):
    """Tensors (T, H), and a mask of all axes in front."""

    def forward(self, x):
        return F.scaled_dot_product_attention(self.own(x)[0, 0], x[0, 0], x[0, 0], SEES)


class Nested(Attention):
    def forward(self, x):
        q, k, v = (y[None] for y in (self.own(x), x, x))
        return F.scaled_dot_product_attention(q, k, v, SEES.expand(1, B, 1, T, T))[0]


SEEN = {  # what each computes, as (mask, scale)
    Full: (None, H**-0.5), Causal: (SEES, H**-0.5), Biased: (NEAR, 0.5), Window: (NEAR, 1.0),
    Turned: (None, 1.0), Method: (None, H**-0.5), WithoutHeads: (SEES, H**-0.5),
    Nested: (SEES, H**-0.5),
}  # fmt: skip


def stepped(model):
    model.zero_grad()
    out = model(X)
    out.square().sum().backward()
    return out.detach(), model[0].own.weight.grad.clone()


@pytest.mark.parametrize("kind", SEEN)
def test_it_is_seen_by_every_function(kind, tmp_path):
    """Truth is PyTorch's own SDPA in float64, of 4 axes."""
    model = nn.Sequential(kind())
    mask, scale = SEEN[kind]
    twin = model[0].own(X)
    expected = F.scaled_dot_product_attention(twin, X, X, mask, scale=scale).detach()
    own, gradient = stepped(model)
    assert (own - expected).abs().max() < 1e-12
    with use(model, "exact"):
        out, found = stepped(model)
    assert (out - expected).abs().max() < 1e-12 and (found - gradient).abs().max() < 1e-11
    with use(model, "all:bf16"):
        assert 1e-4 < (stepped(model)[0] - expected).abs().max() < 0.1
    with capture(model, tmp_path / "a.safetensors", batch=None) as calls:
        out, found = stepped(model)
    assert torch.equal(out, own) and torch.equal(found, gradient)
    (call,) = calls
    assert np.array_equal(call.q.reshape(X.shape), twin.detach().numpy())
    assert call.scale == pytest.approx(scale) and call.dq.shape == call.q.shape
    assert call.is_causal == (mask is SEES) and (call.mask is None) == (mask is not NEAR)
    with watch(model, every=1) as watched:
        stepped(model)
        assert watched.numbers()["attention/drift"] < 1e-12 and watched.note == ""
    with correct(model):
        out, found = stepped(model)
    assert torch.equal(out, own) and (found - gradient).abs().max() < 1e-11


def test_without_an_interception_it_is_the_plain_function():
    weights = window(X, X, X)[1]
    assert weights.shape == (B, N, T, T) and [*attention_layers(nn.Sequential(Window()))]


def test_what_else_it_returns_is_its_own():
    class Both(Attention):
        def forward(self, x):
            return window(self.own(x), x, x)

    model = nn.Sequential(Both())
    own = model(X)
    with correct(model):
        found = model(X)
    assert torch.equal(found[0], own[0]) and torch.equal(found[1], own[1])
    with use(model, "exact"):  # under which the function does not run
        out, weights = model(X)
    assert (out - own[0]).abs().max() < 1e-12 and weights is None


WRONG = {
    "causal": (attention_function, "is_causal=True"),
    "scale": (attention_function(is_causal=True, scale=0.9), "is_causal=True, scale=0.353553"),
    "layout": (attention_function(is_causal=True, layout="BTNH"), "give it the mask"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mark_that_says_something_else_is_refused(name):
    """And what the message advises works."""
    mark, told = WRONG[name]
    wrong = mark(lambda q, k, v: causal.__wrapped__(q, k, v))

    class Wrong(Attention):
        def forward(self, x):
            return wrong(self.own(x), x, x)

    model = nn.Sequential(Wrong())
    with use(model, "exact"), pytest.raises(ValueError, match=r"layer 0 \(0\)") as refusal:
        model(X)
    assert told in str(refusal.value)


def test_a_scale_of_the_width_is_refused_where_the_width_changes():
    @attention_function
    def of_width(q, k, v, scale=None):
        return scores(q, k, scale or 1 / math.sqrt(q.shape[-1])).softmax(-1) @ v

    @attention_function
    def of_width_alone(q, k, v):
        return scores(q, k, 1 / math.sqrt(q.shape[-1])).softmax(-1) @ v

    class Bad(Attention):
        def forward(self, x):
            return of_width_alone(self.own(x), x, x)

    class Good(Attention):  # as the message advises
        def forward(self, x):
            return of_width(self.own(x), x, x)

    bad = nn.Sequential(Bad())
    with correct(bad), pytest.raises(ValueError, match="a parameter scale=None"):
        stepped(bad)
    model = nn.Sequential(Good())
    _, own = stepped(model)
    with correct(model):
        assert (stepped(model)[1] - own).abs().max() < 1e-11


def test_bad_marks():
    with pytest.raises(TypeError, match="has no parameter k, v"):
        attention_function(lambda q, x: q)
    with pytest.raises(TypeError, match="must be a function"):
        attention_function(3)
    with pytest.raises(ValueError, match="layout='BHTN'"):
        attention_function(layout="BHTN")


def test_unmarked_attention_beside_other_is_told():
    model = nn.Sequential(Full(), ByHand())
    for function in (lambda: use(model, "exact"), lambda: correct(model), lambda: watch(model)):
        with pytest.warns(UserWarning, match="1 of 2 modules .* Not seen: 1, ") as told:
            function().remove()
        assert told[0].filename == __file__
    with warnings.catch_warnings(), use(model, "exact", modules=["0"]):
        warnings.simplefilter("error")
        model(X)
    with pytest.raises(ValueError, match=r"in 0: mark the function .*what='operations'"):
        use(nn.Sequential(ByHand()), "exact")


def test_layers_that_are_no_attention_are_not_told():
    class Gate(nn.Module):
        def forward(self, x):
            return x.softmax(-1) * (x @ x.mT).mean()

    class Mixer(nn.Module):
        def forward(self, x):
            return x @ x.mT @ x

    assert written_out(nn.Sequential(Gate(), Mixer(), nn.MultiheadAttention(8, 2)), ()) == []


class Twice(Attention):
    def forward(self, x):
        own = F.scaled_dot_product_attention
        return own(self.own(x), x, x) - own(x, x, self.own(x), is_causal=True)


def test_several_calls_of_a_layer(tmp_path):
    model, file = nn.Sequential(Twice()), tmp_path / "a.safetensors"
    told = pytest.warns(UserWarning, match=r"layer 0 \(0\) called attention 2 times .*calls=None")
    with told, capture(model, file) as calls:
        stepped(model)
    assert len(calls) == 1 and not calls[0].is_causal
    with capture(model, file, calls=None) as calls:  # as the warning advises
        stepped(model)
    assert [(c.call, c.is_causal) for c in calls] == [(0, False), (1, True)]
    assert calls[1].dv is not None and np.array_equal(calls[1].v[0], model[0].own(X)[0].detach())
    names = {name.rpartition(".")[0] for name in load_file(file)}
    assert names == {"layers.0", "layers.0.call.1"}
    (layer,) = read_layers(file, layer="layers.0.call.1")
    assert layer.is_causal
    with watch(model, every=1) as watched:
        stepped(model)
        watched.numbers()
        assert watched.note == "layer 0 (0) called attention 2 times; the first is measured"


def test_heads_that_are_entries_of_the_batch_are_told(tmp_path):
    model = nn.Sequential(WithoutHeads())
    told = pytest.warns(
        UserWarning, match=r"layer 0 \(0\) calls attention without an axis of heads"
    )
    with told, capture(model, tmp_path / "a.safetensors") as calls:
        stepped(model)
    assert calls[0].q.shape == (1, 1, T, H)


def test_a_call_of_one_row():
    model = nn.Sequential(OfOneRow())
    own = model(X)
    with use(model, "exact"):
        assert (model(X) - own).abs().max() < 1e-12
    assert own.shape == (T, H)


@pytest.mark.filterwarnings("ignore")
def test_kernels_of_flex_are_marked_with_their_mask():
    """The way around that the refusal names; truth is SDPA with the dense mask."""
    from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

    def near(batch, head, t, s):
        return (t >= s) & (t - s < 3)

    def of_flex(q, k, v):
        return flex_attention(q, k, v, block_mask=create_block_mask(near, 1, 1, T, T, device="cpu"))

    mark = attention_function(mask=lambda q, k, v: create_mask(near, 1, 1, T, T, device="cpu"))
    marked = mark(of_flex)

    class Flex(Attention):
        def forward(self, x):
            return marked(self.own(x), x, x)

    model = nn.Sequential(Flex())
    model.requires_grad_(False)  # flex_attention has no backward on a CPU
    expected = F.scaled_dot_product_attention(model[0].own(X), X, X, NEAR)
    with use(model, "exact"):
        out = model(X)
    assert (out - expected).abs().max() < 1e-12 and (model(X) - expected).abs().max() < 1e-5


SLOPES = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64)
TABLE = torch.randn(N, 2 * T, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def alibi(score, batch, head, t, s):
    return score + SLOPES[head] * (s - t)


def relative(score, batch, head, t, s):
    return torch.where(s <= t, score + TABLE[head, t - s + T], -torch.inf)


def capped(score, batch, head, t, s):
    return 0.5 * torch.tanh(score / 0.5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("score_mod", [None, alibi, relative, capped])
def test_flex_attention_is_marked_itself(score_mod, tmp_path):
    """A program whose bias, mask or softcap is another; truth is flex_attention's own output."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(batch, head, t, s):
        return (t >= s) & (t - s < 3)

    marked = attention_function(flex_attention)
    block_mask = create_block_mask(near, 1, 1, T, T, device="cpu")

    class Flex(Attention):
        def forward(self, x):
            return marked(self.own(x), x, x, score_mod=score_mod, block_mask=block_mask)

    model = nn.Sequential(Flex())
    model.requires_grad_(False)  # flex_attention has no backward on a CPU
    own = model(X)
    with use(model, "exact"), capture(model, tmp_path / "a.safetensors") as calls:
        assert (model(X) - own).abs().max() < 1e-5  # its softmax is in binary32
    assert calls[0].softcap == (0.5 if score_mod is capped else None)
    assert np.array_equal(calls[0].mask[0, 0], NEAR)
    assert (calls[0].bias is None) == (score_mod in (None, capped))


def test_a_program_that_scales_scores_is_refused():
    """A score_mod that is no bias, taken for one."""
    q = torch.zeros(B, N, T, H)
    for program, why in (
        (lambda s, b, h, i, j: 2.0 * s + i, "to a score of 1 it adds 1, to -0.75 -0.75"),
        (lambda s, b, h, i, j: s if i > j else -s, "cannot be evaluated on all indices"),
    ):
        with pytest.raises(ValueError, match=f"layer 0: .*{why}"):
            dense(program, None, q, q, "layer 0")
    table = torch.zeros(N, requires_grad=True)  # a bias of zeros that learns stays one
    mask = dense(lambda s, b, h, i, j: s + table[h], None, q, q, "").mask
    assert torch.autograd.grad(mask.sum(), table)[0].tolist() == [1.0] * N


ALL = pytest.param([], marks=pytest.mark.thorough)


@pytest.mark.parametrize("names", [["twice", "beside"], ALL])
def test_no_model_is_a_dead_end(names):
    """Every cell of the table of models: it works, is told, or a refusal whose advice works."""
    for cells, is_dead in rows(names):
        assert not is_dead and "?" not in " ".join(cells), cells
        assert "logits changed" not in cells[3]
        assert ("beside" in cells[0]) == ("told: not all" in cells[2]), cells


@pytest.mark.thorough  # it imports T5
def test_t5_in_eager_keeps_its_bits_and_its_bias(tmp_path):
    model = of_transformers("T5, learned bias", "eager")
    own, gradients = table_step(model)
    with capture(model, tmp_path / "a.safetensors") as calls:
        out, found = table_step(model)
    assert torch.equal(out, own) and all(torch.equal(found[n], g) for n, g in gradients.items())
    assert calls[0].bias.dtype == np.float64 and len(np.unique(calls[0].bias)) > 8
    with use(model, "exact"):
        out, found = table_step(model)
    assert (out - own).abs().max() < 1e-6 * own.abs().max()
    name = next(n for n in gradients if "relative_attention_bias" in n)
    assert (found[name] - gradients[name]).abs().max() < 1e-6 * gradients[name].abs().max()
    with correct(model), pytest.raises(ValueError, match="freeze the bias"):
        table_step(model)


def test_a_function_without_a_backward_on_this_device_has_that_of_the_plan() -> None:
    """As flex_attention on a CPU, which raises an error where an input asks for a gradient."""

    @attention_function(scale=H**-0.5)
    def forward_alone(q, k, v):
        if any(x.requires_grad for x in (q, k, v)):
            raise NotImplementedError
        return scores(q, k, H**-0.5).softmax(-1) @ v

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = forward_alone

        def forward(self, x):
            return self.attend(x, x, x)

    model, x = Layer(), X.clone().requires_grad_()
    with use(model, "exact"):
        model(x).sum().backward()
    expected = X.clone().requires_grad_()
    full(expected, expected, expected).sum().backward()
    assert torch.allclose(x.grad, expected.grad, rtol=1e-12)
