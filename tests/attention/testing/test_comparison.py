"""Comparisons of kernels with planted errors: each is found, in the right words, and no other."""

import numpy as np
import pytest

from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.comparison import State, check_heads, compare, level_of
from roundscope.attention.testing.errors import UNITS, Margins, all_gross
from roundscope.attention.testing.families import draw
from tests.attention.testing.planted import PLAN, exactly, kernel, only, remembered, rms

KINDS = ("gaussian", "sink")
HEADS = 40


SIGNED = ("one-signed-v",)
SHORT = remembered(changes=("mode.P=toward-zero",))  # its output is too short


def drawn(kind, look):
    """Small calls of 40 heads."""
    return draw(kind, seed=look, batch=5, tokens=16, heads=8, features=8)


def compared(function, kinds=KINDS, draws=4, plan=PLAN, margins=None, **options):
    """A comparison of a kernel with the plan."""
    margins, unit = margins or Margins(), UNITS["bfloat16"]
    return compare(function, plan, kinds, drawn, draws=draws, margins=margins, unit=unit, **options)


def asked(found):
    """The questions that have an alarm: result, statistic and direction."""
    return {(f.result, f.statistic, f.direction) for f in found.alarms}


def test_the_plan_is_as_good_as_itself():
    """A kernel with every bit of the plan that fails, or for which more than one draw is made."""
    found = compared(kernel())
    assert found.is_fine and found.worst() == []
    assert found.equal == dict.fromkeys(("out", "dq", "dk", "dv"), 1.0)
    assert (found.looks, found.heads, found.undecided) == (1, 2 * HEADS, 0)
    assert len(found.findings) == 2 * 4 * 6


GAIN = 0.2  # of the relative rms error: ten margins, but 2 % of the rms error
STATISTICS = {
    "too long": (("gain", 1), lambda own, want: own + GAIN * rms(own, want) * want),
    "too short": (("gain", -1), lambda own, want: own - GAIN * rms(own, want) * want),
    "too high": (("mean", 1), lambda own, want: own + _shift(own, want)),
    "too low": (("mean", -1), lambda own, want: own - _shift(own, want)),
    "its relative rms error": (("rms", 1), lambda own, want: want + 1.2 * (own - want)),
    "the error of its worst row": (("row", 1), lambda own, want: _worst_row(own, want)),
}


def _shift(own, want):
    return GAIN * rms(own, want) * np.abs(want).mean((1, 3), keepdims=True)


def _worst_row(own, want):
    """The result with the worst row of each head further from the exact one, the others nearer."""
    size = np.linalg.norm(want, axis=3)
    usual = np.sqrt(np.square(size).mean(1, keepdims=True))
    off = np.linalg.norm(own - want, axis=3) / np.maximum(size, usual / 32)
    worst = off == off.max(1, keepdims=True)
    return want + (own - want) * np.where(worst, 1.9, 0.7)[..., None]


@pytest.mark.parametrize("result", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("words", STATISTICS)
def test_a_planted_error_is_found(words, result):
    """An error of every head that is missed, or found as an error of another kind or result."""
    (statistic, direction), change = STATISTICS[words]
    found = compared(kernel(only(result, change)), draws=1, stop=False)
    assert not found.gross
    assert (result, statistic, direction) in asked(found)
    assert {name for name, *_ in asked(found)} == {result}
    assert (result, statistic, -direction) not in asked(found)
    sentences = [s for s in found.worst() if words in s]
    assert any(s.startswith("gaussian: ") and f"{result}: " in s for s in sentences)
    assert any(f"({HEADS} heads, z = " in s for s in sentences)


@pytest.mark.parametrize("words", ["too long", "too low", "the error of its worst row"])
def test_an_error_within_the_margin_is_accepted(words):
    """Margins that are not those that were given."""
    _, change = STATISTICS[words]
    wide = Margins(rms=1.5, row=10.0, bias=1.0, gross_row=1e3)
    assert compared(kernel(only("out", change)), margins=wide).is_fine


def _in_one_head(change):
    """A change in entry 3, head 5 only."""

    def one(own, want):
        own[3, :, 5] = change(own.copy(), want)[3, :, 5]
        return own

    return one


def _row_off(own, want):
    own[:, 7] = 1.5 * want[:, 7]
    return own


def _nan(own, want):
    own[:, 4:6, :, 1] = np.nan
    return own


ONE_HEAD = {
    "the relative rms error is": lambda own, want: want + 3 * (own - want),
    "the error of the worst row is": _row_off,
    "2 of 5,120 numbers are NaN": _nan,
    "the relative rms error is 0.05": lambda own, want: 1.05 * want,
    "the relative rms error is ": lambda own, want: want - np.abs(want).mean() / 10,
}


@pytest.mark.parametrize("result", ["out", "dk"])
@pytest.mark.parametrize("words", ONE_HEAD)
def test_one_bad_head_of_forty_is_found(words, result):
    """A head that the mean over all heads hides, or the number of another head or token."""
    found = compared(kernel(only(result, _in_one_head(ONE_HEAD[words]))))
    reason = next(s for s in found.worst() if words in s)
    assert reason.startswith(f"gaussian: {result}: ")
    assert "at batch entry 3, head 5, token " in reason
    assert {(g.result, g.head) for g in found.gross} == {(result, (3, 5))}
    if "row" in words:
        assert reason.endswith("token 7")
    if "finite" in words:
        assert reason.endswith("token 4")


def test_numbers_that_are_not_finite_in_the_plan_either_are_no_fault():
    """A kernel that fails because it overflows where its plan does."""

    def infinite(name, own, want):
        return np.where(want == want.max(), np.inf, own) if name == "out" else own

    class Overflowing:
        plan = PLAN.plan

        def outputs(self, x, backward):
            return kernel(infinite)(x)

    assert compared(kernel(infinite), plan=Overflowing()).is_fine


def test_a_kernel_that_is_nearer_to_exact_than_the_plan_passes():
    """A kernel that fails because the bias of the plan is not its own."""
    found = compared(exactly, kinds=SIGNED, plan=SHORT)
    apart = {(f.result, f.statistic, f.direction): f.evidence.mean for f in found.findings}
    assert apart["out", "gain", 1] > 10 * Margins().bias, "the plan must be biased here"
    assert found.is_fine and found.undecided == 0
    assert compared(exactly).is_fine


def test_a_kernel_that_is_biased_the_other_way_fails():
    """A bias that passes because the plan has a smaller one of the other sign."""
    long = kernel(lambda name, own, want: want + 1.5 * (want - own), plan=SHORT)
    found = compared(long, kinds=SIGNED, plan=SHORT, stop=False)
    assert ("out", "gain", 1) in asked(found)


def test_a_gross_fault_ends_the_comparison():
    """Minutes of draws after the first call has shown that the kernel is wrong."""
    calls = []

    def wrong(x):
        calls.append(x)
        return kernel(only("out", lambda own, want: -own))(x)

    found = compared(wrong)
    assert (len(calls), found.looks, found.heads) == (1, 1, HEADS)
    calls.clear()
    compared(wrong, stop=False, draws=1)
    assert len(calls) == 2


def test_draws_go_on_while_a_question_is_open():
    """A small difference that more heads would have shown."""
    rng = np.random.default_rng(0)

    def noisy(own, want):
        """Errors whose size changes from head to head, on average a little larger."""
        factors = np.exp(0.08 + 0.3 * rng.standard_normal((5, 1, 8, 1)))
        return want + factors * (own - want)

    margins = Margins(gross_rms=10, gross_row=100, row=10, bias=10)
    short, long = (
        compared(kernel(only("out", noisy)), KINDS[:1], draws=n, margins=margins) for n in (1, 6)
    )
    assert short.looks == 1 and short.is_fine and short.undecided == 1
    assert long.looks > 1


def test_all_calls_are_judged_at_once_where_they_are_given():
    """A file with several layers that is judged by its first."""
    found = compared(kernel(), draws=3, is_sequential=False)
    assert (found.looks, found.heads) == (3, 3 * 2 * HEADS)


def test_a_kernel_without_gradients():
    """A kernel of the forward that fails for want of dQ."""
    found = compared(lambda x: Outputs(out=PLAN.outputs(x, False).out))
    assert found.is_fine
    assert found.equal == {"out": 1.0}


def test_results_in_another_layout():
    """A message about broadcasting where the layout is wrong."""
    turned = kernel(lambda name, own, want: own.swapaxes(1, 2))
    with pytest.raises(ValueError, match=r"^kernel: out has shape .*; is the layout right\?$"):
        compared(turned)


def test_a_comparison_tells_what_runs():
    """A progress that stands still."""
    told = []
    compared(kernel(), tell=told.append)
    assert told == ["draw 1: gaussian", "draw 1: sink"]


def test_reasons_are_in_order_of_size():
    """A report that begins with the least of the problems."""

    def several(name, own, want):
        if name == "out":
            own[:, 3] *= 40
        if name == "dk":
            own[0, 0, 0, 0] = np.inf
        return own

    found = compared(kernel(several), stop=False, draws=1)
    sizes = [g.size for g in sorted(found.gross, key=lambda g: -g.size)]
    assert sizes[0] == np.inf and len(sizes) > 2
    assert "is infinite where the plan's are finite" in found.worst()[0]
    chances = [f.evidence.chance for f in found.alarms]
    assert chances == sorted(chances)
    assert all(f.evidence.state is State.ALARM for f in found.alarms)


def test_levels_share_the_rate():
    """A rate of false alarms that grows with the questions."""
    assert level_of(1e-4, 7, 4) * (7 * 4 * 4 * 6) == pytest.approx(1e-4)


def test_too_few_heads_are_refused():
    """A comparison that cannot fail, and says nothing of it."""
    check_heads(40, 1e-4, 14, 4)
    with pytest.raises(
        ValueError, match=r"^batch \* heads \* draws = 8: 32 independent heads"
    ) as e:
        check_heads(2, 1e-4, 7, 4)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("tokens", "is_found"), [(2, False), (16, True)])
def test_the_rms_error_of_few_tokens_may_be_that_of_one_rounding(tokens, is_found):
    """A good kernel that fails by luck on two tokens, or one that passes on many by this rule."""
    x = draw("gaussian", batch=1, tokens=tokens, heads=2, features=8)
    threefold = kernel(only("dq", lambda own, want: want + 3 * (own - want)))
    found = list(all_gross("", x, threefold(x), PLAN.outputs(x, True), Margins(), 2.0**-9))
    assert {g.result for g in found} == ({"dq"} if is_found else set())
