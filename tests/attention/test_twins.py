"""Twins against what the real kernels wrote on an H200 or H100 (tests/golden/kernels): every bit
that the documentation claims.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from roundscope.attention import Plan
from roundscope.attention.plans.twins import TWINS
from tests.checks.kernel_outputs import OWN, STORED
from tests.checks.kernel_twins import differing, shares, stored

ALL = [(twin.name, kernel) for twin in TWINS.values() for kernel in twin.outputs]
CASES = [case for case in ALL if case[1] not in OWN]
OF_OWN = [case for case in ALL if case[1] in OWN]


SOME_LONG = [
    pytest.param(
        family, causal, marks=[] if (family == "layer4") == causal else [pytest.mark.thorough]
    )
    for family in STORED
    for causal in (False, True)
]


@pytest.mark.parametrize(("family", "causal"), SOME_LONG)
@pytest.mark.parametrize(("twin", "kernel"), CASES)
def test_it_gives_the_bits_of_its_kernel(twin, kernel, causal, family):
    """A preset that carries a kernel's name and is not its arithmetic; a window, a softcap or sinks
    that are not the kernel's.
    """
    found = shares(TWINS[twin], family, causal, stored(kernel), kernel)
    assert set(found) >= {"out", "dq", "dk", "dv"}
    for part, share in found.items():
        assert share >= TWINS[twin].least.get(part, 1.0), part


@pytest.mark.parametrize(("twin", "kernel"), OF_OWN)
def test_it_gives_the_output_of_its_kernel_on_other_inputs(twin, kernel):
    """The forward of SageAttention: each step that another arithmetic has."""
    assert differing(TWINS[twin], kernel) == 0


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ("smoothed_keys=false", 50000),
        ("key_scales=false scaled_queries=false", 1),
        ("key_scales=false", 1),
        ("block_reciprocal=correct", 10000),
        ("Q=int8[128x128]", 1),
        ("K=int8[64x128]", 1),
        ("fused_exponent=false unfused_if_cut=false", 1),
        ("PV.sum=hopper:fp16", 5000),
        ("PV.sum=exact:fp16", 5000),
    ],
)
def test_every_step_of_int8_shows_in_the_output(words, least):
    """A word of the plan that the stored output does not need."""
    twin = TWINS["sage-int8"]
    other = replace(twin, make=lambda: twin.plan.changed(words))
    assert differing(other, "sage-int8") >= least


@pytest.mark.parametrize("family", STORED)
def test_compiled_code_on_two_tiles(family):
    """The released code's first query tile divides by another row sum than the second."""
    twin = replace(TWINS["qiu-yao-compiled"], tiles=lambda width: (256, 256))
    found = shares(twin, family, True, stored("released-compiled-256"))
    assert found["out"] == found["dq"] == found["dk"] == 1.0 and found["dv"] >= 0.9999


def test_every_twin_has_its_kernel():
    """A twin that nothing is compared with."""
    assert {twin for twin, _ in ALL} == set(TWINS)


@pytest.mark.parametrize("twin", TWINS)
def test_it_is_a_preset(twin):
    """A name that the documentation gives and `Plan.preset` does not know."""
    assert Plan.preset(twin) == TWINS[twin].plan
    assert Plan.preset(twin).name == twin


def test_other_arithmetics_are_told_apart():
    """A comparison that any plan passes."""
    outputs = stored("sdpa-cudnn")
    near = shares(TWINS["fa2"], "gaussian64", False, outputs)
    assert near["out"] < 1.0
    assert near["dq"] < 0.999


def test_a_twin_makes_no_other_one():
    """All plans of all kernels made, 209 of them, for the name of one."""
    code = (
        "from roundscope.attention.plans import plan; made = []; check = plan.Plan.__post_init__;"
        " plan.Plan.__post_init__ = lambda self: made.append(self) or check(self);"
        " plan.Plan.preset('cudnn'); print(len(made))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 32
