"""The tape of a model's run: no bit of the model changes, and the tape gives every bit again."""

import pytest
import torch

pytest.importorskip("transformers")

from roundscope.operations.models.replay import ReplayError, check_replays
from roundscope.operations.models.tape import UNKNOWN
from roundscope.operations.models.torch.recording import Side, record
from tests.attention.torch.models import gpt, pretrained
from tests.operations.models.small import llama, tokens


def bits(x):
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2", "plain"])
def test_no_bit_changes_and_the_tape_replays(kind):
    model = gpt() if kind == "plain" else pretrained(kind)
    model, given = model.eval(), tokens(2, 12) % 61
    with torch.no_grad():
        out = model(given)
        expected = getattr(out, "logits", out)
    tape = record(Side(model, given))
    assert torch.equal(bits(tape.values[tape.logits].array), bits(expected))
    check_replays(tape)
    with torch.no_grad():  # what was put into the model is gone
        out = model(given)
    assert torch.equal(bits(getattr(out, "logits", out)), bits(expected))
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_operations_of_a_llama_in_their_order():
    tape = record(Side(llama(layers=1), tokens(1, 8)))
    layer = """rms_norm linear linear linear rope attention linear add rms_norm linear silu linear
        mul linear add"""
    names = [entry.operation for entry in tape.counted]
    assert names == ["embedding", "rope_table", *layer.split(), "rms_norm", "linear"]
    assert tape.counted[2].module == "model.layers.0.input_layernorm"
    assert tape.counted[-1].module == "lm_head"


def test_what_nobody_claims_is_unknown():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.erf(x) + x

    tape = record(Side(Odd(), {"x": torch.randn(3, 4)}))
    assert [(e.operation, e.function) for e in tape.counted] == [
        (UNKNOWN, "torch.erf"),
        ("add", "torch.Tensor.add"),
    ]


def test_writes_in_place_are_values_of_their_own():
    class InPlace(torch.nn.Module):
        def forward(self, x):
            y = x * 2
            z = y * 3
            y += 1
            y[0] = 5
            return y * z

    tape = record(Side(InPlace(), {"x": torch.randn(3, 4)}))
    check_replays(tape)
    assert [e.operation for e in tape.counted] == ["mul", "mul", "add", "mul"]


def test_a_run_that_is_not_deterministic_is_named():
    class Noisy(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x * 2, 0.5)

    tape = record(Side(Noisy(), {"x": torch.ones(64)}))
    with pytest.raises(ReplayError, match="dropout"):
        check_replays(tape)
