"""Twins against what the real kernels wrote on an H200 or H100 (tests/golden/kernels): every bit
that the documentation claims.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from roundscope.attention import Plan
from roundscope.attention.plans.twins import TWINS
from tests.checks.kernel_outputs import FROM_FILE, STORED, WITH_INPUTS
from tests.checks.kernel_twins import shares, stored

CASES = [(twin.name, kernel) for twin in TWINS.values() for kernel in twin.outputs]
RECORDED = [(twin, kernel) for twin, kernel in CASES if kernel not in WITH_INPUTS]
ON_OWN = [(twin, kernel) for twin, kernel in CASES if kernel in WITH_INPUTS]

SOME_LONG = [
    pytest.param(
        family, causal, marks=[] if (family == "layer4") == causal else [pytest.mark.thorough]
    )
    for family in STORED
    for causal in (False, True)
]


@pytest.mark.parametrize(("family", "causal"), SOME_LONG)
@pytest.mark.parametrize(("twin", "kernel"), RECORDED)
def test_it_gives_the_bits_of_its_kernel(twin, kernel, causal, family):
    """A preset that carries a kernel's name and is not its arithmetic; a window, a softcap or sinks
    that are not the kernel's.
    """
    found = shares(TWINS[twin], family, causal, stored(kernel), kernel)
    assert set(found) >= {"out", "dq", "dk", "dv"}
    for part, share in found.items():
        assert share >= TWINS[twin].least.get(part, 1.0), part


@pytest.mark.parametrize(("twin", "kernel"), ON_OWN)
def test_it_gives_the_bits_of_a_kernel_on_the_tensors_in_its_file(twin, kernel):
    """A call that nobody can record again, and a twin that gives other bits there."""
    outputs = stored(kernel)
    found = shares(TWINS[twin], FROM_FILE, WITH_INPUTS[kernel], outputs, kernel)
    assert set(found) == {"out", "dq", "dk", "dv"}
    for part, share in found.items():
        assert share >= TWINS[twin].least.get(part, 1.0), part


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("fused_exponent=false", ("out", "dq", "dk", "dv")),
        ("log=lg2", ("dq", "dk", "dv")),
        ("row_sum=tile-lanes", ("dq", "dk", "dv")),
        ("row_sum=lanes", ("dq", "dk")),
        ("DELTA.sum=octets16", ("dq", "dk")),
        ("query_order=descending", ("dq", "dk", "dv")),
        ("query_order=ascending", ("dq",)),
    ],
)
def test_each_choice_of_fa4_hopper_shows_in_its_bits(change, parts):
    """A choice of the twin that the stored call cannot tell from its neighbor."""
    twin = TWINS["fa4-hopper"]
    other = replace(twin, make=lambda: twin.plan.changed(change))
    found = shares(other, FROM_FILE, True, stored("fa4-hopper"), "fa4-hopper")
    assert tuple(part for part, share in found.items() if share < 1.0) == parts


@pytest.mark.parametrize("family", STORED)
def test_compiled_code_on_two_tiles(family):
    """The released code's first query tile divides by another row sum than the second."""
    twin = replace(TWINS["qiu-yao-compiled"], tiles=lambda width: (256, 256))
    found = shares(twin, family, True, stored("released-compiled-256"))
    assert found["out"] == found["dq"] == found["dk"] == 1.0 and found["dv"] >= 0.9999


def test_every_twin_has_its_kernel():
    """A twin that nothing is compared with."""
    assert {twin for twin, _ in CASES} == set(TWINS)


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
