"""`assert_as_good_as` on users' kernels: what it accepts, its message, and wrong arguments."""

import functools

import numpy as np
import pytest

from roundscope.attention.plans.plan import Plan
from roundscope.attention.testing.assertions import SHOWN, assert_as_good_as, message, name_of
from roundscope.attention.testing.comparison import Comparison
from roundscope.attention.testing.errors import Gross, Margins
from tests.checks.mutants import faults_kernel
from tests.checks.mutants.reference import attention

SMALL = {"library": "numpy", "tokens": 16, "features": 8, "block_q": 16, "block_k": 16}


def test_a_good_kernel_passes():
    """A good kernel that fails, or a family or a result that is left out."""
    kinds = ("gaussian", "sink", "ties")
    found = assert_as_good_as(attention, "fa2-bf16", kinds, is_causal=True, **SMALL)
    assert found.is_fine and found.plan == "fa2-bf16"
    assert {f.inputs for f in found.findings} == set(kinds)
    assert {f.result for f in found.findings} == {"out", "dq", "dk", "dv"}
    assert min(found.equal.values()) > 0.9


def test_a_kernel_by_its_name_and_a_plan_as_an_object():
    """Arguments that are documented and do not work."""
    name = "tests.checks.mutants.reference:attention"
    found = assert_as_good_as(name, Plan.preset("fa2-bf16"), "gaussian", backward=False, **SMALL)
    assert list(found.equal) == ["out"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_types_are_compared_with_plans_of_the_type(dtype):
    """A BF16 kernel that passes for one of a finer type."""
    plan = "fa2-bf16" if dtype == "float16" else "exact"
    with pytest.raises(AssertionError, match="the relative rms error is"):
        assert_as_good_as(attention, plan, "gaussian", dtype=dtype, **SMALL)


CAUSES = {
    "causal-strict": "a causal mask that hides a query's own key gives",
    "dq-not-scaled": "dq is the exact gradient times 1 / scale",
    "out-truncated": "OUT=bf16:toward-zero explains it",
}


@pytest.mark.parametrize("name", CAUSES)
def test_a_faulty_kernel_fails(name):
    """A fault that is not found, or a message whose first line does not say what it is."""
    kernel = faults_kernel.kernel_of(faults_kernel.CHANGES[name])
    with pytest.raises(AssertionError) as error:
        assert_as_good_as(kernel, "fa2-bf16", ("gaussian", "sink"), is_causal=True, **SMALL)
    first, reason, *_, last = str(error.value).splitlines()
    assert first.startswith("attention is not as good as fa2-bf16: ") and CAUSES[name] in first
    assert reason.startswith("  gaussian: ") and " at batch entry " in reason
    assert (" out: " in str(error.value)) == (name != "dq-not-scaled")
    assert last.startswith("  bits equal to the plan's: 0.") and last.endswith("40 heads compared")


def test_a_fault_within_given_margins_passes():
    """Margins that are ignored."""
    kernel = faults_kernel.kernel_of(faults_kernel.CHANGES["out-truncated"])
    wide = Margins(rms=9, row=9, bias=9, gross_rms=9, gross_row=99)
    assert assert_as_good_as(kernel, "fa2-bf16", "gaussian", margins=wide, **SMALL).is_fine


def test_grouped_heads():
    """A fault of groups only, on calls without any."""
    kernel = faults_kernel.kernel_of(faults_kernel.CHANGES["group-gradient-lost"])
    assert assert_as_good_as(kernel, "fa2-bf16", "gaussian", **SMALL).is_fine
    with pytest.raises(AssertionError, match=r"gaussian: d[kv]: the relative rms error"):
        assert_as_good_as(kernel, "fa2-bf16", "gaussian", key_heads=4, **SMALL)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"batch": 1, "heads": 2},
            r"batch \* heads \* draws = 8: \d+ independent heads are needed",
        ),
        ({"inputs": "gausian"}, "unknown family 'gausian'; did you mean 'gaussian'"),
        ({"plan": "fa2-bf61"}, "fa2-bf61"),
        ({"tokens": 0}, "tokens=0: must be 1 or more"),
    ],
)
def test_wrong_arguments_end_in_one_line(changed, words):
    """A comparison that says nothing, or a traceback from deep inside."""
    given = {"plan": "fa2-bf16", "inputs": "gaussian"} | SMALL | changed
    with pytest.raises(ValueError, match=words) as error:
        assert_as_good_as(attention, **given)
    assert "\n" not in str(error.value)


def test_names_in_messages():
    """A message about functools.partial."""
    assert name_of("module:function") == "module:function"
    assert name_of(functools.partial(functools.partial(attention), scale=1)) == "attention"
    assert name_of(np.float32(1.0)) == "the kernel"


def test_a_message_shows_the_worst_reasons():
    """Hundreds of lines, or the count of those left out wrong."""
    problem = {"inputs": "sink", "result": "dq", "head": (1, 2), "token": 3, "problem": "bad"}
    gross = [Gross(size=float(i), **problem | {"problem": f"bad {i}"}) for i in range(SHOWN + 3)]
    found = Comparison(plan="fa2", false_alarm=1e-4, gross=gross, equal={"out": 0.25}, heads=40)
    lines = message("mine", found).splitlines()
    assert lines[0] == "mine is not as good as fa2:"
    assert lines[1] == f"  sink: dq: bad {SHOWN + 2}, at batch entry 1, head 2, token 3"
    assert lines[-2:] == [
        "  and 3 more",
        "  bits equal to the plan's: 0.2500 of out; 40 heads compared",
    ]
    assert len(lines) == SHOWN + 3


def test_strict_asks_about_rows_without_keys():
    """Rows of padding that give the mean of V, in a kernel that is said to be right."""

    def kernel(blind):
        def masked(q, k, v, *, scale, is_causal, mask=None):
            out = attention(q, k, v, scale=scale, is_causal=is_causal, mask=mask)
            if mask is not None:
                sees = np.broadcast_to(mask, (*mask.shape[:2], *mask.shape[2:])).any(-1)
                out = np.where(sees[:, 0, :, None, None], out, blind)
            return out

        return masked

    options = {"tokens": 24, "features": 8, "library": "numpy", "backward": False}
    assert_as_good_as(kernel(0.0), "fa2-bf16", "gaussian", strict=True, **options)
    assert_as_good_as(kernel(1.0), "fa2-bf16", "gaussian", **options)
    with pytest.raises(AssertionError, match="rows that see no key: They give neither"):
        assert_as_good_as(kernel(1.0), "fa2-bf16", "gaussian", strict=True, **options)
