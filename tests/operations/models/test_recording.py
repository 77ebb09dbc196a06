"""The tape of a model's run: no bit of the model changes, and the tape gives every bit again."""

import pytest
import torch

pytest.importorskip("transformers")

from roundscope.operations.models.replay import ReplayError, check_replays
from roundscope.operations.models.tape import UNKNOWN
from roundscope.operations.models.torch.recording.capture import capture_operations
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from tests.attention.torch.models import gpt, pretrained
from tests.operations.models.small import llama, tokens

ZEROS = torch.zeros(1, 7)


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


@pytest.mark.parametrize(
    ("inputs", "given", "text"),
    [
        (tokens(1, 8).float(), {}, r"A: inputs float32 \(1, 8\): tokens must be whole .* x.long"),
        (tokens(1, 8)[0], {}, r"A: inputs int64 \(8,\): .* \(B, T\); give x\[None\]"),
        ({"input_ids": tokens(1, 8).float()}, {}, r"A: inputs\['input_ids'\] float32"),
        (
            tokens(1, 8) + 256,
            {},
            r"A: token 51\d has no row in model\.embed_tokens, .* \(0 to 255\)",
        ),
        (tokens(1, 8) - 256, {}, r"A: token -\d+ has no row .* attention_mask="),
        (tokens(1, 8), {"run": lambda m, x: 1 / 0}, "A: run= raised ZeroDivisionError"),
        (
            tokens(1, 8),
            {"run": lambda m, x: 7},
            r"A: run= returned 7, must return logits \(1, 8, v",
        ),
        (
            tokens(1, 8),
            {"run": lambda m, x: m(x).logits[:, -1]},
            r"A: run= returned bfloat16 \(1, 256\), must return logits \(1, 8, vocabulary\)",
        ),
        (
            tokens(1, 8),
            {"logprobs": lambda x, ids: "no"},
            r"A: logprobs= returned 'no', must return a tensor \(1, 7\)",
        ),
        (
            tokens(1, 8),
            {"logprobs": lambda x, ids: x.log_softmax(-1)},
            r"A: logprobs= returned bfloat16 \(1, 8, 256\), must return a tensor \(1, 7\)",
        ),
        (tokens(1, 8), {"logprobs": lambda x, ids: x.no}, "A: logprobs= raised AttributeError"),
        (
            tokens(1, 8),
            {"logprobs": lambda x, ids: ZEROS},
            "A: the log-probabilities: no function of PyTorch that was seen has made it",
        ),
    ],
)
def test_what_a_user_gives_is_refused_by_its_argument(inputs, given, text):
    with pytest.raises(ValueError, match=text):
        record(Side(llama(layers=1), inputs, **given), "A")


def test_a_run_that_is_not_deterministic_is_named():
    class Noisy(torch.nn.Module):
        def forward(self, x):
            return x * 2 + torch.rand_like(x)

    tape = record(Side(Noisy(), {"x": torch.ones(64)}))
    with pytest.raises(ReplayError, match=r"^B: .*rand_like.*model\.eval\(\)"):
        check_replays(tape, "B")


def test_active_dropout_is_refused_before_the_run(tmp_path):
    model, path = pretrained("gpt2").train(), tmp_path / "a.safetensors"
    model.transformer.drop.p = 0.1
    text = r"its dropout 'transformer\.drop' is active .* model\.eval\(\)"
    with (
        pytest.raises(ValueError, match=text),
        capture_operations(model, path),
    ):
        pytest.fail("it has begun")
    with pytest.raises(ValueError, match=f"A: model: {text}"):
        record(Side(model, tokens(1, 8) % 61), "A")
    assert not path.exists()


def test_a_write_in_place_by_keyword_is_one():
    """`torch.relu_(input=x)`, whose target is no positional argument."""

    class Named(torch.nn.Module):
        def forward(self, x):
            y = x * 2.0
            torch.relu_(input=y)
            return y

    x = torch.randn(3, 4)
    tape = record(Side(Named(), {"x": x}))
    assert [e.function for e in tape.entries][-1] == "torch.nn.functional.relu_"
    assert torch.equal(tape.values[tape.entries[-1].outputs[0]].array, (x * 2.0).relu())
    check_replays(tape)
