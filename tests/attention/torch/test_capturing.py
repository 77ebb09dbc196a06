"""Capturing the attention of PyTorch models: no bit changes, and the file has what was computed."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from roundscope.attention.torch import capture, intercept
from roundscope.torch import capture as any_capture
from roundscope.torch import use
from tests.attention.torch.models import batch, gpt, pretrained
from tests.some import some

HEADS, TOKENS, WIDTH = 4, 24, 16
PLAIN = {
    "plain": {},
    "grouped": {"groups": 2},
    "reentrant": {"checkpointing": True},
    "checkpointed": {"checkpointing": False},
}
FAMILIES = [(f, i) for f in ("llama", "qwen2", "gpt2") for i in ("eager", "sdpa")]


def plain_gpt(**options):
    return gpt(layers=2, width=WIDTH, heads=HEADS, **options)


def tokens(rows=2, seed=1):
    return batch(rows, TOKENS, seed)


def logits(model, ids, **more):
    result = model(ids, **more)
    return result if isinstance(result, torch.Tensor) else result.logits


def step(model, ids, **more):
    """A forward and a backward: outputs, loss and the gradient of every parameter."""
    model.zero_grad()
    out = logits(model, ids, **more)
    loss = F.cross_entropy(out[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "loss": loss.detach()} | gradients


def bits(results):
    """The bytes of tensors by name, which tell -0 from 0 and one NaN from another."""
    flat = {n: x.reshape(-1).contiguous() for n, x in results.items()}
    return {n: x.view(torch.uint8).numpy().tobytes() for n, x in flat.items()}


def metadata(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])["__metadata__"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "qkv.safetensors"


def padding(ids, left):
    """A mask of tokens that leaves some of the first sequence and none of the second out."""
    mask = torch.ones_like(ids)
    mask[0, : ids.shape[1] - left] = 0
    return mask


def captured_as_is(model, path, run, **options):
    """Run a model with and without capture, and check that every bit is the same."""
    before = bits(run(model))
    with capture(model, path, **options) as calls:
        during = bits(run(model))
    after = bits(run(model))
    assert before == during == after
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_gpt_keeps_its_bits(kind, dtype, path):
    model = plain_gpt(**PLAIN[kind]).to(dtype)
    calls = captured_as_is(model, path, lambda m: step(m, tokens()))
    assert [(c.number, c.name) for c in calls] == [
        (0, "blocks.0.attention"),
        (1, "blocks.1.attention"),
    ]
    check_gradients(calls)


@pytest.mark.parametrize(
    ("family", "implementation", "is_padded"),
    some((*own, bool(i % 2) is p) for i, own in enumerate(FAMILIES) for p in (True, False)),
)
def test_models_of_transformers_keep_their_bits(family, implementation, is_padded, path):
    model, ids = pretrained(family, implementation), tokens()
    more = {"attention_mask": padding(ids, 10)} if is_padded else {}
    calls = captured_as_is(model, path, lambda m: step(m, ids, **more), batch=None)
    assert len(calls) == 2
    assert all(c.implementation.startswith(implementation) for c in calls)
    assert all(c.is_causal is not is_padded for c in calls)
    check_gradients(calls)


def exactly(call):
    """Output and gradients of a call in binary64, by autograd, and the same sums of magnitudes.

    The magnitudes bound each number's error: first-order analysis of softmax(scale q k^T) v has
    every rounding enter with at most the magnitude of what it is added to.
    """
    names = ("q", "k", "v")
    q, k, v = (torch.from_numpy(np.float64(getattr(call, x))).requires_grad_() for x in names)
    do = torch.from_numpy(np.float64(call.do))
    g, group = k.shape[1], q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    sees = sees.tril() if call.is_causal else sees
    sees = sees if call.mask is None else sees & torch.from_numpy(call.mask)
    blind = ~sees.any(-1, keepdim=True)  # whose rows are the kernel's own choice
    p = (call.scale * q @ keys.mT).masked_fill(~sees, -torch.inf).softmax(-1)
    p = p.masked_fill(blind, 0.0)
    out, do = p @ values, do * ~blind
    gradients = torch.autograd.grad(out, (q, k, v), do)
    with torch.no_grad():
        dp = do.abs() @ values.abs().mT
        ds = call.scale * p * (dp + (p * dp).sum(-1, keepdim=True))
        sizes = {"out": p @ values.abs(), "dq": ds @ keys.abs()}
        sizes |= {"dk": ds.mT @ q.abs(), "dv": p.mT @ do.abs()}
        for name in ("dk", "dv"):
            sizes[name] = sizes[name].unflatten(1, (g, group)).sum(2)
        largest = float((q.abs() @ keys.abs().mT).max()) * call.scale
    wanted = dict(zip(("out", "dq", "dk", "dv"), (out, *gradients), strict=True))
    return {n: (x.detach().numpy(), sizes[n].numpy()) for n, x in wanted.items()}, largest, blind


def check_gradients(calls):
    """What was captured is attention and its gradients, to the accuracy of its type.

    Numbers in 16 bits round P, dS, the output that delta reads and the result, each by half an ulp;
    sums and the exponent, whose error is that of the largest score, are in binary32.
    """
    assert calls
    for call in calls:
        wanted, largest, blind = exactly(call)
        terms = 2 * call.k.shape[2] + call.q.shape[3] + call.v.shape[3] + 10
        bound = 2 * 2.0**-24 * terms * (1 + largest)
        bound += 4 * 2.0**-8 if call.q.dtype.itemsize == 2 else 0.0
        for name, (want, size) in wanted.items():
            if name == "out" or not blind.any():
                got = np.float64(getattr(call, name)) * (~blind.numpy() if name == "out" else 1.0)
                assert got.shape == want.shape and got.any()
                assert (np.abs(got - want) <= bound * size + 1e-30).all(), name


class Bare(nn.Module):
    """Attention alone, whose inputs a test gives."""

    def forward(self, q, k, v, **options):
        return F.scaled_dot_product_attention(q, k, v, **options)


def inputs(*shapes, dtype=torch.float32):
    g = torch.Generator().manual_seed(5)
    return [torch.randn(*s, generator=g, dtype=dtype).requires_grad_() for s in shapes]


def test_gradients_are_those_of_autograd(path):
    """dq, dk and dv of the very call, with keys of other heads, lengths and widths."""
    q, k, v = inputs((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 3))
    do = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(1))
    model = Bare()
    with capture(model, path, batch=None) as calls:
        out = model(q, k, v, enable_gqa=True, scale=0.7)
        gradients = torch.autograd.grad(out, (q, k, v), do)
    named = {"out": out, "do": do} | dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    for name, want in named.items():
        assert np.array_equal(getattr(calls[0], name), want.detach().numpy()), name
    assert (calls[0].scale, calls[0].is_causal) == (0.7, False)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("shared", ["qkv", "kv"])
def test_one_tensor_for_several_inputs_keeps_the_order_of_its_sum(shared, backend, path):
    """Views of one tensor for q, k and v add its three gradients in another order."""
    x, y = inputs((1, 2, 64, 16), (1, 2, 64, 16))
    model = Bare()

    def run(model):
        x.grad = None
        with sdpa_kernel(backend):
            a = (x * 1.5).tanh()
            model(y if shared == "kv" else a, a, a).square().sum().backward()
        return {"x": x.grad.clone()}

    (call,) = captured_as_is(model, path, run)
    check_gradients([call])
    assert call.notes == (
        "dq, dk and dv are of a second run of the call, since two of q, k and v are one tensor",
    )


def test_a_single_head_may_have_no_axis(path):
    q, k, v = inputs((2, 6, 8), (2, 6, 8), (2, 6, 8))
    mask = torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.7
    mask[:, :, 0] = True
    model = Bare()
    told = pytest.warns(UserWarning, match="without an axis of heads, 2 entries")
    with told, capture(model, path, batch=1) as calls:
        out = model(q, k, v, attn_mask=mask)
        out.sum().backward()
    assert calls[0].q.shape == (1, 1, 6, 8)
    assert np.array_equal(calls[0].mask, mask[1:2, None].numpy())
    assert np.array_equal(calls[0].dv, v.grad[1:2, None].numpy())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # Dynamo's own
@pytest.mark.parametrize("inside", ["model", "block", "function"])
def test_a_compiled_model_runs_uncompiled(inside, path):
    """Compiled code that ran around the capture, or code that was compiled from it."""
    model, ids = plain_gpt(), tokens()
    eager = bits({"logits": model(ids)})
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    if inside == "block":
        model.blocks[0].compile(backend=backend)
        run = model
    else:
        run = torch.compile(model if inside == "model" else lambda x: model(x), backend=backend)
    before = bits({"logits": run(ids)})
    compiled = len(graphs)
    assert compiled
    with capture(run if inside == "model" else model, path) as calls:
        assert bits({"logits": run(ids)}) == eager
    assert len(calls) == 2 and len(graphs) == compiled
    assert metadata(path)["torch.compile"] == "off while capturing"
    assert bits({"logits": run(ids)}) == before


def test_without_a_backward_there_is_no_do(path):
    model, ids = plain_gpt(), tokens()
    with torch.no_grad():
        calls = captured_as_is(model, path, lambda m: {"logits": logits(m, ids)})
    assert len(calls) == 2 and all(c.do is None and c.dq is None for c in calls)
    assert not any(".d" in name for name in load_file(path))
    with torch.inference_mode(), capture(model, path) as calls:
        model(ids)
    assert len(calls) == 2
    with capture(model, path) as calls:
        step(model, ids)
    assert all(c.do is not None for c in calls)


@pytest.mark.parametrize("kind", PLAIN)
def test_gradients_that_accumulate_are_kept_by_pass(kind, path):
    """Two forwards before their backwards, and a third whose backward is alone: the repeated
    forwards of checkpointing belong to the passes that they repeat.
    """
    model = plain_gpt(**PLAIN[kind])
    batches = [tokens(seed=n) for n in range(3)]
    with capture(model, path, steps=None, layers=1) as calls:
        losses = [model(ids).square().mean() * (n + 1) for n, ids in enumerate(batches[:2])]
        sum(losses).backward()
        model(batches[2]).square().mean().backward()
    assert [c.step for c in calls] == [0, 1, 2]
    check_gradients(calls)
    for n, ids in enumerate(batches):
        with capture(model, path, layers=1) as alone:
            model(ids).square().mean().backward()
        factor = n + 1 if n < 2 else 1
        assert np.array_equal(alone[0].q, calls[n].q)
        np.testing.assert_allclose(alone[0].do * factor, calls[n].do, rtol=1e-5, atol=1e-12)


def test_the_passes_that_are_asked_for(path):
    model = plain_gpt()
    with capture(model, path, steps=[1, 3]) as calls:
        for n in range(5):
            with torch.no_grad():
                model(tokens(seed=n))
    assert [(c.step, c.number) for c in calls] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    with capture(model, path.with_name("1"), steps=0) as alone, torch.no_grad():
        model(tokens(seed=3))
    assert np.array_equal(alone[1].q, calls[3].q)
    assert set(load_file(path)) == {
        f"step.{s}.layers.{n}.{x}" for s in (1, 3) for n in (0, 1) for x in ("q", "k", "v", "out")
    }


def test_parts_that_are_called_without_the_model(path):
    """A pass begins with a layer that was called already."""
    model, x = plain_gpt(), torch.randn(1, TOKENS, WIDTH)
    with capture(model, path, steps=1) as calls, torch.no_grad():
        for n in range(3):
            for block in model.blocks:
                block(x * n)
    assert [(c.step, c.number) for c in calls] == [(1, 0), (1, 1)]


def test_autocast_is_in_the_types(path):
    model, ids = plain_gpt(), tokens()

    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            return step(model, ids)

    calls = captured_as_is(model, path, run)
    assert all(c.q.dtype == c.out.dtype == c.dq.dtype == ml_dtypes.bfloat16 for c in calls)
    check_gradients(calls)
    arrays = load_file(path)
    assert arrays["layers.0.q"].tobytes() == calls[0].q.tobytes()


def test_autocast_inside_eager_attention_is_noted(path):
    model, ids = pretrained("llama", "eager"), tokens()

    def run(model):
        with torch.autocast("cpu", torch.bfloat16):
            return step(model, ids)

    (call, _) = captured_as_is(model, path, run)
    noted = any(note.startswith("autocast to torch.bfloat16 was on") for note in call.notes)
    assert noted is (call.q.dtype != ml_dtypes.bfloat16)


OF_KERNELS = {
    SDPBackend.MATH: "sdpa math",
    SDPBackend.FLASH_ATTENTION: "sdpa flash",
}


@pytest.mark.parametrize("backend", OF_KERNELS)
@pytest.mark.parametrize("has_gradient", [True, False])
def test_the_kernel_is_told(backend, has_gradient, path):
    """By torch's own name of the operation in the graph, where there is one."""
    q, k, v = inputs(*[(1, 2, 16, 8)] * 3)
    model = Bare()
    has = torch.set_grad_enabled(has_gradient)
    with capture(model, path) as calls, sdpa_kernel(backend), has:
        out = model(q, k, v, is_causal=True)
    assert calls[0].implementation == OF_KERNELS[backend]
    if has_gradient:
        is_flash = "ScaledDotProductFlashAttention" in out.grad_fn.name()
        assert is_flash is (backend is SDPBackend.FLASH_ATTENTION)


def test_what_is_not_asked_for_is_left_out(path):
    """Heads, tokens and entries of the batch are parts of the whole capture."""
    model, ids = plain_gpt(groups=2), tokens(rows=3)
    with capture(model, path, batch=None) as whole:
        step(model, ids)
    with capture(model, path, batch=[2], heads=1, tokens=10, layers="blocks.1.*") as part:
        step(model, ids)
    (cut,), (_, full) = part, whole
    queries = (slice(2, 3), slice(2, 4), slice(10))
    for name in ("q", "out", "do", "dq"):
        assert np.array_equal(getattr(cut, name), getattr(full, name)[queries]), name
    for name in ("k", "v"):
        assert np.array_equal(getattr(cut, name), getattr(full, name)[2:3, 1:2, :10]), name
    assert cut.dk is None and cut.dv is None and full.dk.shape == (3, 2, TOKENS, WIDTH // HEADS)
    assert set(metadata(path)["notes"].split("; ")) == {
        "the first 10 of 24 queries and 10 of 24 keys, without dk and dv, which sum over all"
        " queries"
    }


def test_a_sliding_window_is_in_the_mask(path):
    model = pretrained("mistral", "sdpa", sliding_window=5)
    calls = captured_as_is(model, path, lambda m: step(m, tokens()))
    t, s = np.indices((TOKENS, TOKENS))
    assert np.array_equal(calls[0].mask[0, 0], (s <= t) & (t - s < 5))
    check_gradients(calls)


def test_a_learned_bias_is_kept_as_numbers(path):
    q, k, v, bias = inputs(*[(1, 2, 6, 8)] * 3, (2, 6, 6))
    model = Bare()
    with capture(model, path) as calls:
        model(q, k, v, attn_mask=bias).sum().backward()
    assert calls[0].mask is None and np.array_equal(calls[0].bias[0], bias.detach().numpy())
    assert load_file(path)["layers.0.bias"].dtype == np.float32


def test_dropout_is_said(path):
    q, k, v = inputs(*[(1, 2, 6, 8)] * 3)
    with capture(model := Bare(), path):
        model(q, k, v, dropout_p=0.25)
    assert metadata(path)["dropout"] == "0.25"


def test_versions_and_the_model_are_in_the_file(path):
    import transformers

    model = pretrained("gpt2", "eager")
    with capture(model, path):
        step(model, tokens())
    about = metadata(path)
    assert about["torch"] == torch.__version__
    assert about["transformers"] == transformers.__version__
    assert (about["source"], about["layout"]) == ("GPT2LMHeadModel", "BNTH")
    assert (about["implementation"], about["is_causal"]) == ("eager", "true")
    assert about["layers.1.name"] == "transformer.h.1.attn"
    assert float(about["scale"]) == (32 // HEADS) ** -0.5


class Twice(nn.Module):
    """One layer that runs twice, and one that never runs."""

    def __init__(self):
        super().__init__()
        self.shared, self.idle = Bare(), Bare()

    def forward(self, x):
        return self.shared(self.shared(x, x, x), x, x)


def test_a_layer_that_runs_twice_and_one_that_never_does(path):
    x = torch.randn(1, 2, 6, 8)
    model = Twice()
    told = pytest.warns(UserWarning, match=r"layer 1 \(idle\) did not run in forward pass 0")
    with told, capture(model, path) as calls:
        model(x)
    assert calls[0].notes == ("called 2 times in this pass; the first call is kept",)
    assert np.array_equal(calls[0].q, x.numpy())
    assert metadata(path)["remark"] == (
        "layer 1 (idle) did not run in forward pass 0; layer 0 (shared) called attention 2 times in"
        " a forward pass, and the first is kept; calls=None keeps all"
    )


def test_passes_that_never_came(path):
    told = pytest.warns(UserWarning, match=r"1 forward passes ran, and steps=\[0, 3\] were asked")
    with told, capture(model := plain_gpt(), path, steps=(0, 3)):
        model(tokens())
    path.unlink()
    nothing = pytest.raises(RuntimeError, match=r"0 forward passes ran, and steps=\[0\]")
    with nothing, capture(plain_gpt(), path):
        pass
    assert not path.exists()


def test_several_backwards_keep_the_first(path):
    q, k, v = inputs(*[(1, 2, 6, 8)] * 3)
    with capture(model := Bare(), path) as calls:
        out = model(q, k, v)
        out.sum().backward(retain_graph=True)
        (2 * out).sum().backward()
    assert (calls[0].do == 1.0).all()
    assert calls[0].notes == ("there were several backwards; the first is kept",)


def test_an_interception_that_answers_is_noted(path):
    model = Bare()
    q, k, v = inputs(*[(1, 2, 6, 8)] * 3)
    doubled = intercept(model, lambda call: call.run(call.q, call.k, call.v) * 2)
    with doubled, capture(model, path) as calls:
        out = model(q, k, v)
    assert np.array_equal(calls[0].out, out.detach().numpy())
    assert "another interception of Roundscope" in calls[0].notes[0]


def test_ctrl_c_loses_nothing(path):
    """What ran until then is in the file, and the model is as it was."""
    model, ids = plain_gpt(), tokens()
    before = bits(step(model, ids))
    interrupted = pytest.raises(KeyboardInterrupt)
    with interrupted, capture(model, path, steps=None):
        step(model, ids)
        raise KeyboardInterrupt
    assert "layers.1.dk" in load_file(path)
    assert metadata(path)["remark"] == "ended by KeyboardInterrupt"
    assert bits(step(model, ids)) == before
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not model._forward_hooks and not model._forward_pre_hooks


WRONG = [
    ({"layers": "9"}, ValueError, r"layers='9'"),
    ({"layers": "decoder.*"}, ValueError, r"layers='decoder\.\*'.*0 blocks\.0\.attention"),
    ({"heads": 4}, ValueError, r"layer 0 \(blocks.0.attention\): heads=\[4\]: there are 4 key"),
    ({"batch": 2}, ValueError, r"batch=\[2\]: there are 2 entries, numbered from 0 to 1"),
    ({"heads": "0"}, TypeError, r"heads='0': give whole numbers"),
    ({"tokens": 0}, ValueError, r"tokens=0: give 1 or more"),
    ({"tokens": 1.5}, TypeError, r"tokens=1\.5"),
    ({"steps": -1}, ValueError, r"steps=\[-1\]: give numbers from 0"),
    ({"modules": ["missing"]}, ValueError, r"'missing' is no path"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_wrong_arguments(options, error, message, path):
    model = plain_gpt()
    with pytest.raises(error, match=message), capture(model, path, **options):
        model(tokens())
    assert not path.exists()
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_wrong_paths(tmp_path):
    for wrong, message in ((tmp_path, "is a folder"), (tmp_path / "a" / "b", "there is no folder")):
        with pytest.raises(ValueError, match=message), capture(plain_gpt(), wrong):
            raise AssertionError("the model must not run first")
    no_module = pytest.raises(TypeError, match=r"must be a torch\.nn\.Module")
    with no_module, capture(lambda x: x, tmp_path / "a"):
        pass


def test_gradients_are_no_kind_of_capture_but_part_of_one(tmp_path):
    message = "must be 'attention', which has the gradients too if a backward runs within"
    with pytest.raises(ValueError, match=message):
        any_capture(gpt(), tmp_path / "a.safetensors", what="gradients")


def test_an_argument_of_the_other_kind_is_told(tmp_path):
    with pytest.raises(TypeError, match="limit= is an argument of what='operations' alone"):
        any_capture(gpt(), tmp_path / "a.safetensors", limit=5)
    with pytest.raises(TypeError, match=r"'limits'; did you mean 'limit'\?") as told:
        any_capture(gpt(), tmp_path / "a.safetensors", limits=5)
    assert {"what", "limit", "tell", "weights", "heads"} <= set(str(told.value).split())


def test_capture_outside_of_use_is_told(tmp_path):
    model, path = plain_gpt(), tmp_path / "a.safetensors"
    with pytest.raises(RuntimeError, match="install capture after it"), capture(model, path), \
            use(model, "fp32"):  # fmt: skip
        model(tokens())
    with pytest.warns(UserWarning, match="install capture after it"), \
            capture(model, path) as calls, use(model, {"layers.0": "fp32"}):  # fmt: skip
        model(tokens())
    (told,) = repr(calls).splitlines()
    assert told.startswith("[<Captured layer 1 (") and "q (1, 4, 24, 4)" in told
