"""Plans name the arithmetic of another machine, and let its operations run again here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from roundscope.operations import run
from roundscope.operations.models.tape_file import load_tape
from roundscope.operations.models.torch.comparing.reviving import revived, words_of
from roundscope.torch import capture, compare

X = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))


def by_plan(operation, plan, x, **more):
    inputs = {"x": x, **more}
    arrays = {name: v.detach().numpy() for name, v in inputs.items()}
    return torch.from_numpy(run(operation, plan, arrays).outputs["out"])


class OtherLayerNorm(nn.LayerNorm):
    """LayerNorm as another machine computes it."""

    plan = "torch-cuda-fp32"

    def forward(self, x):
        return by_plan("layer_norm", self.plan, x, weight=self.weight, bias=self.bias)


class OtherGELUActivation(nn.Module):
    def forward(self, x):
        return by_plan("gelu", "torch-cuda-fp32", x)


def model(norm, activation):
    torch.manual_seed(0)
    own = nn.Sequential(norm(64), activation(), nn.Linear(64, 8)).eval()
    for p in own[0].parameters():
        p.data += 0.1 * torch.randn(64)
    return own


def test_compare_names_the_plan_of_another_machine(tmp_path):
    """An operation of a GPU's file that is `unknown` on a CPU."""
    own, other = model(nn.LayerNorm, nn.GELU), model(OtherLayerNorm, OtherGELUActivation)
    path = tmp_path / "gpu.safetensors"
    with torch.no_grad(), capture(other, path, what="operations"):
        other(X)
    found = compare(path, (own, {"input": X}))
    words = {group.name: (group.a, group.b) for group in found.groups}
    assert words == {
        "layer_norm": (OtherLayerNorm.plan, "torch's layer_norm"),
        "gelu": ("torch-cuda-fp32", "torch's gelu"),
    }
    assert not any("put in" in note for note in found.notes)


@pytest.mark.parametrize(
    ("operation", "function"),
    [
        ("softmax", lambda x: torch.softmax(x, dim=-1)),
        ("layer_norm", lambda x: nn.functional.layer_norm(x, (64,))),
        ("gelu_tanh", lambda x: nn.functional.gelu(x, approximate="tanh")),
    ],
)
def test_functions_of_another_machine_run_again(operation, function, tmp_path):
    """A function of torch that gives other bits here."""

    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    path, own = tmp_path / "file.safetensors", Model()
    with torch.no_grad(), capture(own, path, what="operations"):
        own(X)
    tape = load_tape(path)
    (entry,) = (e for e in tape.entries if e.operation == operation.removesuffix("_tanh"))
    wanted = by_plan(operation, "torch-cuda-fp32", X).numpy()
    place = entry.outputs[0]
    assert not np.array_equal(tape.values[place].array, wanted)
    values = list(tape.values)
    values[place] = replace(values[place], array=wanted)
    tape = revived(replace(tape, values=values))
    assert words_of(tape, entry.number) == f"the plan torch-cuda of {operation}"
    (again,) = tape.runners[entry.number]([X], {})[:1]
    assert again.shape == X.shape
