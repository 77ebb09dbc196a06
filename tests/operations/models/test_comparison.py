"""Comparing two runs of a tiny Llama: the operation that makes them differ, and nothing else."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from roundscope.operations.models.comparing.align import Incomparable
from roundscope.operations.models.comparing.tapes import compare_tapes
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from roundscope.torch import capture, compare
from tests.attention.torch.models import pretrained
from tests.operations.models import small

IDS = small.tokens()


def compared(a, b):
    return compare_tapes(record(a), record(b))


def made_here(found):
    return {row.operation for row in found.rows if row.made == "here"}


def test_equal_runs_are_equal():
    found = compared(Side(small.llama(), IDS), Side(small.llama(), IDS))
    assert found.equal and found.first is None and not found.groups and not found.gap.any()
    assert (
        found.sentence == "The two runs are equal: 34 operations, 63 log-probabilities, every bit."
    )


PAIRS = {
    "rms_norm": small.with_late_cast,
    "rope_table": small.with_bf16_table,
    "add": small.with_fp32_residual,
    "linear": small.with_split_k,
}


def with_eps(model):
    for norm in small.norms(model):
        norm.variance_epsilon = 1e-3
    return model


def with_base(model, base=1e6):
    model.model.rotary_emb.inv_freq = base ** (-torch.arange(8) / 8)
    return model


def with_scale(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.2525
    return model


CONSTANTS = {
    "rms_norm": (with_eps, "eps 1e-06", "eps 0.001"),
    "rope_table": (with_base, "base 10000", "base 1000000"),
    "attention": (with_scale, "scale 0.25", "scale 0.2525"),
}


@pytest.mark.parametrize("operation", CONSTANTS)
def test_constants_that_differ_are_told(operation):
    change, *words = CONSTANTS[operation]
    own = with_base(small.llama(), 1e4)  # in FP32; as the model has them they are in BF16
    (group,) = compare((own, IDS), (change(with_base(small.llama(), 1e4)), IDS)).groups
    assert group.name == operation and [group.a, group.b] == words


def test_a_linear_layer_in_fp32_is_called_torchs():
    """Four plans of FP32 that tie, in place of the function that ran."""
    other = small.llama(layers=1)
    w = other.lm_head.weight
    other.lm_head.forward = lambda x: torch.nn.functional.linear(x.float(), w.float())
    linear, _ = sorted(
        compare((small.llama(layers=1), IDS), (other, IDS)).groups, key=lambda g: g.name == "end"
    )
    assert (linear.a, linear.b) == ("torch's linear in bfloat16", "torch's linear in float32")


def test_linear_layers_are_told_by_their_paths_and_the_end_by_its_types():
    """Of two kinds of layers both; of one layer among its like the whole path."""
    other = small.llama()
    for layer in (*(x.mlp.down_proj for x in other.model.layers), other.lm_head):
        to = torch.float32 if layer is other.lm_head else small.BF16
        layer.forward = lambda x, w=layer.weight, to=to: (x.float() @ w.float().T).to(to)
    linear, end = sorted(
        compare((small.llama(), IDS), (other, IDS)).groups, key=lambda group: group.name == "end"
    )
    assert linear.name == "linear down_proj and lm_head"
    assert str(end).startswith("the end, behind the last operation (A: in binary64 (the default)")
    assert end.a.endswith("of logits in bfloat16") and end.b.endswith("of logits in float32")
    changed = small.llama()
    down = changed.model.layers[1].mlp.down_proj
    down.forward = lambda x, w=down.weight: x[..., ::2] @ w[:, ::2].T + x[..., 1::2] @ w[:, 1::2].T
    (group,) = compare((small.llama(), IDS), (changed, IDS)).groups
    assert group.name == "linear model.layers.1.mlp.down_proj"


@pytest.mark.parametrize("operation", PAIRS)
def test_one_culprit_is_named_alone(operation):
    a, b = small.llama(), PAIRS[operation](small.llama())
    found = compared(Side(a, IDS), Side(b, IDS))
    assert made_here(found) == {operation}
    assert found.first.operation == operation
    (group,) = found.groups
    assert group.share == pytest.approx(1, abs=1e-12) and abs(found.left) < 1e-12
    with torch.no_grad():  # the gap, from the models alone
        x, y = (torch.log_softmax(m(IDS).logits.double(), -1)[0, :-1] for m in (a, b))
    gap = (y - x).gather(-1, IDS[0, 1:, None])[:, 0].numpy()
    np.testing.assert_allclose(found.gap, gap, rtol=0, atol=1e-12)
    kl = (x.exp() * (x - y)).sum(-1).mean()
    assert found.kl == pytest.approx(float(kl), rel=0.2)  # of one token fewer


def test_a_difference_that_does_not_reach_the_end_is_told():
    models = small.llama(), small.with_split_k(small.llama())
    with torch.no_grad():
        for model in models:
            model.lm_head.weight.zero_()
    found = compared(*(Side(model, IDS) for model in models))
    assert "equal, every bit, though results of linear down_proj differ" in found.sentence
    assert np.isnan(found.groups[0].share) and not found.gap.any()


def test_shares_of_two_culprits_are_those_of_the_models():
    """Shapley's values, from four models with one change, both or none."""

    def logprobs(norm, split):
        model = small.llama()
        model = small.with_late_cast(model) if norm else model
        model = small.with_split_k(model) if split else model
        with torch.no_grad():
            table = torch.log_softmax(model(IDS).logits.double(), -1)[0, :-1]
        return table.gather(-1, IDS[0, 1:, None])[:, 0].numpy()

    none, norm, split, both = (logprobs(*x) for x in ((0, 0), (1, 0), (0, 1), (1, 1)))
    gap = both - none
    worth = [float((x - none) @ gap / (gap @ gap)) for x in (norm, split)]
    of_norm = (worth[0] + 1 - worth[1]) / 2

    changed = small.with_split_k(small.with_late_cast(small.llama()))
    found = compared(Side(small.llama(), IDS), Side(changed, IDS))
    shares = {group.name: group for group in found.groups}
    assert set(shares) == {"rms_norm", "linear down_proj"}
    assert shares["rms_norm"].share == pytest.approx(of_norm, abs=1e-9)
    assert shares["rms_norm"].alone == pytest.approx(worth[0], abs=1e-9)
    assert shares["linear down_proj"].share == pytest.approx(1 - of_norm, abs=1e-9)
    assert found.interaction == pytest.approx(1 - sum(worth), abs=1e-9)


def test_attention_of_another_kernel():
    found = compared(Side(small.llama("eager"), IDS), Side(small.llama("sdpa"), IDS))
    assert made_here(found) == {"attention"} and abs(found.left) < 1e-12


def test_log_softmax_in_bf16():
    sides = [
        Side(small.llama(), IDS, logprobs=small.log_softmax(dtype))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    found = compared(*sides)
    assert made_here(found) == {"log_softmax"} and found.kl == 0
    (row,) = [row for row in found.rows if row.made == "here"]
    with torch.no_grad():
        logits = small.llama()(IDS).logits
    tables = [
        torch.log_softmax(logits[:, :-1].to(dtype), -1).double()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    digits = torch.frexp(torch.maximum(*(x.abs() for x in tables)))[1]  # of 8 of BF16
    ulps = (tables[0] - tables[1]).abs() / 2.0 ** (digits - 8)
    assert row.ulps == pytest.approx(float(ulps.max()))


def test_log_softmax_of_one_side():
    plain, own = Side(small.llama(), IDS), small.log_softmax(torch.bfloat16)
    found = compared(plain, Side(small.llama(), IDS, logprobs=own))
    of_a = "A: in binary64 (the default), of logits in bfloat16"
    assert f"({of_a}; B: log_softmax in bfloat16)" in found.sentence
    (row,) = [row for row in found.rows if row.made == "here"]
    assert (row.ulps, row.differ > 0) == (0.0, True)
    (note,) = found.notes
    assert note.startswith("A: the log-probabilities are computed")
    (note,) = compared(plain, plain).notes
    assert note.startswith("A and B: the log-prob")


def test_one_token_after_the_other():
    ids = small.tokens(1, 12)
    found = compared(Side(small.llama(), ids), Side(small.llama(), ids, small.by_token))
    assert made_here(found) <= {"attention", "linear"} and abs(found.left) < 1e-12


def test_a_batch_of_which_the_run_is_a_row():
    ids = small.tokens(3, 12)
    for row in (0, 2):
        found = compared(Side(small.llama(), ids[row : row + 1]), Side(small.llama(), ids, row=row))
        assert made_here(found) <= {"attention", "linear"} and abs(found.left) < 1e-12


def test_other_tokens_are_refused():
    other = IDS.clone()
    other[0, [5, 9]] = (IDS[0, [5, 9]] + 3) % 256
    text = f"first differ in row 0 at token 5, {int(IDS[0, 5])} and {int(other[0, 5])};"
    with pytest.raises(Incomparable, match=f"tokens: .*{text}"):
        compared(Side(small.llama(), IDS), Side(small.llama(), other))


def test_other_weights_are_refused():
    """Runs with other weights are refused, and the weight that differs most is named."""
    other = small.llama()
    with torch.no_grad():
        other.model.norm.weight += 2
        other.lm_head.weight += 0.5
    text = r"2 of \d+ parameters differ, model\.norm\.weight most, by up to 2"
    with pytest.raises(Incomparable, match=text):
        compared(Side(small.llama(), IDS), Side(other, IDS))


def test_parameters_that_one_side_alone_has_are_named():
    """Two families whose blocks differ in part."""
    a, b = (small.tiny(kind) for kind in ("qwen3", "qwen3_moe"))
    of_a, of_b = ({name for name, _ in model.named_parameters()} for model in (a, b))
    with pytest.raises(Incomparable, match="perhaps two architectures") as error:
        compared(Side(a, IDS % 128), Side(b, IDS % 128))
    told = re.search(
        r"of the (\d+) parameters.*are (\d+) that A alone.*; (\d+) that B", str(error.value)
    )
    assert [*map(int, told.groups())] == [len(of_a & of_b), len(of_a - of_b), len(of_b - of_a)]


def in_type(dtype: torch.dtype, times: float = 1.0) -> Side:
    """Return a run of one layer, its weights, from one FP32 master, times a factor."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
    with torch.no_grad():
        model[0].weight[3] *= times
    return Side(model.to(dtype), {"input": torch.ones(2, 16, dtype=dtype)})


@pytest.mark.parametrize(
    ("one", "other"), [(torch.bfloat16, torch.float32), (torch.float16, torch.bfloat16)]
)
def test_weights_of_two_types_are_the_same_ones_up_to_their_rounding(one, other):
    """Weights cast from one master are the same ones, which a note says; others are refused."""
    found = compared(in_type(one), in_type(other))
    assert sum("equal after rounding alone" in note for note in found.notes) == 1
    for times in (1.25, 1.02):
        with pytest.raises(Incomparable, match=r"1 of 4 parameters differ, 0\.weight most, by up"):
            compared(in_type(one), in_type(other, times))


def test_two_forward_passes_in_one_capture_are_told(tmp_path):
    model, path, told = small.llama(), tmp_path / "twice.safetensors", []
    with torch.no_grad(), capture(model, path, what="operations", tell=told.append):
        model(IDS[:, :8])
        model(IDS[:, :8])
    assert "68 operations of 2 forward passes" in told[-1]
    with pytest.raises(Incomparable, match=r"\(1, 8\) and \(1, 16\) \(A: 1 forward pass, B: 2 for"):
        compare((model, IDS[:, :8]), path)


def test_another_architecture_is_refused():
    gpt2 = pretrained("gpt2").eval()
    ids = IDS[:, :8] % 61
    with pytest.raises(Incomparable) as error:
        compared(Side(gpt2, ids), Side(small.llama(), ids))
    told = str(error.value)
    assert told.startswith("parameter names differ: two architectures")
    ours = {name for name, _ in small.llama().named_parameters()}
    [count, name] = re.search(r"B alone has (\d+), such as '(.*?)'", told).groups()
    assert int(count) >= len(ours) - 1 and name in ours
    assert "A alone has" in told and "'transformer." in told


def test_another_width_is_refused():
    with pytest.raises(Incomparable, match=r"^parameter shapes differ.*\((\d+) of \1, such as"):
        compared(Side(small.llama(), IDS), Side(small.llama(width=128), IDS))


def in_each_mlp(make):
    def changed(model):
        for path, module in model.named_modules():
            if path.endswith("mlp"):
                module.forward = make(module)
        return model

    return changed


def test_an_operation_more_is_part_of_the_one_after_it():
    """Another function in front of one, which only one run has."""

    def make(mlp):
        def forward(h):
            return mlp.down_proj(mlp.act_fn(mlp.gate_proj(h)) * mlp.up_proj(h) * 0.75)

        return forward

    a, b = small.llama(), in_each_mlp(make)(small.llama())
    found = compared(Side(a, IDS), Side(b, IDS))
    (group,) = found.groups
    assert group.b == "Tensor.mul + Linear" and abs(found.left) < 1e-12


def test_a_fused_function_is_compared_with_what_it_stands_for():
    def make(mlp):
        def forward(h):
            gate, up = mlp.gate_proj(h).float(), mlp.up_proj(h).float()
            return mlp.down_proj(torch.erf(gate * up).to(h.dtype))

        return forward

    found = compared(Side(small.llama(), IDS), Side(in_each_mlp(make)(small.llama()), IDS))
    assert abs(found.left) < 1e-12 and found.unknown == 2
    assert not any(row.made == "undecided" for row in found.rows)


def test_experts_that_differ_are_decisions():
    """A router whose scores differ in the last place."""

    class Routed(torch.nn.Module):
        def __init__(self, nudge):
            super().__init__()
            self.nudge = nudge

        def forward(self, x):
            scores = x * self.nudge
            return torch.topk(scores, 1, -1).values + 0

    x = torch.tensor([[1.0, 1.0 - 2**-24], [2.0, 1.0]])
    nudges = torch.ones(2), torch.tensor([1.0, 1 + 2**-22])
    found = compared(*(Side(Routed(nudge), {"x": x}) for nudge in nudges))
    (flip,) = [flip for flip in found.flips if flip.what.startswith("experts")]
    assert (flip.position, flip.a, flip.b, flip.margin) == (0, (0,), (1,), 2**-24)


def test_a_run_under_autocast_is_one_that_repeats():
    """Its linear layers cast, and nothing else differs from a run without."""

    def cast(model, ids):
        with torch.autocast("cpu", torch.bfloat16):
            return model(ids).logits

    model = small.llama(layers=1, dtype=torch.float32)
    assert compared(Side(model, IDS, cast), Side(model, IDS, cast)).equal
    found = compared(Side(model, IDS), Side(model, IDS, cast))
    assert "linear" in made_here(found) and "rms_norm" not in made_here(found)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the fast path")
def test_a_fast_path_that_is_not_compared_is_told():
    """PyTorch serves an encoder layer by one fused function, which a recording does not see."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    side = Side(layer, {"src": torch.ones(1, 4, 16)})
    found = compared(side, side)
    assert found.equal and any(note.startswith("A and B: the fast path") for note in found.notes)


def test_a_model_that_is_compiled_as_a_whole_is_one_operation():
    """Of which nothing is seen, and which is compared with all that it stands for."""
    given = {"input_ids": IDS, "use_cache": False}
    compiled = torch.compile(small.with_late_cast(small.llama()), backend="eager")
    found = compared(Side(small.llama(), given), Side(compiled, given))
    (row,) = found.rows
    assert (row.made, found.unknown) == ("here", 1)
    assert row.operation == "embedding to mul (34 operations)"
    assert row.function[1] == "LlamaForCausalLM (compiled)"
    assert found.groups[0].share == pytest.approx(1)
    assert found.groups[0].is_most and "not told apart: compile the leaves" in found.sentence
    assert repr(found) == found.sentence == str(found)


def test_log_probabilities_after_many_passes():
    """Of a run of one token at a time, what computes them belongs to no pass, but to the end."""
    ids = small.tokens(1, 4)
    wide, narrow = (small.log_softmax(dtype) for dtype in (torch.float32, torch.bfloat16))
    model, other = small.llama(), small.llama()
    found = compare(Side(model, ids, None, wide), Side(other, ids, small.by_token, narrow))
    with torch.no_grad():
        own, its = wide(model(ids).logits, ids), narrow(small.by_token(other, ids), ids)
    np.testing.assert_array_equal(found.gap, (its.double() - own.double()).numpy().reshape(-1))
    first = found.groups[0]
    assert first.name == "log_softmax"
    assert "in float32" in first.a and "in bfloat16" in first.b
    assert abs(found.left) < 1e-12 and {g.name for g in found.groups[1:]} <= {"attention", "linear"}
    again = compare(Side(model, ids, None, narrow), Side(other, ids, small.by_token))
    assert "in bfloat16" in again.groups[0].a
    assert again.groups[0].b == "in binary64 (the default), of logits in bfloat16"
