"""Twins against what the real kernels wrote on an H200 or H100 (tests/golden/kernels): every bit
that the documentation claims.
"""

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from roundscope.attention import Plan
from roundscope.attention.engines.fused import from_scores
from roundscope.attention.plans.twins import TWINS, always
from tests.checks.kernel_outputs import FULL_ONLY, LEFT_OUT, STORED, STORED_OF
from tests.checks.kernel_twins import shares, shares_of, stored, stored_call

FORWARD_ONLY = ("sage-int8", "fa3-fp8", "fa3-fp8-descaled")
CASES = [(twin.name, kernel) for twin in TWINS.values() for kernel in twin.outputs]


IN_PROGRAMS = ("fa2", "cudnn", "fa3")  # twins of which CI compares the compiled programs as well


@pytest.fixture(autouse=True)
def without_programs():
    """By loops, whose bits programs have (engines/test_programs.py): a program takes a second to
    compile.
    """
    with from_scores(math.inf):
        yield


def is_long(kernel, family, causal):
    """Return whether a call is left to the thorough tests; one call of each family is not."""
    return kernel not in STORED_OF and (family == "layer4") != causal


FULL_AND_CAUSAL = [
    pytest.param(
        *(twin, kernel, family, causal),
        marks=[pytest.mark.thorough] if is_long(kernel, family, causal) else [],
    )
    for twin, kernel in CASES
    for family in STORED_OF.get(kernel, STORED)
    for causal in (False, True)
    if not (causal and kernel in FULL_ONLY)
]


@pytest.mark.parametrize(("twin", "kernel", "family", "causal"), FULL_AND_CAUSAL)
def test_it_gives_the_bits_of_its_kernel(twin, kernel, family, causal):
    """A preset that carries a kernel's name and is not its arithmetic; a window, a softcap or sinks
    that are not the kernel's.
    """
    assert_bits(TWINS[twin], kernel, family, causal)


@pytest.mark.parametrize(
    ("twin", "kernel"),
    [
        pytest.param(*case, marks=[] if case[0] in IN_PROGRAMS else [pytest.mark.thorough])
        for case in CASES
    ],
)
def test_programs_give_the_bits_of_its_kernel(twin, kernel):
    """A program that is compiled for a call of this length, and is another arithmetic."""
    with from_scores(0):
        assert_bits(TWINS[twin], kernel, STORED_OF.get(kernel, STORED)[0], kernel not in FULL_ONLY)


def assert_bits(twin, kernel, family, causal):
    found = shares(twin, family, causal, stored(kernel), kernel)
    assert "out" in found
    has_no_gradients = f"{kernel}/{family}/{'causal' if causal else 'full'}/d" in LEFT_OUT
    assert set(found) >= {"dq", "dk", "dv"} or kernel in FORWARD_ONLY or has_no_gradients
    for part, share in found.items():
        least = twin.least
        assert share >= least.get(f"{kernel}/{part}", least.get(part, 1.0)), part


CHANGES = [
    ("fa3", "fa3", "fused_exponent=false"),
    ("fa3", "fa3", "log=lg2-sum"),
    ("fa3", "fa3", "row_sum=paired-lanes"),
    ("fa3", "fa3", "DELTA.sum=octets8"),
    ("fa3", "fa3", "query_order=descending"),
    ("fa3", "fa3", "key_order=ascending"),
    ("fa3-e4m3", "fa3-fp8", "CM=fp32"),
    ("fa3-e4m3", "fa3-fp8", "offset=7"),
    ("fa3-e4m3", "fa3-fp8", "pv_into_o=false"),
    ("fa3-e4m3", "fa3-fp8", "PV.sum=hopper:bf16"),
    ("fa3-e4m3", "fa3-fp8-descaled", "descales=operands"),
    ("tokamax-mosaic", "tokamax-mosaic", "exponent_again=forward"),
    ("tokamax-mosaic", "tokamax-mosaic", "key_order=descending"),
    ("tokamax-mosaic-stale", "tokamax-mosaic-stale", "stale_maximum=0"),
    ("tokamax-mosaic-stale", "tokamax-mosaic-stale", "stale_maximum=0.5"),
    ("fa4-hopper", "fa4", "fused_exponent=false"),
    ("fa4-hopper", "fa4", "log=lg2"),
    ("fa4-hopper", "fa4", "row_sum=tile-lanes"),
    ("fa4-hopper", "fa4", "DELTA.sum=octets16"),
    ("fa4-hopper", "fa4", "query_order=descending"),
    ("cudnn-fp8", "cudnn-fp8", "AL=fp64"),
    ("cudnn-fp8", "cudnn-fp8", "ds_apart=false"),
    ("cudnn-fp8", "cudnn-fp8", "DSR=fp32"),
    ("cudnn-fp8", "cudnn-fp8", "backward_keys=64"),
    ("cudnn-fp8-s256", "cudnn-fp8-s256", "offset_again=false"),
    ("cudnn-fp8-s256", "cudnn-fp8-s256", "offset=7"),
    ("cudnn-split", "sdpa-cudnn-one", "split_count=0"),
    ("cudnn-split", "sdpa-cudnn-one", "split_count=3"),
    ("cudnn-split", "sdpa-cudnn-one", "split_tiles=0"),
    ("sage-int8", "sage-int8", "smoothed_keys=false"),
    ("sage-int8", "sage-int8", "key_scales=false scaled_queries=false"),
    ("sage-int8", "sage-int8", "key_scales=false"),
    ("sage-int8", "sage-int8", "block_reciprocal=correct"),
    ("sage-int8", "sage-int8", "K=int8[64x128]"),
    ("sage-int8", "sage-int8", "fused_exponent=false unfused_if_cut=false"),
    ("sage-int8", "sage-int8", "PV.sum=hopper:fp16"),
    ("sage-int8", "sage-int8", "PV.sum=exact:fp16"),
]
"""A twin, a kernel that it is compared with, and a change that shows there."""


def some(changes):
    """The changes as parameters: those after the third of a kernel are left to thorough tests."""
    seen = Counter()
    for change in changes:
        seen[change[1]] += 1
        yield pytest.param(*change, marks=[pytest.mark.thorough] if seen[change[1]] > 3 else [])


@pytest.mark.parametrize(("twin", "kernel", "change"), list(some(CHANGES)))
def test_each_choice_of_a_twin_shows_in_its_bits(twin, kernel, change):
    """A choice that the stored calls cannot tell from its neighbor."""
    other = replace(TWINS[twin], make=lambda: TWINS[twin].plan.changed(change))
    causal = kernel not in FULL_ONLY
    found = [shares(other, family, causal, stored(kernel), kernel) for family in STORED_OF[kernel]]
    least = TWINS[twin].least
    assert min(x for parts in found for name, x in parts.items() if least.get(name, 1.0)) < 1.0


def test_a_softcap_gives_the_bits_of_its_kernel():
    """tanh correctly rounded, a softcap that scales the exponents, a chain of quotients."""
    twin = TWINS["fa4-hopper"]
    x, outputs = stored_call("fa4-softcap")
    assert set(shares_of(twin, x, outputs).items()) == {(n, 1.0) for n in ("out", "dq", "dk", "dv")}
    for change in ("tanh=correct", "cap_apart=false", "capped_by=chain"):
        other = replace(twin, make=lambda words=change: twin.plan.changed(f"softcap=20 {words}"))
        assert min(shares_of(other, x, outputs).values()) < 1.0, change


@pytest.mark.parametrize("causal", [False, True])
def test_scales_enter_l_as_in_their_kernel(causal):
    """A scale of the scores that is not rounded with ln 2."""
    twin, outputs = TWINS["fa3-e4m3"], stored("fa3-fp8-descaled")
    assert set(shares(twin, "ragged32", causal, outputs, "fa3-fp8-descaled").values()) == {1.0}
    other = replace(twin, make=lambda: twin.plan.changed("log=lg2"))
    found = shares(other, "ragged32", causal, outputs, "fa3-fp8-descaled")
    assert found["out"] == 1.0 and found["lse"] < 1.0


@pytest.mark.parametrize("family", STORED)
def test_compiled_code_on_two_tiles(family):
    """The released code's first query tile divides by another row sum than the second."""
    twin = replace(TWINS["qiu-yao-compiled"], tiles=always(256, 256))
    found = shares(twin, family, True, stored("released-compiled-256"))
    assert found["out"] == found["dq"] == found["dk"] == 1.0 and found["dv"] >= 0.9999


@pytest.mark.parametrize("family", STORED)
def test_compiled_code_on_two_tiles_without_a_mask(family):
    """In its first query tile l is multiplied by alpha of the maxima before they are rounded."""
    plan = TWINS["qiu-yao-compiled"].plan.changed("rescaled_sum=first-tile")
    twin = replace(TWINS["qiu-yao-compiled"], tiles=always(256, 256), make=lambda: plan)
    found = shares(twin, family, False, stored("released-compiled-256"))
    assert found["out"] == 1.0 and min(found.values()) >= 0.9999


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
