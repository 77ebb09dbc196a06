"""Where a call stops being finite: the first event, its place, the number before it, the repair.

Keys of zeros make every P 1, so that O is a sum of numbers of V, which is known by hand.
"""

import numpy as np
import pytest

from roundscope import Injection, Plan, SetTo, error_budget, examine
from roundscope.attention.budget.origin import not_finite
from roundscope.emu.stats.comparison import relative_rms

TOKENS, LARGE = 8, 2.0**14  # four of LARGE are 65536, which is infinite in FP16


def call(b=2, n=2, h=4, feature=3):
    """Zero scores, and a large number in one feature of V, in the last head of the last entry."""
    q, k = np.zeros((2, b, TOKENS, n, h), np.float32)
    v, do = np.ones((2, b, TOKENS, n, h), np.float32)
    v[-1, :, -1, feature] = LARGE
    return q, k, v, do


def narrow(*changes, name="fa2-bf16"):
    return Plan.preset(name).changed(*changes)


def test_a_running_output_in_fp16():
    """An infinite output without the event, the tile and the number that made it so."""
    found = not_finite(*call(), plan=narrow("O=fp16"), block_k=2, is_causal=True)
    assert str(found).startswith("5 of 128 outputs are infinite")  # tokens 3 to 7
    begin = found.origin
    assert (begin.event, begin.value, begin.largest) == ("O", 65536.0, 65504.0)
    assert begin.place == {
        "batch entry": 1,
        "head": 1,
        "key tile": 1,
        "token": 3,
        "feature": 3,
    }
    assert found.avoided_by == ("O=fp32",) and not begin.is_exact
    assert (
        "first at O: batch entry 1, head 1, token 3, feature 3, from key tile 1 on; the value"
        " before it is 65,536, the largest number of fp16 is 65,504; O=fp32 avoids it."
    ) in str(found)


@pytest.mark.parametrize(
    ("order", "tile"), [("ascending", 1), ("descending", 2), ("masked-first", 0)]
)
def test_tiles_count_in_the_order_of_the_plan(order, tile):
    """The last tile, which sees infinity, named as the first one in a plan that begins there.

    Token 7 sees eight keys in four tiles; two tiles add up to 65536. With the tile that causality
    cuts first, the second one is tile 0.
    """
    q, k, v, _ = call()
    plan = narrow("O=fp16", f"key_order={order}")
    mask = np.zeros((1, 1, TOKENS, TOKENS), bool)
    mask[..., 7, :] = True
    begin = not_finite(q, k, v, plan=plan, block_q=2, block_k=2, is_causal=True, mask=mask).origin
    assert begin.event == "O" and begin.value == 65536.0
    assert (begin.place["token"], begin.place["key tile"]) == (7, tile)


def test_a_step_inside_a_sum():
    """A sum that overflows at an addition, of which its event sees infinity alone."""
    plan = narrow("PV.sum=ascending:fp16")
    begin = not_finite(*call()[:3], plan=plan).origin
    assert (begin.event, begin.value, begin.is_exact) == ("PV.step", 8 * LARGE, True)


def test_every_event_that_needs_it_is_widened():
    """A repair that only moves the overflow to the next event."""
    q, k, v, do = call()
    found = not_finite(q, k, v, do, plan="all:fp16", block_k=4)
    healed = examine(
        q, k, v, do, plan=Plan.preset("all:fp16").changed(*found.avoided_by), block_k=4
    )
    assert "O=fp32" in found.avoided_by
    assert all(np.isfinite(getattr(healed, n)).all() for n in ("out", "dq", "dk", "dv"))


def test_scores_beyond_binary32():
    q, k, v, _ = call()
    q[0, 5, 0], k[0, 2, 0] = 1e20, 1e20
    found = not_finite(q, k, v, plan="fp32", scale=1.0)
    begin = found.origin
    assert begin.event == "S.step" and begin.value == pytest.approx(4e40)
    assert begin.place == {"batch entry": 0, "head": 0, "token": 5, "key": 2, "key tile": 0}
    assert "S=fp64" in found.avoided_by


def test_masked_scores_do_not_count():
    """The event of a score that nobody sees, in place of the one that loses the output.

    Token 3 sees four keys, whose V add up to 65536; its score with key 5 is beyond binary32.
    """
    q, k, v, _ = call()
    q[..., 0], k[1, 5, 1, 0] = 1e20, 1e20
    found = not_finite(q, k, v, plan=narrow("O=fp16"), scale=1.0, is_causal=True)
    assert found.lost["out"].first == (1, 3, 1, 3)
    assert (found.origin.event, found.origin.value) == ("O", 65536.0)


@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize(
    ("site", "lost"), [("P", "out"), ("DQ", "dq"), ("DV_OUT", "dv"), ("DELTA", "delta")]
)
def test_an_injected_number(site, number, lost):
    at = Injection(site=site, what=SetTo(value=number), batch=1, heads=1, rows=2)
    found = not_finite(*call(), plan="fp32", inject=at)
    assert next(iter(found.lost)) == lost and found.origin.event == site
    assert found.origin.injected and found.avoided_by == ()
    head = "key head" if site == "DV_OUT" else "head"
    assert (found.origin.place["batch entry"], found.origin.place[head]) == (1, 1)


def test_inputs():
    """NaN that exact attention has too: counted and placed, and no error."""
    q, k, v, do = call()
    k[1, 3, 0, 2] = np.nan
    found = not_finite(q, k, v, do, plan="fa2-bf16")
    assert not found.lost and found.shared["out"].count == TOKENS * 4
    assert "1 of 128 numbers of k is NaN, at batch entry 1, key head 0, key 3" in str(found)


def test_finite_results_have_none():
    assert not_finite(*call(), plan="fp32") is None
    mask = np.ones((1, 1, TOKENS, TOKENS), bool)
    mask[..., 2, :] = False  # a row without a key, whose L is -inf
    assert not_finite(*call(), plan="fp32", mask=mask) is None


def test_fp8_is_nan_without_saturation():
    plan = narrow("V=e4m3fn:ties-to-even:nan", name="fp32")
    begin = not_finite(*call()[:3], plan=plan).origin
    assert (begin.event, begin.value, begin.largest) == ("V", LARGE, 448.0)


def test_an_infinite_error_has_no_shares():
    """Percents of an infinite error, such as 255543 %, and an error of 0 for a NaN gradient."""
    budget = error_budget(*call(), plan=narrow("O=fp16"), block_k=2)
    text = str(budget).splitlines()
    assert text[0].startswith("8 of 128 outputs are infinite")
    assert all(np.isinf(budget.total[n]) for n in ("out", "dq", "dk"))
    assert np.isnan(budget.gain["out"]) and np.isnan(budget.interaction("out"))
    line = budget.largest("out")
    assert line.part.name == "O" and line.rescues("out", budget.total)
    assert budget.share(line, "out") == np.inf
    assert all(budget.share(x, "out") == 0.0 for x in budget.lines if x is not line)
    cells = next(x for x in text if x.startswith("O "))
    assert cells.split()[2] == "inf"


def test_the_numbers_of_heads_are_those_of_the_call():
    budget = error_budget(*call(b=1, n=4), plan=narrow("O=fp16"), block_k=2, heads=2)
    assert budget.heads == (0, 3) and budget.not_finite.origin.place["head"] == 3


@pytest.mark.parametrize("what", ["ulps=2", "noise=2", "flip=0", "bias=0.01", "set=1"])
def test_injections_are_what_the_results_change_by(what):
    """Errors in ulps of binary64, which are none, and a flipped bit that binary64 refuses.

    The expected numbers are those of two runs of the plan.
    """
    random = np.random.default_rng(1)
    q, k, v, do = random.standard_normal((4, 1, 16, 2, 8)).astype(np.float32)
    budget = error_budget(q, k, v, do, plan="fa2-bf16", inject=f"OUT:{what}")
    x = [a.astype(np.float64) for a in (q, k, v, do)]
    own = examine(*x, plan="fa2-bf16", inject=f"OUT:{what}")
    plain, exact = (examine(*x, plan=name) for name in ("fa2-bf16", "exact"))
    line = next(x for x in budget.lines if x.part.name == "injected")
    for name in ("out", "dq", "dk"):
        moved = getattr(own, name) - getattr(plain, name)
        size = np.sqrt(np.square(getattr(exact, name)).sum())
        assert line.alone[name] == pytest.approx(np.sqrt(np.square(moved).sum()) / size)
        assert line.without[name] == relative_rms(getattr(plain, name), getattr(exact, name))
    assert line.alone["dv"] == 0.0 and line.is_change
    assert abs(budget.interaction("out")) < 0.25
    out = next(x for x in budget.lines if x.part.name == "OUT")
    if what.split("=")[0] in ("ulps", "noise", "flip"):  # in units of the format of OUT
        assert out.without is None
