"""Which of several plans that tie comes first, and what is said of a kernel that has no plan."""

from functools import cache

import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.machine import (
    NO_PLAN,
    SDPA,
    Machine,
    of_file,
    of_function,
    of_kernel,
)

CPU = Machine("torch", "cpu", "sdpa flash")


@cache
def of(machine, factor=1.0):
    """Identify means of 16 whole numbers, which every plan has to the bit, times a factor."""
    rng = np.random.default_rng(0)
    q, v = np.zeros((1, 16, 1, 8), np.float32), rng.integers(8, 16, (1, 16, 1, 8))
    v = (16 * v).astype(np.float32)
    x = Inputs(q=q, k=q, v=v, do=q, scale=1.0, is_causal=False)
    out = np.float32(factor) * v.mean(1, keepdims=True).repeat(16, 1)
    return identify(x, Outputs(out=out), lambda text: None, 0, machine=machine)


def test_a_plan_of_a_library_that_runs_there_comes_first():
    """The kernel of a GPU in the name of what a CPU computed, and the others left out."""
    here, nowhere = of(CPU), of(Machine())
    assert here.kind is nowhere.kind is Kind.SAME
    assert here.base == "eager" and not here.words and "fa2" in here.ties
    assert nowhere.base == "fa2" and "eager" in nowhere.ties
    assert all(name in here.verdict for name in here.ties)
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
    found = of(CPU, 1.01)
    assert found.kind is not Kind.SAME and NO_PLAN in found.notes
    assert NO_PLAN not in of(CPU).notes and NO_PLAN.startswith("PyTorch's own CPU flash kernel")
    assert Plan.preset("sdpa-math").name in NO_PLAN


def test_a_rank_is_of_the_device_and_of_the_library():
    """A plan of JAX before one of PyTorch on a GPU, or of no library before one that ran there."""
    gpu = Machine("jax", "gpu")
    assert [gpu.rank(n) for n in ("pallas-mha", "fa2", "fp32")] == [0, 2, 1]
    assert [CPU.rank(n) for n in ("eager", "sdpa-math-fp16", "jax-xla", "fa2")] == [0, 0, 2, 2]
    assert {Machine().rank(n) for n in ("eager", "fa2", "fp32")} == {0}


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
    assert of_kernel("sdpa-flash") == Machine("torch", kind, "sdpa flash")
    assert (of_kernel("sdpa-flash").note == NO_PLAN) is (kind == "cpu")
    assert not of_kernel("sdpa-math").note and of_kernel("pallas") == Machine()
