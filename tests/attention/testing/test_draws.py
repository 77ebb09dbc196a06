"""A comparison of given calls looks once, when all of them are there."""

from roundscope.attention.testing.comparison import compare
from roundscope.attention.testing.errors import UNITS, Margins
from roundscope.attention.testing.families import draw
from roundscope.attention.testing.reference import reference


def test_given_calls_are_all_made_whatever_the_first_shows():
    """Calls of a file that are left out after the first failure, or looks that nobody paid for."""
    seen, plan = [], reference("fa2-bf16", 8)

    def wrong(x):
        outputs = plan.outputs(x, backward=False)
        seen.append(x)
        return type(outputs)(out=outputs.out * 2)

    found = compare(
        wrong,
        plan,
        ["the file"],
        lambda kind, look: draw(seed=look, tokens=8, heads=20, features=8),
        draws=3,
        margins=Margins(),
        unit=UNITS["bfloat16"],
        stop=True,
        is_sequential=False,
    )
    assert len(seen) == 3 and found.looks == 3 and not found.is_fine


def test_a_plan_with_changes_keeps_the_tiles_of_its_kernel():
    """assert_as_good_as(kernel, "fa2; OD=fp32") in tiles of 128, which the kernel has not."""
    plain, changed = reference("cudnn"), reference("cudnn; OD=fp32")
    assert changed.tiles is plain.tiles and str(changed.plan["OD"]) == "fp32"
