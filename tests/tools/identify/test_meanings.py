"""identify says nothing false: every head is compared, and meanings are tried before roundings."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from roundscope import emu
from roundscope.attention import Plan
from roundscope.attention.testing.exact import exact
from roundscope.tools.identify import candidates, search
from roundscope.tools.identify.candidates import Candidate
from roundscope.tools.identify.identify import Kind, identify
from roundscope.tools.identify.meanings import exact_rows
from roundscope.tools.identify.trial import base_of_lse, blind_rows, trial
from tests.checks.identify_faults import FA2, call, of_meaning, ran

MEANINGS = (
    "window of 65",
    "causal by one",
    "bottom-right",
    "causal forgotten",
    "scale 1/H",
    "softcap forgotten",
    "sinks forgotten",
    "V's scale forgotten",
    "last partial tile lost",
    "key heads reversed",
)


@cache
def faults():
    return {fault.name: fault for fault in of_meaning()}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_meaning_is_named(name):
    """A call whose kernel computes another attention was "No rounding explains this", no more."""
    fault = faults()[name]
    meant = trial(fault.x, fault.outputs)
    assert fault.says[0] in meant.words, (meant.words, meant.nearest)
    assert meant.error < 3e-3 < 3 * meant.error < meant.given


def test_a_right_call_has_no_other_meaning():
    """No meaning is tried where the call's own explains the output: so none can be invented."""
    x = call()
    meant = trial(x, ran(x))
    assert (meant.words, meant.tried) == ("", 0) and meant.is_rounded


def test_two_meanings_together():
    """A mask that is aligned at the other corner, and another scale."""
    x = call(tokens=64)
    below = np.tri(64, 192, 128, dtype=bool)[None, None]
    meant = trial(x, ran(replace(x, mask=below, is_causal=False, scale=1 / 32)))
    assert "aligned bottom-right" in meant.words and "scale = 1 / H = 1/32" in meant.words


def test_a_scale_and_a_factor_together():
    """Descales that nobody gave, which no single number explains."""
    x = call()
    outputs = ran(replace(x, scale=x.scale * 0.75 * 1.25))
    meant = trial(x, replace(outputs, out=outputs.out * np.float32(0.625)))
    assert "times the call's, and the output is multiplied by 0.62" in meant.words
    assert "which is 0.93" in meant.words and not meant.is_call
    assert meant.error < 3e-3 < 3 * meant.error < meant.given


@pytest.mark.parametrize("more", [{}, {"softcap": 5.0}, {"window": 9}, {"causal": False}])
def test_the_exact_rows_are_those_of_the_judge(more):
    """The meaning's own equations against the exact attention of tests."""
    x = call(**more)
    one = replace(x, **{n: getattr(x, n)[:, :, :1] for n in ("q", "k", "v", "do")})
    np.testing.assert_allclose(
        exact_rows(one, np.arange(192)), exact(one).out, rtol=1e-12, atol=1e-13
    )


def answer(x, outputs, budget=0):
    return identify(x, outputs, lambda text: None, budget)


def bumped(outputs, *place):
    """One number of an output of BF16, some ulps larger."""
    outputs.out[place] = emu.round_to(outputs.out[place] * np.float32(1 + 2**-5), "bf16")
    return outputs


def test_a_head_that_differs_is_named():
    """One number of head 1 was within 0.9999, and head 0 stood for the file: "these are"."""
    x = call()
    found = answer(x, bumped(ran(x, block_k=128), 0, 7, 1, 3))
    assert found.kind is Kind.NEAR and "These are the numbers" not in found.verdict
    assert "1 of 12,288 numbers of out differs (head 1 of 2), first at head 1, token 7" in (
        found.verdict
    )
    assert any(note.startswith("batch entry 0, head 1, searched for alone") for note in found.notes)


def test_one_number_of_the_only_head_is_not_the_same():
    """0.9998 of the bits was "these are the numbers of" it."""
    x = call()
    x = replace(x, **{n: getattr(x, n)[:, :, :1] for n in ("q", "k", "v", "do")})
    found = answer(x, bumped(ran(x, block_k=128), 0, 100, 0, 3))
    assert found.kind is Kind.NEAR and "1 of 6,144 numbers of out differs" in found.verdict


def test_infinite_numbers_come_first():
    """Numbers that are not finite were not mentioned where some plan was near."""
    x = call()
    outputs = ran(x)
    outputs.out[0, 100:, 0, 3] = np.inf
    found = answer(x, outputs)
    assert found.verdict.startswith(
        "92 of 12,288 numbers of out are infinite, first at batch entry 0, head 0, token 100,"
        " feature 3; the nearest plan differs in 92 such places."
    )
    assert found.errors.kernel == np.inf and found.kind is Kind.NO_ROUNDING


def test_rows_without_keys_are_told_of():
    """They are left out of every comparison, and what stands there is said."""
    x = call(mask=np.arange(192)[None, None, :, None] * np.ones((1, 1, 1, 192)) >= 5)
    outputs = ran(x)
    mean = x.v.mean(1)
    outputs.out[:, :5] = mean[:, None]
    assert blind_rows(x, outputs) == (
        "10 of 384 rows see no key and were not compared; the kernel returns the mean of V: a"
        " finite number stands for -inf there"
    )
    outputs.out[:, :5] = 0.0
    assert "returns 0 there" in blind_rows(x, outputs)


@pytest.mark.parametrize(("factor", "base"), [(1.0, "base e"), (np.log2(np.e), "base 2")])
def test_the_base_of_l_is_told(factor, base):
    x = call()
    s = x.scale * np.einsum("bthe,bshe->bhts", x.q.astype("f8"), x.k.astype("f8"))
    s = np.where(np.tri(192, dtype=bool), s, -np.inf)
    l = np.log(np.exp(s).sum(-1)) * factor
    assert f"lse of head 0 is in {base}" in base_of_lse(x, l)
    l[0, 0, 7] = np.nan
    assert "of the others; 1 of 192 row sums is NaN" in base_of_lse(x, l)


def words(changes):
    return {c.change for c in changes}


def test_what_is_tried():
    """Modes, an event that only another structure has, tiles of 96, chunks: none of them was."""
    math = Candidate(plan=Plan.preset("sdpa-math"), block_k=192)
    tried = list(candidates.backward_changes(math))
    wanted = math.plan.changed("saved_p=false", "S_B=fp16")
    assert any(replace(c.plan, name=wanted.name) == wanted for c in tried)
    assert {"LSE=bf16", "DQ.sum DK.sum DV.sum: chunks of 64"} <= words(tried)
    fa2 = Candidate(plan=FA2, block_k=64)
    assert {"P=bf16:toward-zero", "OUT=bf16:to-odd", "pv_into_o=false PV=bf16"} <= words(
        candidates.forward_changes(fa2)
    )
    assert {96, 208} <= {c.block_k for c in candidates.tilings(fa2, 512)}
    compiled = Candidate(plan=Plan.preset("qiu-yao-compiled"), block_k=192)
    assert "first_tile_apart=false" in words(candidates.forward_changes(compiled))


def test_a_budget_counts_plans(monkeypatch):
    """It was in seconds, so that a busy machine gave another answer: now no clock decides."""
    monkeypatch.setattr("time.monotonic", lambda: pytest.fail("a clock was asked"))
    x = call()
    x = replace(x, **{n: getattr(x, n)[:, :, :1] for n in ("q", "k", "v", "do")})
    noise = np.random.default_rng(0).standard_normal(x.q.shape).astype(np.float32)
    found = search.forward(x, ran(x).out * (1 + np.float32(2**-8) * noise), lambda text: None, 30)
    assert found.stopped and found.tried == 30 + len(list(search.structures(x, {"out": noise})))


def test_outputs_of_other_tiles_and_heads():
    """Tiles of 96 were not tried, and several heads tell plans apart that one head does not."""
    x = call()
    found = answer(x, ran(x, block_k=96), budget=search.MOST)
    assert (found.kind, found.base, found.best.block_k) == (Kind.SAME, "fa2-bf16", 96)


def test_gradients_are_named_apart():
    """A plan of the forward whose gradients are others is not "these are", of all results."""
    x = call()
    x = replace(x, **{n: getattr(x, n)[:, :, :1] for n in ("q", "k", "v", "do")})
    made = ran(x, block_k=128, backward=True)
    found = answer(x, replace(made, dv=made.dv * np.float32(2.0)))
    assert found.kind is Kind.SAME and "Its gradients are" in found.verdict
    assert "all 6,144 numbers of dq are equal" in found.verdict
