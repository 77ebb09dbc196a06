"""Which of several plans that tie comes first, and what is said of a kernel that has no plan."""

import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.machine import NO_PLAN, SDPA, Machine, of_file, of_function

CPU = Machine("torch", "cpu", "sdpa flash")


def of(machine, out=None):
    """Identify means of 16 whole numbers, which every plan has to the bit."""
    rng = np.random.default_rng(0)
    q, v = np.zeros((1, 16, 1, 8), np.float32), rng.integers(8, 16, (1, 16, 1, 8))
    v = (16 * v).astype(np.float32)
    x = Inputs(q=q, k=q, v=v, do=q, scale=1.0, is_causal=False)
    out = v.mean(1, keepdims=True).repeat(16, 1) if out is None else out(v)
    return identify(x, Outputs(out=out), lambda text: None, 0, machine=machine)


def test_a_plan_of_a_library_that_runs_there_comes_first():
    """The kernel of a GPU in the name of what a CPU computed, and the others left out."""
    here, nowhere, gpu = of(CPU), of(Machine()), of(Machine("jax", "gpu"))
    assert [found.kind for found in (here, nowhere, gpu)] == [Kind.SAME] * 3
    assert here.base == "eager" and not here.words and "fa2" in here.ties
    assert nowhere.base == "fa2" and "eager" in nowhere.ties
    assert gpu.base == "pallas-mha" and {"fa2", "eager"} <= {*gpu.ties}
    for found in (here, gpu):
        assert all(name in found.verdict for name in found.ties)
    assert {here.base, *here.ties} == {nowhere.base, *nowhere.ties}


@pytest.mark.parametrize(
    ("said", "is_it"),
    [
        ({"torch": "2.13.0", "device": "x86_64", "implementation": "sdpa flash"}, True),
        ({"torch": "2.13.0", "device": "aarch64", "implementation": "sdpa flash"}, True),
        ({"torch": "2.13.0", "device": "x86_64", "implementation": "sdpa math"}, False),
        ({"torch": "2.13.0", "device": "x86_64", "implementation": "eager"}, False),
        ({"torch": "2.13.0", "device": "NVIDIA H200", "implementation": "sdpa flash"}, False),
        ({"jax": "0.11.2", "device": "cpu"}, False),
        ({}, False),
    ],
)
def test_a_file_says_that_its_kernel_has_no_plan(said, is_it):
    """A search for what is not there, of which the file has said that it is not."""
    assert (of_file(said.get).note == NO_PLAN) is is_it


def test_the_kernel_without_a_plan_is_told_where_no_plan_is_found():
    """A sentence of a kernel that is missing where a plan was found, or none where none was."""
    found = of(CPU, lambda v: 1.01 * v.mean(1, keepdims=True).repeat(16, 1))
    assert found.kind is not Kind.SAME and NO_PLAN in found.notes
    assert NO_PLAN not in of(CPU).notes and NO_PLAN.startswith("PyTorch's own CPU flash kernel")
    assert Plan.preset("sdpa-math").name in NO_PLAN


def test_a_function_is_asked_for_what_it_calls():
    """A user's own softmax that is taken for PyTorch's kernel."""
    import torch

    def fused(q, k, v, *, scale, is_causal):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    assert SDPA in fused.__code__.co_names
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    assert of_function(fused, "torch") == Machine("torch", kind, "sdpa")
    assert of_function(lambda q, k, v: q, "torch").implementation == ""
    assert of_function(fused, "numpy") == Machine()
