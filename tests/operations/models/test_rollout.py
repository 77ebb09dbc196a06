"""A trainer, which reads a sequence at once, against a rollout, which generates it by token."""

import copy

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from roundscope.operations.models.comparing.align import Incomparable
from roundscope.operations.models.torch.side import Side
from roundscope.torch import capture, compare, decoded
from tests.operations.models import small

PROMPT, NEW = 6, 5
MASKED = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6, [0] + [1] * 5])  # left-padded prompts


@pytest.fixture(scope="module")
def rollout(tmp_path_factory):
    """A file of `generate()` of three padded prompts, the sequences, and generate's own logits."""
    path = tmp_path_factory.mktemp("rollout") / "rollout.safetensors"
    prompts = small.tokens(3, PROMPT).masked_fill(MASKED == 0, 0)
    model = small.llama()
    with torch.no_grad(), capture(model, path, what="operations"):
        out = model.generate(
            prompts,
            attention_mask=MASKED,
            max_new_tokens=NEW,
            do_sample=True,
            pad_token_id=0,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return path, out.sequences, torch.stack(out.logits, 1)


def logprobs(logits, tokens):
    return torch.log_softmax(logits.double(), -1).gather(-1, tokens[..., None])[..., 0]


@pytest.mark.parametrize(
    "row", [0, *(pytest.param(row, marks=pytest.mark.thorough) for row in (1, 2))]
)
def test_the_trainer_against_generate(rollout, row):
    """The gap is that of the logits of `generate()`, which keeps those of new tokens only."""
    path, sequences, logits = rollout
    trainer = small.with_late_cast(small.llama())
    own = sequences[row : row + 1, int((MASKED[row] == 0).sum()) :]
    found = compare((trainer, own), path)
    with torch.no_grad():
        theirs = trainer(own).logits[0, -NEW - 1 : -1]
    new = own[0, -NEW:]
    gap = logprobs(logits[row], new) - logprobs(theirs, new)
    np.testing.assert_allclose(found.gap, gap.numpy(), rtol=0, atol=1e-12)
    assert found.groups[0].name == "rms_norm" and abs(found.left) < 1e-12
    assert {r.operation for r in found.rows if r.made == "here"} <= {
        "rms_norm", "attention", "linear",
    }  # fmt: skip


def test_files_say_what_live_runs_say(tmp_path):
    ids = small.tokens(1, 8)
    trainer, server = small.llama(), small.with_split_k(small.llama())
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    told = []
    with torch.no_grad(), capture(trainer, a, what="operations"):
        trainer(ids)
    with torch.no_grad(), capture(server, b, what="operations", tell=told.append):
        decoded(4)(server, ids)
    assert "of 5 forward passes" in told[-1]
    live = compare((trainer, ids), Side(server, ids, decoded(4)))
    files = compare(a, b)
    assert np.array_equal(live.gap, files.gap) and live.gap.any()
    assert [g.name for g in live.groups] == [g.name for g in files.groups]
    assert [g.share for g in files.groups] == pytest.approx([g.share for g in live.groups])
    with torch.no_grad():
        x, y = trainer(ids).logits[0, :-1], decoded(4)(server, ids)[0, :-1]
    gap = logprobs(y, ids[0, 1:]) - logprobs(x, ids[0, 1:])
    np.testing.assert_allclose(live.gap, gap.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["qwen3_moe", pytest.param("gpt_oss", marks=pytest.mark.thorough)])
def test_experts_that_sort_tokens_are_compared_as_one(kind):
    """Between router and sum their rows are in another order in every pass."""
    model = small.tiny(kind, "eager")
    ids = small.tokens(1, 8) % small.FEW_TOKENS
    found = compare((model, ids), Side(model, ids, decoded(4)))
    assert abs(found.left) < 1e-9 and found.gap.size == 7
    assert not any(row.made == "undecided" for row in found.rows)


def test_left_padding_of_one_side():
    ids = small.tokens(1, 8)
    padded = torch.nn.functional.pad(ids, (3, 0))
    mask = (torch.arange(11) >= 3).long()[None]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    given = {"input_ids": padded, "attention_mask": mask, "position_ids": positions}
    model = small.llama()
    found = compare((model, ids), Side(model, given))
    with torch.no_grad():
        x, y = model(ids).logits[0, :-1], model(**given).logits[0, 3:-1]
    gap = logprobs(y, ids[0, 1:]) - logprobs(x, ids[0, 1:])
    np.testing.assert_allclose(found.gap, gap.numpy(), rtol=0, atol=1e-12)
    assert {r.operation for r in found.rows if r.made == "here"} <= {"attention", "linear"}


def test_what_is_no_padding_is_other_tokens():
    ids = small.tokens(1, 8)
    with pytest.raises(Incomparable, match=r"\(1, 6\) and \(1, 8\)"):
        compare((small.llama(), ids[:, 2:]), (small.llama(), ids))


def test_batches_of_several_sizes_are_no_run(tmp_path):
    model, path = small.llama(layers=1), tmp_path / "a.safetensors"

    def captured():
        with torch.no_grad(), capture(model, path, what="operations"):
            model(small.tokens(1, 4))
            model(small.tokens(2, 4))

    with pytest.raises(ValueError, match=r"batches of 1 and 2 rows.*num_beams=1"):
        captured()
    assert not path.exists()


def test_a_copy_of_the_model_is_not_on_the_tape(tmp_path):
    """Neither while it runs beside the model, nor afterwards."""
    ids, model, told = small.tokens(1, 8), small.llama(layers=1), []
    other = small.tokens(1, 5)
    with torch.no_grad():
        path = tmp_path / "a.safetensors"
        with capture(model, path, what="operations", tell=told.append) as recorder:
            copied = copy.deepcopy(model)
            copied(other)
            model(ids)
            copied(other)
        count = len(recorder.entries)
        copied(other)
    assert len(recorder.entries) == count and "19 operations," in told[0]
    assert compare((copied, ids), path).equal and compare((model, ids), path).equal
    copied.model.norm.weight.data += 1  # it is another model
    assert compare((model, ids), path).equal


def test_dropout_of_functions_is_refused_before_it_runs(tmp_path):
    class Dropping(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x * 2, 0.3, self.training)

    model, x, path = Dropping(), torch.ones(4), tmp_path / "a.safetensors"
    text = r"'dropout in the model' is active \(p = 0.3\).*model\.eval\(\)"
    with (
        pytest.raises(ValueError, match=f"^its dropout {text}"),
        capture(model, path, what="operations"),
    ):
        model(x)
    with pytest.raises(ValueError, match=f"^a: its dropout {text}"):
        compare((model, {"x": x}), (model, {"x": x}))
    model.eval()
    assert compare((model, {"x": x}), (model, {"x": x})).equal


def test_missing_layers_are_named():
    ids = small.tokens(1, 8)
    with pytest.raises(Incomparable, match=r"A has no model\.layers\.1; compare models of as many"):
        compare((small.llama(layers=1), ids), (small.llama(layers=2), ids))
    with pytest.raises(Incomparable, match=r"B has no model\.layers\.1, model\.layers\.2;"):
        compare((small.llama(layers=3), ids), (small.llama(layers=1), ids))


def test_tables_for_all_tokens_so_far_are_told():
    """BLOOM's ALiBi, of one pass against decoding; decoding on both sides is compared."""
    from transformers import BloomConfig, BloomForCausalLM

    model = BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)).eval()
    ids = small.tokens(1, 6) % 64
    server = Side(model, ids, run=decoded(prompt=4))
    with pytest.raises(Incomparable, match=r"ALiBi.*run=decoded\(prompt=4\) on both"):
        compare((model, ids), server)
    assert compare(server, server).equal
