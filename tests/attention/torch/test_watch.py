"""`watch`: its numbers by formula, and that it changes nothing of a training."""

import math
import warnings

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from roundscope.attention.models import log as logs
from roundscope.attention.torch import watching
from roundscope.attention.torch.calls import intercept
from roundscope.attention.torch.correction import correct
from roundscope.attention.torch.watching import watch
from tests.attention.torch.biased import (
    Gpt,
    error_of_delta,
    loss_of,
    tokens,
    with_biased_kernel,
)
from tests.operations.models.small import tiny
from tests.some import some


def train(model, steps=3, *, watched=None, backward=torch.Tensor.backward, autocast=False):
    """Return the weights and gradients after some steps, and the numbers of each."""
    optimizer, numbers = torch.optim.SGD(model.parameters(), lr=0.1), []
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(model, tokens(seed=step))
        backward(loss)
        if watched is not None:
            numbers.append(watched.numbers())
        optimizer.step()
    state = [x.detach().clone() for p in model.parameters() for x in (p, p.grad)]
    return state, numbers


def same(one, two):
    return len(one) == len(two) and all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


class Spied:
    """Keeps what an attention module read in a model's last step, and the gradients of it."""

    def __init__(self, attention):
        self.attention, self.of = attention, {}
        for name in ("q", "k", "v"):
            getattr(attention, name).register_forward_hook(self._keep(name))
        attention.o.register_forward_pre_hook(lambda module, args: self._retained("out", args[0]))

    def _keep(self, name):
        return lambda module, args, out: self._retained(name, out)

    def _retained(self, name, x):
        x.retain_grad()
        self.of[name] = x

    def heads(self, name, entry, grad=False):
        """One batch entry, (N, T, H), as NumPy's."""
        x = self.of[name].grad if grad else self.of[name]
        return x[entry].unflatten(-1, (-1, self.attention.size)).transpose(0, 1).detach().numpy()


def reference(spied, entry, error):
    """|R| and |G| of each head by their equations."""
    q, k, v, dq = (spied.heads(n, entry, g) for n, g in
                   (("q", False), ("k", False), ("v", False), ("q", True)))  # fmt: skip
    group, scale = len(q) // len(k), q.shape[-1] ** -0.5
    s = scale * q @ np.repeat(k, group, 0).swapaxes(1, 2)
    p = np.exp(np.where(np.tril(np.ones(s.shape[1:])), s, -np.inf))
    p /= p.sum(-1, keepdims=True)
    u = v.swapaxes(0, 1).reshape(v.shape[1], -1)
    pk = p @ np.repeat(k, group, 0)
    made = [sum(-scale * error[n, t] * np.outer(u[t], pk[n, t]) for t in range(len(u)))
            for n in range(len(q))]  # fmt: skip
    whole = [u.T @ dq[n] for n in range(len(q))]
    return [np.linalg.norm(x, axis=(1, 2)) for x in (made, whole)]


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_numbers_of_a_kernel_whose_delta_errs_by_formula(tmp_path, key_heads):
    model = Gpt(key_heads=key_heads).double()
    with_biased_kernel(model)
    spied = [Spied(block.attention) for block in model.blocks]
    path = tmp_path / "log"
    with watch(model, every=1, log=path, threshold=None) as w:
        for step in range(4):  # the batch entry is another one each time
            loss_of(model, tokens(seed=step)).backward()
            assert w.numbers() and w.note == ""
            look = logs.read(path)[-1]
            for own, layer in zip(look.layers, spied, strict=True):
                q = torch.zeros(3, 4, 20, 8, dtype=torch.float64)
                error = error_of_delta(own.layer.number, q, 1e-2)[step % 3].numpy()
                drift, gradient = reference(layer, step % 3, error)
                np.testing.assert_allclose(own.numbers.drift, drift, 1e-9)
                np.testing.assert_allclose(own.numbers.gradient, gradient, 1e-9)
                np.testing.assert_allclose(own.numbers.gain, 0.0, atol=1e-13)
                assert own.heads == (0, 1, 2, 3)
            model.zero_grad()


def test_an_exact_kernel_has_no_drift():
    model = Gpt().double()
    with watch(model) as w:
        _, (numbers, *_) = train(model, watched=w)
    assert 0.0 < numbers["attention/drift"] < 1e-13


@pytest.mark.parametrize("options", [
    {}, {"dropout": 0.25}, {"key_heads": 4}, {"autocast": True}, {"layers": "1"},
])  # fmt: skip
def test_no_bit_changes(options):
    """A random number that watching draws, or a gradient that it adds to."""
    own = {name: options.pop(name) for name in ("autocast",) if name in options}
    layers = options.pop("layers", "*")
    expected, _ = train(Gpt(**options), **own)
    drawn = torch.rand(3)
    model = Gpt(**options)  # which seeds
    with watch(model, every=1, layers=layers) as w:
        state, numbers = train(model, watched=w, **own)
    assert same(state, expected) and torch.equal(torch.rand(3), drawn)
    assert all(math.isfinite(n["attention/drift"]) for n in numbers)


def test_steps():
    """Which forwards are looked at, and how they are counted."""
    model = Gpt(layers=1)
    with watch(model, every=2, forwards=3, start=10) as w:
        assert w.step == 10
        seen = []
        for n in range(14):
            loss_of(model, tokens()).backward()
            model.eval()
            loss_of(model, tokens())  # no step
            model.train()
            with torch.no_grad():
                loss_of(model, tokens())
            if w.numbers():
                seen.append((n, w.step))
            assert w.numbers() == {}
    assert seen == [(0, 10), (6, 12), (12, 14)]


def test_other_steps_run_the_model_as_it_is():
    model = Gpt()
    own = [dict(module.__dict__) for module in model.modules()]
    w = watch(model, every=2)
    for step in range(4):
        loss = loss_of(model, tokens())
        as_it_was = all("forward" not in module.__dict__ for module in model.modules())
        assert as_it_was == (step % 2 == 1)
        loss.backward()
        w.numbers()
        assert all("forward" not in module.__dict__ for module in model.modules())
    w.remove()
    w.remove()
    assert [dict(module.__dict__).keys() for module in model.modules()] == [x.keys() for x in own]
    assert not model._forward_pre_hooks


def test_without_a_backward_there_are_no_numbers():
    model = Gpt(layers=1)
    with watch(model, every=1) as w:
        assert w.numbers() == {} and "no forward of the model" in w.note
        loss_of(model, tokens())
        assert w.numbers() == {} and "no gradient came to the output of any layer" in w.note
        loss_of(model, tokens()).backward()
        assert w.numbers() and w.note == ""


def test_a_look_is_kept_until_it_is_asked_for(tmp_path):
    """Gradients that add up over two forwards of a step: the numbers of the first, asked once."""
    model, texts = Gpt(layers=1), (tokens(), tokens())
    found = []
    for path, asked in ((tmp_path / "twice", True), (tmp_path / "once", False)):
        with watch(model, every=2, forwards=2, log=path) as w:
            for _ in range(3):
                loss_of(model, texts[0]).backward()
                if asked:
                    w.numbers()
                loss_of(model, texts[1]).backward()
                assert all("forward" not in module.__dict__ for module in model.modules())
                w.numbers()
        found.append([(look.step, look.now) for look in logs.read(path)])
    assert found[0] == found[1] and [step for step, _ in found[0]] == [0, 2]


def test_a_forward_that_nobody_asks_about_is_forgotten():
    model = Gpt(layers=1)
    with watch(model, every=1) as w:
        loss_of(model, tokens()).backward()
        with pytest.warns(UserWarning, match="look: it is lost"):
            loss_of(model, tokens())
        assert w.numbers() == {} and w.step == 1


def test_layers_without_a_gradient_are_told():
    model = Gpt()
    for p in (*model.embed.parameters(), *model.blocks[0].parameters()):
        p.requires_grad_(False)
    with watch(model) as w:
        loss_of(model, tokens()).backward()
        numbers = w.numbers()
    assert "attention/layers.1/drift" in numbers and "attention/layers.0/drift" not in numbers
    assert w.note == "no gradient came to layers 0"


@pytest.mark.parametrize("size", [2.0**10, 2.0**-10])
def test_shares_do_not_depend_on_the_scale_of_the_loss(size):
    """Powers of two change no bit of float32 gradients, and so none of the shares."""
    looks = []
    for factor in (1.0, size):
        model = Gpt()
        with_biased_kernel(model, is_relative=True)
        with watch(model) as w:
            (loss_of(model, tokens()) * factor).backward()
            looks.append(w.numbers())
    names = [n for n in looks[0] if n.rpartition("/")[2] in ("drift", "row_sums", "bias", "gain")]
    assert looks[0]["attention/drift"] > 1e-3
    for name in names:
        assert looks[0][name] == pytest.approx(looks[1][name], rel=1e-6), name


def saved(ctx, op, *args, **kwargs):
    """A policy that keeps what attention and copies return."""
    name = str(op)
    keep = "attention" in name or "clone" in name or "choice" in name
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS = {
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "not reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "selective": lambda block, x: checkpoint(
        block,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(saved),
    ),
}


@pytest.mark.parametrize(
    ("kind", "is_pair"),
    some((kind, bool(i % 2) is p) for i, kind in enumerate(CHECKPOINTS) for p in (True, False)),
)
def test_checkpointing(kind, is_pair):
    """The same numbers and bits, also with two layers in what is repeated."""

    def model():
        made = Gpt(checkpoint=CHECKPOINTS[kind])
        if is_pair:
            made.blocks = nn.ModuleList([nn.Sequential(*made.blocks)])
        return made

    plain = Gpt()
    with watch(plain, every=1) as w:
        _, expected = train(plain, watched=w)
    unwatched, _ = train(model())
    watched = model()
    with watch(watched, every=1) as w:
        state, numbers = train(watched, watched=w)
    assert same(state, unwatched)
    assert [n.keys() for n in numbers] == [n.keys() for n in expected]
    for found, right in zip(numbers, expected, strict=True):
        assert found == pytest.approx(right, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_compiled_models_run_eagerly_on_watched_steps_and_are_compiled_once(is_in_place):
    compiled, ran = [], []

    def backend(graph, inputs):
        compiled.append(graph)

        def run(*args):
            ran.append(w.step)
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    model = Gpt(layers=1)
    if is_in_place:
        model.compile(backend=backend)
    called = model if is_in_place else torch.compile(model, backend=backend)
    with watch(called, every=2) as w:
        optimizer, looks = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in range(6):
            optimizer.zero_grad()
            loss_of(called, tokens(seed=step)).backward()
            looks.append(bool(w.numbers()))
            optimizer.step()
    graphs = len(compiled)
    assert looks == [True, False] * 3
    assert ran == [step for step in (1, 3, 5) for _ in range(graphs)] and graphs >= 1
    before = len(ran)
    loss_of(called, tokens(seed=9)).backward()
    assert len(compiled) == graphs and len(ran) > before
    torch._dynamo.reset()


def test_the_kernel_that_a_block_of_sdpa_kernel_chose_is_the_one_that_is_measured():
    """PyTorch's math kernel computes in FP32 and its row sums are all but 0; flash's are not."""
    drifts = {}
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        model = Gpt(key_heads=4)
        with watch(model) as w:
            with (
                torch.autocast("cpu", torch.bfloat16),
                sdpa_kernel([kernel]),
            ):
                loss = loss_of(model, tokens())
            loss.backward()
            drifts[kernel] = w.numbers()["attention/row_sums"]
            assert w.note == ""
    assert drifts[SDPBackend.MATH] != drifts[SDPBackend.FLASH_ATTENTION]


def test_the_mask_of_a_batch_entry_is_its_own(tmp_path):
    """Entry 1 is the second look's; a mask of another entry would move its numbers."""
    masks = torch.rand(3, 1, 20, 20, generator=torch.Generator().manual_seed(1)) < 0.7
    masks[..., 0] = True
    looks = []
    for batch, mask in ((slice(None), masks), (slice(1, 2), masks[1:2]), (slice(1, 2), masks[1])):
        model = Gpt().double()
        for block in model.blocks:
            block.attention.mask = mask
        with_biased_kernel(model)
        with watch(model, every=1, log=tmp_path / str(len(looks))) as w:
            for _ in range(2):
                (loss_of(model, tokens()[batch]) * len(tokens()[batch])).backward()
                assert w.numbers()
        looks.append(logs.read(tmp_path / str(len(looks)))[1].layers)
    for found in looks[1:]:
        for own, right in zip(found, looks[0], strict=True):
            np.testing.assert_allclose(own.numbers, right.numbers, 1e-9, 1e-13)


@pytest.mark.parametrize("stacked", [1, 1 << 22])
def test_layers_have_the_numbers_that_they_have_alone(tmp_path, monkeypatch, stacked):
    """Layers 0 and 2 are alike and may be measured together; layer 1 has a mask of its own."""
    monkeypatch.setattr(watching, "STACKED", stacked)
    mask = torch.rand(20, 20, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, 0] = True
    looks = {}
    for layers in ("*", "0", "1", "2"):
        model = Gpt(layers=3).double()
        model.blocks[1].attention.mask = mask
        with_biased_kernel(model)
        with watch(model, layers=layers, log=tmp_path / f"log{layers}") as w:
            loss_of(model, tokens()).backward()
            assert w.numbers() and w.note == ""
        looks[layers] = logs.read(tmp_path / f"log{layers}")[0].layers
    assert [own.layer.number for own in looks["*"]] == [0, 1, 2]
    for n, own in enumerate(looks["*"]):
        np.testing.assert_allclose(own.numbers, looks[str(n)][0].numbers, 1e-9, 1e-13)
    assert len({tuple(own.numbers.drift) for own in looks["*"]}) == 3


def test_chosen_heads_have_the_numbers_that_they_have_among_all(tmp_path):
    looks = {}
    for heads in (None, 2, [3, 1]):
        model = Gpt().double()
        with_biased_kernel(model)
        with watch(model, heads=heads, log=tmp_path / str(heads)) as w:
            loss_of(model, tokens()).backward()
            assert w.numbers()
        looks[str(heads)] = logs.read(tmp_path / str(heads))[0].layers[1]
    for heads, own in (("2", [0, 1]), ("[3, 1]", [3, 1])):
        assert looks[heads].heads == tuple(own)
        for found, all_of_them in zip(looks[heads].numbers, looks["None"].numbers, strict=True):
            assert found == pytest.approx([all_of_them[n] for n in own], rel=1e-12, abs=1e-14)


def test_the_alarm_is_raised_and_logged(tmp_path):
    alarms, model = [], Gpt()
    with_biased_kernel(model, size=0.1, is_relative=True)
    with watch(model, 10, threshold=0.05, log=tmp_path / "log", on_alarm=alarms.append) as w:
        _, numbers = train(model, 40, watched=w)
        assert w.alarm is not None and alarms == [w.alarm]
    assert w.alarm.step == 20 and w.alarm.share > 0.05
    assert [n["attention/alarm"] for n in numbers if n] == [0, 0, 1, 1]
    assert [look.alarm for look in logs.read(tmp_path / "log")] == [None, None, w.alarm, None]


def test_a_look_that_nobody_asks_for_is_told_once(tmp_path):
    """An empty log without a word: `numbers` was not called after the backward."""
    model = Gpt()
    w = watch(model, 1, log=tmp_path / "log")
    loss_of(model, tokens()).backward()
    with pytest.warns(UserWarning, match="numbers.. was not called after the backward of step 0"):
        loss_of(model, tokens()).backward()
    loss_of(model, tokens()).backward()  # a second warning would be an error
    assert w.numbers()["attention/not_finite"] == 0.0
    w.remove()
    assert [look.step for look in logs.read(tmp_path / "log")] == [2]


def test_the_last_look_is_told_too(tmp_path):
    """A watch of one step that ends without a look."""
    model = Gpt()
    with pytest.warns(UserWarning, match="after the backward of step 0"), watch(model):
        loss_of(model, tokens()).backward()


def test_a_gradient_that_is_not_finite_is_counted_and_logged(tmp_path):
    """A step of NaN that has no part in the numbers, and is in none of them."""
    model = Gpt()
    with watch(model, 1, log=tmp_path / "log") as w:
        (loss_of(model, tokens()) * math.inf).backward()
        numbers = w.numbers()
    (look,) = logs.read(tmp_path / "log")
    assert next(iter(numbers)) == "attention/not_finite" and numbers["attention/not_finite"] > 0
    assert len(look.lost) == numbers["attention/not_finite"] and math.isnan(look.now)


def test_after_correct_the_drift_is_that_of_the_last_look(tmp_path):
    """The cure, end to end: the alarm begins, is over, and the drift is 0."""
    model = Gpt().double()
    with_biased_kernel(model, size=0.1, is_relative=True)
    with watch(
        model, 1, threshold=0.05, log=tmp_path / "log", on_alarm=lambda alarm: correct(model)
    ) as w:
        _, numbers = train(model, 6, watched=w)
    assert [n["attention/alarm"] for n in numbers] == [0, 0, 1, 0, 0, 0]
    assert numbers[-1]["attention/drift"] < 1e-12 < 0.05 < numbers[-1]["attention/drift_history"]
    assert logs.over_since(logs.read(tmp_path / "log")) == 3


def test_dropout_leaves_the_gain_out():
    model = Gpt(dropout=0.5)
    with watch(model) as w:
        loss_of(model, tokens()).backward()
        numbers = w.numbers()
    assert math.isnan(numbers["attention/gain"]) and numbers["attention/drift"] < 1e-4


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_models_of_transformers(name):
    """A Llama with grouped queries and a padded batch: its masks have the whole batch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=16, attn_implementation=name,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    batch = tokens()
    padding = torch.ones_like(batch)
    padding[1, :5] = 0
    with watch(model, every=1) as w:
        for _ in range(2):
            model(batch, attention_mask=padding, labels=batch).loss.backward()
            numbers = w.numbers()
            assert w.note == ""
    assert numbers["attention/drift"] < 1e-4 and abs(numbers["attention/gain"]) < 1e-5
    assert numbers["attention/row_sums"] < 1e-5


@pytest.mark.parametrize(("field", "value"), [("softcap", 30.0), ("sinks", torch.ones(4))])
def test_calls_whose_row_sums_are_not_0_are_refused(field, value):
    from dataclasses import replace

    model = Gpt(layers=1)
    with watch(model) as w:
        kept = w._handler
        w._handler = lambda call: kept(replace(call, **{field: value}))
        with pytest.raises(ValueError, match=rf"layer 0 \(blocks.0.attention\): has {field}"):
            loss_of(model, tokens())


def test_a_model_in_eval_mode_is_told_once():
    """Only before the first step: a validation with gradients between steps is no mistake."""
    model = Gpt(layers=1).eval()
    with watch(model, every=1) as w, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with torch.no_grad():
            loss_of(model, tokens())
        assert not told
        for _ in range(2):
            loss_of(model, tokens()).backward()
        (one,) = told
        assert "eval mode" in str(one.message) and "model.train()" in str(one.message)
        assert one.filename.endswith("biased.py") and w.numbers() == {}
        loss_of(model.train(), tokens()).backward()
        assert w.numbers()
    model.eval()
    with watch(model, every=1) as w, warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(model.train(), tokens())
        loss_of(model.eval(), tokens())


@pytest.mark.parametrize("function", [watch, correct])
def test_a_softcap_of_transformers_is_refused_at_once(function):
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma2Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config)
    with pytest.raises(ValueError, match=r"layer 0 \(model\.layers\.0\.self_attn\): has softcap"):
        function(model)


@pytest.mark.parametrize("function", [watch, correct])
def test_sinks_of_transformers_are_refused_at_once(function):
    model = tiny("gpt_oss", "eager")
    with pytest.raises(ValueError, match=r"layer 1 \(model\.layers\.1\.self_attn\): has sinks"):
        function(model, layers=1)


@pytest.mark.parametrize(("options", "error", "message"), [
    ({"every": 0}, ValueError, "every=0: must be 1 or more"),
    ({"every": 1.5}, TypeError, "every=1.5: give a whole number"),
    ({"every": True}, TypeError, "every=True: give a whole number"),
    ({"forwards": 0}, ValueError, "forwards=0: must be 1 or more"),
    ({"start": -1}, ValueError, "start=-1: must be 0 or more"),
    ({"heads": 0}, ValueError, "heads=0: how many"),
    ({"heads": [1, 1]}, ValueError, r"heads=\[1, 1\]: how many"),
    ({"heads": "all"}, ValueError, "heads='all': how many"),
    ({"layers": "layers.7"}, ValueError, "layers='layers.7'"),
    ({"threshold": -1.0}, ValueError, "threshold=-1.0: a share"),
])  # fmt: skip
def test_wrong_arguments(options, error, message):
    with pytest.raises(error, match=message):
        watch(Gpt(layers=1), **options)


def test_a_head_that_there_is_not():
    model = Gpt(layers=1)
    with watch(model, heads=[4]) as w:
        loss_of(model, tokens()).backward()
        with pytest.raises(ValueError, match=r"heads=\[4\]: the model has 4, 0 to 3"):
            w.numbers()


def test_a_model_that_is_itself_attention():
    with pytest.raises(ValueError, match="is itself the module that calls attention"):
        watch(Gpt().blocks[0].attention)


def test_another_kernel_for_the_wider_heads_is_told(monkeypatch):
    """As on a GPU, where a kernel may end at 128 features."""
    from roundscope.attention.torch import watching as module

    monkeypatch.setattr(module, "kernel_chosen", lambda call, q, k, v: f"K{q.shape[-1]}")
    model = Gpt(layers=1)
    with watch(model) as w:
        loss_of(model, tokens()).backward()
        w.numbers()
    assert w.note == (
        "layer 0: SDPA takes K8 for 8 features and K16 for 16, whose row sums these are"
    )


def test_other_interceptions_stay():
    """A handler that was there before still answers, and what it does is what is measured."""
    model, calls = Gpt(layers=1), []

    def told(call):
        calls.append(call.q.shape[-1])
        return call.run(call.q, call.k, call.v)

    with intercept(model, told), watch(model, every=2) as w:
        train(model, 2, watched=w)
    assert calls == [8, 16, 8]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, 1)
