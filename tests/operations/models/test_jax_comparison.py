"""Comparing two runs of a tiny Llama of JAX: the operation that makes them differ, and no other."""

import jax
import numpy as np
import pytest

from roundscope.jax import Side, compare
from roundscope.operations.models.align import Incomparable
from roundscope.operations.models.jax.recording import record
from roundscope.operations.models.replay import same
from tests.operations.models import jax_small as small

WEIGHTS, IDS = small.parameters(), small.tokens()


@pytest.fixture(autouse=True)
def promotion():
    """The one that users have, and JAX's own attention needs."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def side(function=small.llama, ids=IDS, **of):
    return Side(function, ids, WEIGHTS, **of)


def made_here(found):
    return {row.operation for row in found.rows if row.made == "here"}


def test_equal_runs_are_equal():
    """Whose operations are all known, and give the bits of the function itself."""
    found = compare((small.llama, WEIGHTS, IDS), (small.llama, WEIGHTS, IDS))
    assert found.equal and not found.groups and found.unknown == 0
    # the embedding, a table, two layers of 2 norms, 7 linear, 2 rope, attention, 2 adds, silu, mul
    count = 2 + 2 * 16 + 2
    assert found.sentence == (
        f"The two runs are equal: {count} operations, 31 log-probabilities, every bit."
    )
    tape = record(side())
    assert same(tape.numpy(tape.logits), np.asarray(small.llama(WEIGHTS, IDS)))
    made = {e.module: e.operation for e in tape.counted if e.module.endswith(("down", "_norm"))}
    kinds = ("input_norm", "rms_norm"), ("post_norm", "rms_norm"), ("down", "linear")
    assert made == {f"layers.{i}.{name}": kind for i in range(2) for name, kind in kinds}


PAIRS = {
    "rms_norm": {"norm": small.late_rms_norm},
    "rope_table": {"table": small.BF16},
    "add": {"residual": small.FP32},
    "attention": {"attention": small.eager_attention},
    "linear": {"down": small.split_linear},
    "linear fp8": {"down": small.fp8_linear},
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_culprit_is_named_alone(name):
    other = small.changed(**PAIRS[name])
    found = compare(side(), side(other))
    assert made_here(found) == {name.split()[0]}
    (group,) = found.groups
    assert group.share == pytest.approx(1, abs=1e-12) and abs(found.left) < 1e-12
    assert group.a != group.b
    x, y = (small.exact_logprobs(f(WEIGHTS, IDS), IDS) for f in (small.llama, other))
    np.testing.assert_allclose(found.gap, y - x, rtol=0, atol=1e-12)


def test_shares_of_two_culprits_are_those_of_the_models():
    """Shapley's values, from four models with one change, both or none."""
    norm, split = {"norm": small.late_rms_norm}, {"down": small.split_linear}
    none, one, two, both = (
        small.exact_logprobs(small.llama(WEIGHTS, IDS, **of), IDS)
        for of in ({}, norm, split, norm | split)
    )
    gap = both - none
    worth = [float((x - none) @ gap / (gap @ gap)) for x in (one, two)]
    of_norm = (worth[0] + 1 - worth[1]) / 2
    found = compare(side(), side(small.changed(**norm, **split)))
    shares = {group.name: group for group in found.groups}
    assert set(shares) == {"rms_norm", "linear down"}
    assert shares["rms_norm"].share == pytest.approx(of_norm, abs=1e-9)
    assert shares["rms_norm"].alone == pytest.approx(worth[0], abs=1e-9)
    assert shares["linear down"].share == pytest.approx(1 - of_norm, abs=1e-9)


def test_what_either_side_does_is_told():
    found = compare(side(), side(small.changed(norm=small.late_rms_norm)))
    (group,) = found.groups
    assert group.a.endswith("mul, to bfloat16, mul")
    assert group.b.endswith("mul, to float32, mul, to bfloat16")


def test_log_softmax_in_bf16():
    sides = [side(logprobs=small.log_softmax(dtype)) for dtype in (small.FP32, small.BF16)]
    found = compare(*sides)
    assert made_here(found) == {"log_softmax"} and found.kl == 0 and found.unknown == 0
    ids, logits = IDS, small.llama(WEIGHTS, IDS)
    x, y = (np.asarray(s.logprobs(logits, ids)[0], np.float64) for s in sides)
    np.testing.assert_array_equal(found.gap, y - x)


def test_a_batch_of_which_the_run_is_a_row():
    ids = small.tokens(3)
    found = compare(side(), side(ids=ids))
    assert made_here(found) <= {"attention", "linear"} and abs(found.left) < 1e-12


def test_other_tokens_and_weights_are_refused():
    with pytest.raises(Incomparable, match=r"tokens: .*first differ in row 0 at token 3"):
        compare(side(), side(ids=IDS.at[0, 3].set(IDS[0, 3] ^ 1)))
    other = WEIGHTS | {"norm": WEIGHTS["norm"] + 2}
    with pytest.raises(Incomparable, match="1 of 21 parameters differ, norm most, by up to 2"):
        compare(side(), Side(small.llama, IDS, other))


def test_a_jitted_run_has_one_operation_more_where_it_differs():
    """What XLA does across operations is put in, and is nothing without excess precision."""
    compiled = jax.jit(small.llama)
    found = compare(side(), side(compiled))
    x, y = (small.exact_logprobs(f(WEIGHTS, IDS), IDS) for f in (small.llama, compiled))
    np.testing.assert_allclose(found.gap, y - x, rtol=0, atol=1e-12)
    assert abs(found.left) < 1e-12
    if (x != y).any():
        assert "whole_program" in made_here(found)
