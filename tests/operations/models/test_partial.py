"""A trainer against what an engine kept of its run: a simulated one, whose arithmetic is known."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers")

from roundscope.experiments.cli.main import main
from roundscope.operations.models.comparing.align import Incomparable
from roundscope.operations.models.comparing.named import targets
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from roundscope.torch import capture, compare
from tests.operations.models import small
from tests.operations.models.engine import Engine, dumped

COUNT, PROMPT = 10, 6
IDS = small.tokens(1, COUNT)
OTHER = small.tokens(1, 40)[0, 30:]
NORM = {"model.norm": torch.zeros(COUNT, 64)}


def logprobs(logits, tokens):
    table = torch.log_softmax(logits.double(), -1)
    return table.gather(-1, tokens[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """A folder of a dump, which has two other sequences too, and the engine's own logits."""
    folder = tmp_path_factory.mktemp("dump") / "TP0_PP0_Rank0_pid7"
    folder.mkdir()
    engine = Engine(small.llama())
    dumped(engine, folder)
    engine.passes(OTHER[:3], 3)
    logits = torch.cat(engine.passes(IDS[0], PROMPT))
    engine.passes(OTHER, 9)
    return folder.parent, logits


def test_the_engine_is_told_by_its_dump(dump):
    """Its norms, and that it attends a token at a time: with these the trainer gives its bits."""
    folder, logits = dump
    found = compare((small.llama(), IDS), folder)
    assert len(found.rows) == 27 and found.first.title.endswith("layers.0.input_layernorm")
    late, early = "cast after the weight", "cast before the weight"
    told = {(g.name, g.a, g.b) for g in found.groups}
    fused = f"of the sum with the residual in FP32, before that is rounded; {late}"
    assert {("rms_norm", early, late), ("rms_norm", early, fused)} <= told
    assert {name for name, *_ in told} <= {"rms_norm", "attention"}
    assert any("gives 27 of 27 results of B, every bit" in note for note in found.notes)
    with torch.no_grad():
        own = small.llama()(IDS).logits[0]
    new = IDS[0, PROMPT:]
    gap = logprobs(logits[:-1], new) - logprobs(own[PROMPT - 1 : -1], new)
    np.testing.assert_allclose(found.gap, gap, rtol=0, atol=1e-12)
    assert abs(found.left) < 1e-12 and sum(g.share for g in found.groups) == pytest.approx(1)
    here = {row.title for row in found.rows if row.made == "here" and row.operation == "rms_norm"}
    assert len(here) == 5  # every norm, and nothing else but attention


def test_a_file_of_the_trainer_against_the_dump(dump, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = small.llama()
    with torch.no_grad(), capture(model, "a.safetensors", what="operations"):
        model(IDS)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "a.safetensors", str(dump[0]), "--out", "out"])
    told = capsys.readouterr().out
    assert ended.value.code == 1 and "of the 27 results that B kept differ" in told
    assert (tmp_path / "out" / "report.html").exists()
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(dump[0]), "a.safetensors"])
    assert ended.value.code == 2


def kept_of(model, names):
    """Return results of modules of the trainer, by hooks, as (tokens, features)."""
    found, hooks = {"token_ids": IDS[0]}, []
    for name, module in model.named_modules():
        if name in names:
            hooks.append(
                module.register_forward_hook(
                    lambda m, x, out, name=name: found.update({name: out[0].detach().clone()})
                )
            )
    with torch.no_grad():
        logits = model(IDS).logits[0]
    for hook in hooks:
        hook.remove()
    found["logprobs"] = logprobs(logits[:-1], IDS[0, 1:])
    return found


SOME = [
    "model.embed_tokens",
    "model.layers.0.post_attention_layernorm",
    "model.layers.0.mlp.down_proj",
    "model.layers.1.self_attn.q_proj",
    "model.norm",
]


def test_the_model_itself_is_equal(tmp_path):
    own = kept_of(small.llama(), SOME)
    found = compare((small.llama(), IDS), own)
    assert "5 results that B kept are equal" in found.sentence
    assert found.largest < 1e-14  # of log-probabilities in binary64 by another library
    del own["logprobs"]
    assert compare((small.llama(), IDS), own).equal
    tensors = {name: torch.as_tensor(x) for name, x in own.items()}
    save_file(tensors, tmp_path / "b.safetensors")
    torch.save(tensors, tmp_path / "b.pt")
    for name in ("b.safetensors", "b.pt"):
        found = compare((small.llama(), IDS), tmp_path / name)
        assert "5 results that B kept" in found.sentence and found.equal


def test_few_results_tell_of_what_is_between_them():
    """Three linear layers are between those that were kept, of which one is summed otherwise."""
    own = kept_of(small.with_split_k(small.llama()), SOME)
    found = compare((small.llama(), IDS), own)
    made = {row.title.split()[-1]: row.made for row in found.rows}
    assert made["model.embed_tokens"] == "equal" and made["model.layers.0.mlp.down_proj"] == "here"
    assert made["model.layers.1.self_attn.q_proj"] == "inherited"
    (group,) = found.groups
    assert group.b == "K in 2 parts, each sum rounded" and abs(found.left) < 1e-12


def test_arithmetic_that_is_not_known_is_not_attributed():
    def odd(model):
        for layer in model.model.layers[:1]:
            layer.mlp.act_fn.register_forward_hook(lambda m, x, out: out * 1.01)
        return model

    own = kept_of(odd(small.llama()), SOME)
    found = compare((small.llama(), IDS), own)
    assert not found.groups and found.left == 1.0
    assert found.sentence.endswith("Made by 1 by arithmetic that is not known.")
    assert any(
        note.startswith("not attributed: model.layers.0.mlp.down_proj") for note in found.notes
    )
    made = {row.title.split()[-1]: row.made for row in found.rows}
    assert made["model.layers.1.self_attn.q_proj"] == "inherited" == made["model.norm"]


def test_log_probabilities_alone():
    own = kept_of(small.with_late_cast(small.llama()), ["model.embed_tokens"])
    found = compare((small.llama(), IDS), own)
    assert "its log-probabilities differ" in found.sentence and not found.equal
    assert found.gap.size == COUNT - 1


def test_hidden_states_by_what_a_layer_reads():
    """As they are kept of layers: the residual stream before each."""
    tape = record(Side(small.llama(), IDS))
    (value,) = targets(tape, "model.layers.1 input")[0]
    with torch.no_grad():
        states = small.llama()(IDS, output_hidden_states=True).hidden_states
    assert torch.equal(tape.values[value].array, states[1])
    given = {f"model.layers.{k} input": states[k][0] for k in range(2)} | {"token_ids": IDS[0]}
    assert compare((small.llama(), IDS), given).equal


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            NORM | {"token_ids": IDS[0] + 1},
            "first differ at token 0",
        ),
        ({"token_ids": IDS[0, :4], "model.norm": torch.zeros(4, 64)}, r"read 10 \(4 tokens\)"),
        ({"norm": torch.zeros(COUNT, 64)}, r"no result of a module of A.*\(norm\); give paths of"),
        ({"model.norm": torch.zeros(COUNT, 63)}, r"model\.norm \(10, 63\)"),
        ({}, r"\(it is empty\)"),
        ({"model.norm": "x"}, "'model.norm': 'x', must be a tensor"),
        (
            {"hidden_states": torch.zeros(COUNT, 2, 64), "token_ids": IDS[0]},
            "give a dictionary, as",
        ),
        (NORM | {"logprobs": torch.zeros(99)}, "99 numbers for 10"),
    ],
)
def test_what_cannot_be_matched_is_refused(given, text):
    with pytest.raises(ValueError, match=text):
        compare((small.llama(layers=1), IDS), given)


def test_other_sequences_and_other_sides_are_refused(dump):
    with pytest.raises(Incomparable, match="none of the 3 sequences"):
        compare((small.llama(layers=1), small.tokens(1, 12)), dump[0])
    with pytest.raises(Incomparable, match=r"A has 2 sequences.*run A on tokens"):
        compare(
            (small.llama(layers=1), small.tokens(2, COUNT)), {"model.norm": torch.zeros(COUNT, 64)}
        )
    with pytest.raises(ValueError, match=r"a: .*cannot run again; give them as b"):
        compare(NORM, (small.llama(layers=1), IDS))
