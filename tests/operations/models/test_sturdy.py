"""Models that write in place, share memory or weights, run under autocast, or return anything."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("transformers")

from roundscope.operations.models.tape_file import load_tape
from roundscope.operations.models.torch.comparing.reviving import revived, words_of
from roundscope.operations.models.torch.memory import shared_places
from roundscope.torch import Side, capture, compare
from tests.attention.torch.models import gpt
from tests.operations.models import small

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
IDS = small.tokens(1, 8)


class Views(nn.Module):
    def forward(self, x):
        y = x * 2
        z, t = y.view(-1), y.t()
        y.add_(1)
        z.mul_(3)
        z[0] = 7
        row = y[1]
        row += 1
        F.relu(y, inplace=True)
        return y * 1.5 + z.view_as(y) * t.t()


class Buffer(nn.Module):
    """As a static cache is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 3, 8))

    def forward(self, x):
        self.kept[1].copy_(x * 2)
        self.kept[2:3] = x
        return self.kept.sum(0) * 3


class Out(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        torch.mul(x, 2, out=y)
        return y + 1


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(256, 8), nn.Linear(8, 256, bias=False)
        self.head.weight = self.table.weight

    def forward(self, input_ids):
        return self.head(self.table(input_ids))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(8, 8)
        self.two = self.one

    def forward(self, x):
        return {"deep": [None, (self.two(torch.tanh(self.one(x))),)], "x": x}


def captured(model, path, inputs):
    with capture(model, path, what="operations"):
        model(**inputs)
    return path


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("kind", [Views, Buffer, Out, Shared, Tied])
def test_a_model_equals_itself_live_and_from_a_file(kind, mode, tmp_path):
    """Every bit of every result replays, and the model computes what it does without a record."""
    inputs = {"input_ids": IDS} if kind is Tied else {"x": X}
    model, path = kind(), tmp_path / "a.safetensors"
    with mode():
        plain = kind()(**inputs)
        captured(model, path, inputs)
    found = compare(path, (kind(), inputs))
    assert found.equal and found.rows and compare((kind(), inputs), path).equal
    if kind is not Shared:
        assert torch.equal(plain, kind()(**inputs))


def test_memory_that_views_share():
    x = torch.arange(24.0).reshape(4, 6)
    for y in (x[1:3, ::2], x.t(), x[:, 1], x.view(-1)[5:9]):
        in_x, in_y = shared_places(x, y)
        assert torch.equal(x.reshape(-1)[in_x], y.reshape(-1)[in_y]) and len(in_x) == y.numel()
    assert shared_places(x[:2], x[2:]) == ([], [])


def test_a_write_into_a_view_is_found(tmp_path):
    class Late(Views):
        def forward(self, x):
            y = x * 2
            z = y.t()
            y += 1e-3
            return z * 3

    class Early(Views):
        def forward(self, x):
            y = x * 2
            z = y.t() + 0
            y += 1e-3
            return z * 3

    found = compare((Late(), {"x": X}), (Early(), {"x": X}))
    assert not found.equal and found.gap.any()


def test_autocast(tmp_path):
    """A run repeats under it, and so does a file."""
    model, path = small.llama(layers=1, dtype=torch.float32), tmp_path / "a.safetensors"

    def run(model, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return model(tokens).logits

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        captured(model, path, {"input_ids": IDS})
    assert compare(path, Side(model, IDS, run)).equal
    tape = revived(load_tape(path))
    number = next(e.number for e in tape.counted if e.operation == "linear")
    assert words_of(tape, number) == "torch's linear, in bfloat16 by autocast"


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_and_a_backward_pass(reentrant, tmp_path):
    """Operations that checkpointing computes again in the backward pass are not recorded twice."""
    ids, path = IDS % 61, tmp_path / "a.safetensors"
    model = gpt(layers=1, checkpointing=reentrant)
    with capture(model, path, what="operations"):
        model(ids).square().sum().backward()
    assert compare(path, (gpt(layers=1), ids)).equal


def test_a_function_that_is_compiled_by_itself_is_refused():
    class Compiled(nn.Module):
        def __init__(self):
            super().__init__()
            self.double = torch.compile(lambda x: x * 2, backend="eager")

        def forward(self, x):
            return self.double(x)

    model = nn.Sequential(Compiled())
    text = r"^a: model: the function '0\.double' is compiled by itself.*torch\.compile\(module\)$"
    with pytest.raises(ValueError, match=text):
        compare((model, {"input": X}), (model, {"input": X}))


def test_numbers_that_are_not_finite_come_first():
    def with_infinity(model):
        model.model.norm.register_forward_pre_hook(lambda m, x: (x[0] * float("inf"),))
        return model

    found = compare((small.llama(), IDS), (with_infinity(small.llama()), IDS))
    assert found.sentence.startswith("7 of 7 log-probabilities are infinite or NaN in one run, fir")
    assert any(
        note.startswith("infinite or NaN: 0 numbers in A and 7 in B") for note in found.notes
    )
    broken = with_infinity(small.llama())
    assert compare((broken, IDS), (broken, IDS)).equal
