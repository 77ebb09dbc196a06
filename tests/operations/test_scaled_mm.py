"""`linear` gives every bit of torch._scaled_mm in FP8 on a Hopper GPU: formats, scales, promotion,
split-K, a bias, and odd numbers. The digests are those of `tests.checks.gpu_scaled_mm`.
"""

import json

import numpy as np
import pytest

from roundscope.operations import run
from tests.checks.gpu_scaled_mm import GOLDEN, corner
from tests.checks.scaled_mm_cases import PROMOTED, calls, inputs, plan_words
from tests.operations.gpu_cases import digest

STORED = json.loads(GOLDEN.read_text())["cases"]
CALLS = {f"{n:03d}/{call.name}": call for n, call in enumerate(calls())}
LONG = pytest.mark.thorough
SHOWN = {  # in CI: a small call of each kind
    (call.group, call.scales, call.fast): name
    for name, call in CALLS.items()
    if "sha256" in STORED[name] and call.m * call.k * call.n < 2**23
}


def of_corner(call):
    """The inputs on which the kept results depend."""
    rows, results = corner(call)
    given = inputs(call)
    kept = {"x": rows, "x_scale": rows, "weight": results, "weight_scale": results, "bias": results}
    kept |= {"weight_scale": -(-results // 128)} if call.scales == "blocks" else {}
    return {name: x[: kept[name]] if x.ndim else x for name, x in given.items()}


def check(name):
    call, note = CALLS[name], STORED[name]
    given = of_corner(call)
    if call.scales == "blocks":  # a scale for each 128 results, of which the corner has 64
        results = len(given["weight"])
        given["weight_scale"] = given["weight_scale"].repeat(128, axis=0)[:results]
        given["weight_scale"] = given["weight_scale"] if call.k > 128 else given["weight_scale"][:1]
    found = run("linear", plan_words(call, note["splits"]), given).outputs["out"]
    assert digest(found) == note["sha256"], name


@pytest.mark.parametrize("name", sorted(SHOWN.values()))
def test_every_bit(name):
    """A subnormal number of the other format, a scale on the wrong side of a rounding or of an
    addition, a promotion inside a split, infinity that saturates.
    """
    check(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, note in STORED.items() if "sha256" in note])
def test_every_bit_of_every_call(name):
    """A plan whose bits differ from those of a recorded call that CI does not look at."""
    check(name)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=LONG if "4096" in n else ()) for n in PROMOTED]
)
def test_every_bit_of_a_kernel_that_promotes(name):
    """DeepSeek's order of the scales in Triton, or a sum that does not begin anew every 128
    features.
    """
    given = of_corner(PROMOTED[name])
    plan = "hopper-e4m3; promoted=128 scales_apart=true"
    found = run("linear", plan, given).outputs["out"]
    assert digest(found) == json.loads(GOLDEN.read_text())["promoted"][name]


def test_what_is_compared():
    """Digests of all calls; fewer are accepted where two E5M2 operands or a wide bias are given."""
    assert list(STORED) == list(CALLS)
    refused = {CALLS[name].group for name, note in STORED.items() if "refused" in note}
    assert refused == {"mixed", "bias", "fp8 results"}
    splits = [note["splits"] for note in STORED.values() if "sha256" in note]
    assert max(splits) == 25 and len(splits) == 272


def test_arithmetics_of_scales_differ():
    """Two ways to multiply by scales of blocks, which no digest would tell apart by chance."""
    call = next(c for c in CALLS.values() if c.scales == "blocks1d" and c.out == "fp32")
    given = of_corner(call)
    one, two = (
        run("linear", f"{plan_words(call)} scales_apart={how}", given).outputs["out"]
        for how in ("true", "false")
    )
    assert 0.2 < np.mean(one == two) < 0.8
