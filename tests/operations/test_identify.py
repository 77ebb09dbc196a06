"""`roundscope.operations.identify`: the plan that gave numbers is found or tied, and no other."""

import numpy as np
import pytest

from roundscope.emu import round_to
from roundscope.operations import OPERATIONS, identify, run
from roundscope.operations.identification.plans_tried import Tried
from roundscope.operations.run import TYPES, plan_of
from tests.checks.gpu_operations import made
from tests.checks.identify_operations import CI, PLANTED, QUICK, is_right, of_gpu, planted
from tests.operations.gpu_cases import golden


def norm(kind="bf16", rows=32, width=64):
    return {
        "x": made(1, (rows, width), kind, 1.5),
        "weight": made(2, (width,), kind, 0.2, 1.0),
    }


@pytest.mark.parametrize(
    "name", [n if n in CI else pytest.param(n, marks=pytest.mark.thorough) for n in PLANTED]
)
def test_a_planted_change_is_recovered(name):
    """Another order of a sum, a cast elsewhere, a rounding of the bias or of the logarithm."""
    assert is_right(*planted(name))


@pytest.mark.parametrize("name", QUICK)
def test_what_an_h100_computed_is_named(name):
    assert is_right(*of_gpu(name))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", sorted(n for n in golden() if "scaled_mm" not in n and n not in QUICK)
)
def test_all_that_an_h100_computed_is_named(name):
    assert is_right(*of_gpu(name))


def test_words_of_a_plan_give_its_bits():
    """A name that `run` reads otherwise, such as that of a plan made for another width."""
    given = norm("fp32")
    out = run("rms_norm", "torch-cuda-fp32; SS.sum=pairwise XC=bf16", given).outputs["out"]
    found = identify("rms_norm", given, {"out": out})
    assert found.is_found and found.compared == found.numbers == out.size
    for words in found.plans:
        assert np.array_equal(run("rms_norm", words, given).outputs["out"], out), words


WRONG = ("one ulp", "one infinite", "one NaN", "the sign of a zero")


@pytest.mark.parametrize(
    "wrong", [n if n == "one ulp" else pytest.param(n, marks=pytest.mark.thorough) for n in WRONG]
)
def test_one_wrong_number_has_no_name(wrong):
    given = norm()
    given["x"][3, 5] = 0.0
    out = run("rms_norm", "torch-cpu", given).outputs["out"].copy()
    bits = out.view(np.uint16)
    if wrong == "one ulp":
        bits[20, 7] += 1
    else:
        out[3, 5] = {"one infinite": np.inf, "one NaN": np.nan}.get(wrong, -0.0)
    found = identify("rms_norm", given, {"out": out})
    assert not found.is_found and not found.plans and not found.name
    assert found.sentence.startswith("No plan tried explains this: ")
    told = {
        "one ulp": "99.9 % of 2,048 numbers are equal to those of the nearest, torch-cpu;"
        " differences are one unit in the last place of BF16.",
        "one infinite": "1 of 2,048 numbers is infinite, unlike",
        "one NaN": "1 of 2,048 numbers is NaN, unlike",
        "the sign of a zero": "but 1 zeros have the other sign.",
    }
    assert told[wrong] in found.sentence


def test_infinite_and_nan_that_the_plan_has_are_equal():
    given = norm()
    given["x"][2] = 0.0
    given["x"][2, 0], given["x"][5, 1] = np.inf, np.nan
    out = run("rms_norm", "transformers-llama", given).outputs["out"]
    assert np.isnan(out).any()
    assert "transformers-llama" in identify("rms_norm", given, {"out": out}).plans


def test_a_missing_eps_is_named_as_such():
    given = norm("fp32")
    given["x"][::2] *= 1e-3
    out = run("rms_norm", "torch-cpu-fp32", given, settings={"eps": 0.0}).outputs["out"]
    found = identify("rms_norm", given, {"out": out}, settings={"eps": 1e-5})
    assert not found.is_found and found.settings == {"eps": 0.0}
    assert found.sentence.startswith("Explained if eps = 0.0: ")


@pytest.mark.thorough
def test_one_more_than_the_weight_is_gemma():
    given = norm()
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    exact = wide["x"] / np.sqrt((wide["x"] ** 2).mean(-1, keepdims=True) + 1e-6)
    out = round_to(exact * (1.0 + wide["weight"]), "bf16").astype(TYPES["bf16"])
    found = identify("rms_norm", given, {"out": out})
    assert "transformers-gemma" in found.plan and found.share > 0.99


@pytest.mark.thorough
def test_another_formula_has_no_name():
    given = norm()
    out = (given["x"].astype(np.float32) * 0.5).astype(TYPES["bf16"])
    found = identify("rms_norm", given, {"out": out})
    assert not found.is_found and found.share < 0.5


@pytest.mark.thorough
def test_several_calls_tell_more_than_one():
    """Orders of a sum that one row does not tell apart."""
    given = [norm("fp32", 2), {**norm("fp32", 2), "x": made(9, (24, 64), "fp32", 1.5)}]
    out = [{"out": run("rms_norm", "torch-cuda-fp32", x).outputs["out"]} for x in given]
    one, both = identify("rms_norm", given[0], out[0]), identify("rms_norm", given, out)
    assert len(both.plans) < len(one.plans)
    assert any(same("rms_norm", words, "torch-cuda-fp32") for words in both.plans)


def same(operation, a, b):
    keys = [Tried("", (), plan_of(OPERATIONS[operation], words)).key for words in (a, b)]
    return keys[0] == keys[1]


@pytest.mark.parametrize(
    ("given", "out", "told"),
    [
        ({"y": 1}, {"out": 1}, "input"),
        ({"x": np.ones((2, 8))}, {}, "outputs: none given"),
        ({"x": np.ones((2, 8))}, {"y": 1}, "output"),
        ({"x": np.ones((2, 8))}, {"out": np.ones((3, 8))}, "out of shape"),
        ({"x": np.ones((2, 8))}, {"out": np.ones((2, 4))}, "out of shape"),
        ([{"x": np.ones((2, 8))}], [], "outputs: of 0 calls"),
    ],
)
def test_what_does_not_fit_is_refused(given, out, told):
    with pytest.raises(ValueError, match=told):
        identify("rms_norm", given, out)


def test_probes_tell_ties_apart():
    """The rows that are chosen leave fewer plans, and never exclude the right one."""
    plan, given = "torch-cuda", {"x": made(1, (8, 64), "bf16", 1.5)}
    calls = []

    def kernel(inputs):
        calls.append(inputs["x"])
        return run("log_softmax", plan, inputs).outputs["out"]

    out = {"out": kernel(given)}
    alone, probed = (identify("log_softmax", given, out, call=f) for f in (None, kernel))
    assert 1 < len(calls) <= 4 and all(x.dtype == given["x"].dtype for x in calls)
    assert len(probed.plans) < len(alone.plans) and probed.numbers > alone.numbers
    assert any(same("log_softmax", words, plan) for words in probed.plans)


def test_a_function_that_returns_no_array_is_refused():
    given = {"x": made(1, (4, 64), "bf16")}
    out = run("silu", "torch-cpu", given).outputs
    with pytest.raises(TypeError, match="call: it returned 'x'"):
        identify("silu", given, out, call=lambda inputs: "x")


@pytest.mark.parametrize(
    ("device", "first"), [("cpu", "torch-cpu"), ("NVIDIA H100", "torch-cuda"), ("", "torch-cpu")]
)
def test_of_ties_the_plan_of_the_device_comes_first(device, first):
    """A kernel of a GPU in the name of what a CPU computed."""
    x = np.zeros((4, 8), np.float32)
    found = identify("softmax", {"x": x}, {"out": np.full_like(x, 0.125)}, device=device)
    assert found.plan.startswith(first) and any(t.startswith("torch-c") for t in found.ties)
    plain = [tie for tie in found.ties if "; " not in tie]
    assert all(tie in found.sentence for tie in plain)
