"""Modules and functions of PyTorch as calls of our operations, whose plan gives their bits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from roundscope.operations.models.torch.comparing.emulating import calls_of
from roundscope.operations.models.torch.comparing.plans import found_plan
from roundscope.operations.models.torch.recording.record import record
from roundscope.operations.models.torch.side import Side
from tests.operations.by_torch import torch_of

FUNCTIONS = {
    "layer_norm": (lambda x: F.layer_norm(x, (32,)), lambda x: F.layer_norm(x, (4, 32))),
    "gelu": (F.gelu, None),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), None),
    "softmax": (lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, 0)),
}
MODULES = {
    "layer_norm": lambda: nn.LayerNorm(32),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
}


class Only(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def recorded(function):
    x = torch.randn(6, 4, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    tape = record(Side(Only(function).bfloat16(), {"x": x}), "a")
    (entry,) = (e for e in tape.entries if e.operation != "exact")
    return tape, entry


CASES = [(name, make[0]) for name, make in FUNCTIONS.items()]
CASES += [(name, make()) for name, make in MODULES.items()]


@pytest.mark.parametrize(("name", "function"), CASES)
def test_their_plan_is_found(name, function):
    """An argument that is taken for another, a form that is the other one."""
    torch_of("", "AVX512")  # whose bits the plan has
    tape, entry = recorded(function)
    (call,) = calls_of(entry)
    assert call.operation == name
    known = {n: v.array.double() for n, v in enumerate(tape.values) if v.array is not None}
    plan, share = found_plan(tape, [entry], known)
    assert plan.name == "torch-cpu" and share == 1.0


@pytest.mark.parametrize("name", [name for name, each in FUNCTIONS.items() if each[1]])
def test_over_other_axes_they_are_no_call(name):
    """A norm of two axes, a softmax of the first one."""
    assert calls_of(recorded(FUNCTIONS[name][1])[1]) == ()
