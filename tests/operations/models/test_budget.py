"""The error budget of a model: errors whose maker is planted, and the arithmetic of autograd."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundscope.torch import error_budget

pytest.importorskip("transformers")

from roundscope.operations.models.calls import table_of
from roundscope.operations.models.torch.budget.measuring import own_gradients
from roundscope.operations.models.torch.budget.stepping import SUMS, Step
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from tests.operations.models import small

BF16 = torch.bfloat16
IDS = small.tokens(1, 16)


def square(out, inputs):
    return out.square().mean()


class Rough(nn.Module):
    """A module that casts to BF16 within, named as an operation is."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(width, dtype=torch.float64))
        self.variance_epsilon = 1e-6

    def forward(self, x):
        return (x.to(BF16) * self.weight.to(BF16)).to(x.dtype)


class RoughRMSNorm(Rough):
    pass


class RoughLayerNorm(Rough):
    pass


class Chain(nn.Module):
    def __init__(self, *modules):
        super().__init__()
        self.each = nn.ModuleList(modules)

    def forward(self, x):
        for module in self.each:
            x = module(x)
        return x


class Branches(nn.Module):
    """Two modules side by side, whose results are added."""

    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x):
        return self.one(x) + self.two(x)


def made(width=32):
    torch.manual_seed(0)
    x = torch.randn(24, width, dtype=torch.float64)
    return {"x": x}, nn.Linear(width, width).double(), RoughRMSNorm(width)


def test_binary64_makes_no_error():
    given, linear, _ = made()
    found = error_budget(Chain(linear, nn.SiLU()), given, loss=square)
    assert found.is_exact and not found.lines and found.total.loss == 0
    assert found.sentence == "The step of 4 operations makes no error beyond binary64's."


def test_the_only_rough_operation_makes_all():
    given, linear, rough = made()
    model = Chain(linear, rough, nn.Linear(32, 32).double())
    found = error_budget(model, given, loss=square)
    (line,) = found.lines
    assert line.group == "rms_norm"
    for name in (*found.results, *found.total.weights):
        assert line.share(name, found.total) == pytest.approx(1, abs=1e-9)
        assert line.without.of(name) < 1e-14
    with torch.no_grad():
        x = linear(given["x"])
        end = model(given["x"])
        exact = model.each[2](x * rough.weight)
    error = float((end - exact).norm() / exact.norm())
    assert found.total.end == pytest.approx(error, rel=1e-9) and error > 1e-4
    assert found.total.largest == pytest.approx(float((end - exact).abs().max()), rel=1e-9)
    loss = float(end.square().mean() - exact.square().mean())
    assert found.total.loss == pytest.approx(loss, rel=1e-9)


class Routed(nn.Module):
    """A router of two experts whose scores are rounded, and differ by less than that for a token.

    Linear layers in binary64 make no error, so the flip and the norm before it make all of it.
    """

    def __init__(self):
        super().__init__()
        self.norm, self.each = RoughRMSNorm(2), nn.ModuleList()
        self.norm.weight.data = torch.tensor([1.0, 1 + 2**-12], dtype=torch.float64)
        for size in (1.0, -1.0):
            self.each.append(nn.Linear(2, 2, bias=False).double())
            self.each[-1].weight.data = size * torch.eye(2, dtype=torch.float64)

    def forward(self, x):
        chosen = self.norm(x).topk(1, -1).indices
        return torch.where(chosen == 0, self.each[0](x), self.each[1](x)) + 1e-6 * self.norm(x)


def test_a_decision_that_flips_comes_first():
    """One of three tokens goes to another expert: its scores 1 and 1 + 2^-12 are equal in BF16."""
    x = torch.tensor([[1.0, 1.0], [2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    found = error_budget(Routed(), {"x": x}, gradients=False)
    assert [tuple(flip) for flip in found.flips] == [("topk", 1, 3)]
    assert "1 of 3 in topk" in found.notes[0]
    # the token's result is -x in place of x
    assert found.total.end == pytest.approx((2 * 2**0.5) / (1 + 1 + 4 + 1 + 1 + 9) ** 0.5, rel=1e-4)


class Cancelled(nn.Module):
    """A router whose scores are sums of two norms: the roundings of one alone turn a decision.

    In units of 2^-8 the second score exceeds the first by 0.9 - 0.8 + 0.1. The first norm rounds
    0.9 away, the second 0.8: with both 0.1 is left, with the first alone -0.7.
    """

    def __init__(self):
        super().__init__()
        self.one, self.two = RoughRMSNorm(2), RoughLayerNorm(2)
        self.one.weight.data = torch.tensor([1.0, 1 + 0.9 / 256], dtype=torch.float64)
        self.two.weight.data = torch.tensor([1 + 0.8 / 256, 1.0], dtype=torch.float64)

    def forward(self, x):
        one, two = self.one(x), self.two(x)
        chosen = (one + two + x * x.new_tensor([0.0, 0.1 / 256])).topk(1, -1).indices
        return torch.where(chosen == 0, one, -two)


def test_decisions_are_told_of_the_group_that_alone_makes_them():
    """A flip that another group's error takes back, or that is told of the group that does."""
    x = torch.tensor([[1.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    found = error_budget(Cancelled(), {"x": x}, gradients=False)
    flips = {line.group: [tuple(flip) for flip in line.flips] for line in found.lines}
    assert flips == {"rms_norm": [("topk", 1, 2)], "layer_norm": []} and not found.flips
    (said,) = [note for note in found.notes if "1 of 2 in topk" in note]
    assert "rms_norm" in said and "layer_norm" not in said


class Biased(nn.Module):
    """Attention with a bias that is computed of a parameter."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, 8, 8))
        self.o = nn.Linear(8, 8)

    def forward(self, x):
        q = x[:, None]
        return self.o(F.scaled_dot_product_attention(q, q, q, attn_mask=2 * self.bias)[:, 0])


def test_gradients_that_are_not_the_model_s_come_first():
    """A bias that is computed is a constant of the replay, so that it has no gradient there."""
    torch.manual_seed(0)
    model, x = Biased().bfloat16(), torch.randn(1, 8, 8).bfloat16()
    found = error_budget(model, {"x": x}, loss=square, events=False)
    assert found.unequal > 0 and found.apart > 0.1 * found.total.of("gradients")
    assert found.sentence.startswith("The gradients measured here are not the model's own")
    assert any("no gradient reaches bias" in note for note in found.notes)


def test_shares_that_do_not_add_up_are_not_told():
    """Two norms of the same numbers whose errors cancel: each makes far more than the model."""
    given, *_ = made()
    model = Branches(RoughRMSNorm(32), RoughLayerNorm(32))
    model.two.weight.data = -model.one.weight.data * (1 + 2**-12)
    found = error_budget(model, given, gradients=False)
    assert found.interaction("end") < -0.5
    assert "%" not in found.sentence.replace(f"{found.interaction('end'):+.0%} of the output", "")
    assert found.sentence.startswith("The errors of the groups do not add up (interaction -")
    rows = [line.split() for line in str(found).splitlines()]
    assert [row[2] for row in rows if row and row[0] in ("rms_norm", "layer_norm")] == ["-", "-"]


@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
def test_half_wide_tables_of_rope_are_those_of_both_halves(layout):
    """The tables of gpt-oss, of half of the features; others do not fit, and are refused."""
    x = np.zeros((2, 3, 5, 8) if layout == "heads first" else (2, 5, 3, 8))
    half = np.arange(2 * 5 * 4.0).reshape(2, 5, 4)
    want = np.concatenate([half, half], -1)
    want = want[:, None] if layout == "heads first" else want[:, :, None]
    assert np.array_equal(table_of(x, half), np.broadcast_to(want, x.shape))
    assert table_of(x, half[..., :3]) is None


def test_shares_of_two_rough_operations_are_their_errors():
    """Of branches that are added each has the error that it has by itself."""
    given, *_ = made()
    x = given["x"]
    model = Branches(RoughRMSNorm(32), RoughLayerNorm(32))
    model.two.weight.data *= 4
    found = error_budget(model, given, loss=square)
    with torch.no_grad():
        errors = [(m(x) - x * m.weight).numpy() for m in (model.one, model.two)]
    squares = [(e**2).sum() for e in errors]
    total = ((errors[0] + errors[1]) ** 2).sum()
    by_name = {line.group: line for line in found.lines}
    assert set(by_name) == {"rms_norm", "layer_norm"}
    for name, own in zip(("rms_norm", "layer_norm"), squares, strict=True):
        assert by_name[name].share("end", found.total) == pytest.approx(own / total, rel=1e-9)
    cross = 2 * (errors[0] * errors[1]).sum() / total
    assert found.interaction("end") == pytest.approx(cross, abs=1e-9)


def test_gradients_are_those_of_autograd_and_their_errors_too():
    """Against gradients that torch computes of two models without our replay."""
    given, linear, rough = made()
    model, x = Chain(linear, rough), given["x"]
    found = error_budget(model, given, loss=square)

    def gradients(function):
        out = function(linear(x)).square().mean()
        return torch.autograd.grad(out, list(model.parameters()))

    own, exact = gradients(rough), gradients(lambda h: h * rough.weight)
    names = [name for name, _ in model.named_parameters()]
    assert set(found.total.weights) == set(names) and found.unequal == 0
    for name, g, e in zip(names, own, exact, strict=True):
        told = found.total.weights[name]
        assert told.error == pytest.approx(float((g - e).norm() / e.norm()), rel=1e-9)
        along = float(((g - e) * e).sum() / (e * e).sum())
        assert told.gain == pytest.approx(along, rel=1e-6, abs=1e-12)


class Widened(nn.Module):
    """A weight in BF16 that is read in binary64, so that its gradient alone is rounded."""

    def __init__(self, times):
        super().__init__()
        self.weight, self.times = nn.Parameter(torch.ones(8, dtype=BF16)), times

    def forward(self, x):
        return sum(self.weight.double() * x[i] for i in range(self.times))


def total(out, inputs):
    return out.sum()


def rounding_error(x):
    return float((x.to(BF16).double() - x).norm() / x.norm())


def test_a_cast_rounds_its_gradient():
    x = torch.randn(1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = error_budget(Widened(1), {"x": x}, loss=total)
    (line,) = found.lines
    assert line.group == "cast bf16 to fp64" and line.alone.end == 0
    for errors in (found.total, line.alone, line.backward):
        assert errors.gradients.error == pytest.approx(rounding_error(x[0]), rel=1e-9)
    assert found.total.weights["weight"] == found.total.gradients


def test_sums_of_gradients_are_an_operation():
    """Of a weight that is read twice, with gradients of which BF16 holds each and not the sum."""
    x = torch.tensor([[1.0 + i / 64, 2.0**-9 * (2 * i + 1)] for i in range(8)]).double().T
    assert rounding_error(x) == 0 and rounding_error(x.sum(0)) > 1e-3
    found = error_budget(Widened(2), {"x": x}, loss=total)
    (line,) = found.lines
    assert line.group == "sums of gradients" and found.unequal == 0
    assert line.alone.gradients.error == pytest.approx(rounding_error(x.sum(0)), rel=1e-9)
    assert found.repair("gradients").words == "sums of gradients: fp32"
    assert found.repair("gradients").errors.gradients.error == 0


def test_a_llama_step_is_replayed_to_the_bit():
    """With all in its own arithmetic the replay is torch's step: results and gradients."""

    def loss(out, tokens):
        x = out.logits[:, :-1].float()
        return F.cross_entropy(x.reshape(-1, x.shape[-1]), tokens[:, 1:].reshape(-1))

    side = Side(small.llama(), IDS, loss=loss)
    tape = record(side)
    step = Step(tape, side.model)
    every = dict.fromkeys((*range(len(tape.entries)), SUMS), "own")
    ran = step.run(every, end=tape.loss)
    own, _ = own_gradients(side)
    assert len(ran.gradients) == len(own) == 21
    for v, parameter in step.parameters.items():
        assert torch.equal(ran.gradients[v], own[id(parameter)])
    for entry in tape.entries:
        for v in entry.outputs:
            assert torch.equal(ran.values[v].double(), tape.values[v].array.double())


class Block(nn.Module):
    """A layer of modules of torch, none of which casts by itself."""

    def __init__(self, width=32):
        super().__init__()
        self.norm, self.other = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.up, self.down = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        q, k, v = (
            y.unflatten(-1, (2, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        return x + self.down(F.silu(self.up(self.other(x))))


def language(dtype, cast=False):
    """A model of two such layers with random weights, possibly under autocast."""

    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.blocks = nn.Embedding(64, 32), nn.Sequential(Block(), Block())
            self.head = nn.Linear(32, 64)

        def forward(self, ids):
            with torch.autocast("cpu", BF16, enabled=cast):
                return self.head(self.blocks(self.embed(ids)))

    torch.manual_seed(0)
    return Language().to(BF16).to(dtype)


@pytest.mark.parametrize(("dtype", "cast"), [(BF16, False), (torch.float32, True)])
def test_the_judge_is_the_model_in_binary64(dtype, cast):
    """Against torch's own loss and gradients of the model and of its copy in binary64."""
    ids = IDS % 64
    found = error_budget(language(dtype, cast), ids, events=False)
    losses, gradients = [], []
    for model in (language(dtype, cast), language(torch.float64)):
        x = model(ids)[:, :-1].double()
        loss = F.cross_entropy(x.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]))
    own, exact = gradients
    assert found.total.loss == pytest.approx(losses[0] - losses[1], abs=1e-12)
    told = found.total.gradients
    assert told.error == pytest.approx(float((own - exact).norm() / exact.norm()), rel=1e-3)
    assert told.gain == pytest.approx(float((own - exact) @ exact / (exact @ exact)), abs=1e-5)
    assert found.is_logprobs and abs(found.interaction("gradients")) < 0.3
    if not cast:  # which converts a weight once for all that read it
        assert found.unequal == 0
        (add,) = [line for line in found.lines if line.group == "add"]
        assert add.backward.gradients.error < 1e-15 < add.alone.gradients.error  # it only copies
        assert told.error == pytest.approx(float((own - exact).norm() / exact.norm()), rel=1e-12)


def test_an_event_of_a_plan_that_is_the_only_rounding():
    """An addition in BF16 rounds once, so its one event makes all of its error."""
    found = error_budget(small.llama(layers=1), IDS, gradients=False)
    (add,) = [line for line in found.lines if line.group == "add"]
    (out,) = [line for line in found.events if line.group == "add"]
    assert out.event == "OUT" and out.how == "bf16"
    assert out.alone.end == pytest.approx(add.alone.end, rel=1e-9)
    assert out.without.end == pytest.approx(add.without.end, rel=1e-9)


def test_another_plan_is_the_model_that_has_it():
    """What the words of a plan would change is what a model with that arithmetic has."""
    model, late = small.llama(), small.with_late_cast(small.llama())
    found = error_budget(
        model, IDS, plan={"rms_norm": "XC=fp32 XW=fp32"}, gradients=False, events=False
    )
    want = error_budget(late, IDS, gradients=False, events=False)
    assert found.tried[-1].words == "rms_norm: XC=fp32 XW=fp32"
    assert found.tried[-1].errors.end == pytest.approx(want.total.end, rel=1e-9)
    assert found.total.end != pytest.approx(want.total.end, rel=1e-3)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=BF16))

    def forward(self, x):
        return (self.weight + self.weight) + x


def test_plans_in_the_places_of_the_functions_that_they_are():
    """Forward and backward: with them the step is the model, to the bit."""
    plans = {"rms_norm": "transformers-llama", "silu": "torch-cpu", "add": "torch-cpu"}
    found = error_budget(small.llama(layers=1), IDS, plan=plans, events=False)
    assert found.tried[-1].errors == found.total
    x = {"x": torch.randn(8, dtype=BF16)}
    found = error_budget(Twice(), x, plan={"add": "torch-cpu"}, loss=total, events=False)
    assert found.tried[-1].errors == found.total


class SelectRMSNorm(nn.Module):
    """Rows that are chosen by their numbers."""

    def forward(self, x):
        return x[x[:, 0] > 1]


class Selecting(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 - 2.0**-8, 1.0], dtype=BF16))
        self.choose = SelectRMSNorm()

    def forward(self, x):
        return self.choose(x * self.weight).sum(0)


def test_a_choice_that_rounding_turns():
    """A product a little above 1, which BF16 rounds to 1: the row is not chosen."""
    x = torch.tensor([[1 + 2.0**-7, 1.0], [3.0, 5.0]], dtype=BF16)
    found = error_budget(Selecting(), {"x": x}, loss=lambda out, inputs: out.double().sum())
    exact = (1 + 2.0**-7) * (1 - 2.0**-8) + 1 + 3 * (1 - 2.0**-8) + 5
    chosen = float((x[1, 0].double() * (1 - 2.0**-8)).to(BF16)) + 5
    assert found.total.loss == chosen - exact < -1.9
    by_name = {line.group: line for line in found.lines}
    assert by_name["mul"].alone.loss == by_name["rms_norm"].alone.loss == found.total.loss


def test_products_of_groups_in_binary64():
    """Of experts, of which torch has no kernel in binary64."""
    from roundscope.operations.models.torch.comparing.widened import Widened

    torch.manual_seed(0)
    a, b = torch.randn(16, 8, dtype=BF16), torch.randn(3, 8, 16, dtype=BF16)
    ends = torch.tensor([4, 4, 14], dtype=torch.int32)
    with Widened(torch.float64, {}):
        found = torch._grouped_mm(a, b, offs=ends)
    want = torch.zeros(16, 16, dtype=torch.float64)
    want[:4], want[4:14] = a[:4].double() @ b[0].double(), a[4:14].double() @ b[2].double()
    assert torch.equal(found, want)


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 300.0, dtype=torch.float16))

    def forward(self, x):
        return (x * self.weight) / 256 + x


def test_what_is_not_finite_comes_first():
    x = {"x": torch.tensor([[1.0, 2.0, 3.0, 300.0]], dtype=torch.float16)}
    found = error_budget(Large(), x, loss=lambda out, inputs: out.float().square().mean())
    assert math.isinf(found.total.end) and math.isinf(found.total.gradients.error)
    assert found.sentence.startswith("1 of 4 results is infinite, first in mul")
    assert "With mul in binary64 alone, all are finite." in found.sentence
    assert all(math.isnan(line.share("end", found.total)) for line in found.lines)


def test_a_gradient_that_is_not_finite_comes_first():
    """A loss that is scaled too much for FP16, and results that are finite."""
    x = {"x": torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float16)}
    found = error_budget(Large(), x, loss=lambda out, inputs: out.float().sum() * 2.0**17)
    assert found.total.end < 1e-2 and math.isinf(found.total.gradients.error)
    assert found.sentence.startswith("4 of 4 gradients are infinite, first in the gradient that")
    assert "With cast fp16 to fp32 in binary64 alone, all are finite." in found.sentence


def test_logits_that_are_not_numbers():
    model = small.llama(layers=1, dtype=torch.float16)
    model.model.layers[0].mlp.down_proj.weight.data *= 6e4
    model.model.layers[0].mlp.up_proj.weight.data *= 1e4
    found = error_budget(model, IDS, gradients=False, events=False)
    assert found.broken and math.isinf(found.total.kl) and math.isinf(found.total.end)
    assert math.isinf(found.total.mean) and str(found).startswith(
        found.broken.lost.words("results")
    )


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"by": "kind"}, "by"),
        ({"plan": {"rms_nrom": "OUT=fp32"}}, "rms_nrom"),
        ({"plan": {"attention": "OUT=fp32"}}, "attention='OUT=fp32': it has no plans"),
        ({"plan": {"rms_norm": "OUTT=fp32"}}, "OUTT"),
        ({"plan": {"rms_norm": "nowhere"}}, "nowhere"),
        ({"loss": lambda out, inputs: out.logits}, "loss= returned bfloat16"),
    ],
)
def test_wrong_arguments_are_named(more, text):
    with pytest.raises(ValueError, match=text):
        error_budget(small.llama(layers=1), IDS, events=False, **more)


def test_an_output_needs_a_loss_for_gradients():
    given, linear, _ = made()
    with pytest.raises(ValueError, match="loss= is needed"):
        error_budget(Chain(linear), given)
    found = error_budget(Chain(linear), given, gradients=False)
    assert found.results == ("end",) and found.called("end") == "output"
    assert not np.isfinite(found.total.of("gradients"))
