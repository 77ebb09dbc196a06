"""Sites of different operations, which are strings and may have the same name."""

import pytest

from roundscope.attention import Plan
from roundscope.attention.sites import Site
from roundscope.operations import OPERATIONS
from roundscope.operations.definitions import rms_norm
from roundscope.operations.run import plan_of, run


def test_a_site_of_another_operation_is_refused():
    """A plan of attention that takes the X of RMSNorm for its own exponent X."""
    assert rms_norm.Site.X == Site.X
    with pytest.raises(ValueError, match="another operation"):
        Plan.preset("fp32")[rms_norm.Site.X]  # type: ignore[index]
    with pytest.raises(ValueError, match="another operation"):
        rms_norm.torch_cpu().at(Site.X, "bf16")


def test_a_plan_of_another_operation_is_refused():
    """RMSNorm that runs with roundings of attention."""
    with pytest.raises(TypeError, match="another operation than rms_norm"):
        run("rms_norm", Plan.preset("fp32"), {"x": [[1.0]]})


@pytest.mark.parametrize(
    ("inputs", "settings", "told"),
    [
        ({}, {}, "rms_norm needs x"),
        ({"x": [[1.0]], "y": [[1.0]]}, {}, "unknown input of rms_norm 'y'"),
        ({"x": [[1.0]]}, {"epsilon": 1.0}, "unknown setting of rms_norm 'epsilon'"),
    ],
)
def test_wrong_arguments(inputs, settings, told):
    """A message that does not name the argument."""
    with pytest.raises(ValueError, match=told):
        run("rms_norm", "fp32", inputs, settings=settings)


def test_unknown_names():
    """A message that does not name the nearest operation or plan."""
    with pytest.raises(ValueError, match="did you mean 'rms_norm'"):
        run("rmsnorm", "fp32", {})
    with pytest.raises(ValueError, match="plan of rms_norm 'fp23'"):
        plan_of(OPERATIONS["rms_norm"], "fp23")
