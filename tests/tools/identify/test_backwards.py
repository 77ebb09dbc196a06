"""The backward of a call under many plans, and of a part of it: the numbers of `examine`."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention.engines import numpy as engine
from roundscope.attention.plans.twins import TWINS
from roundscope.attention.testing.calls import Inputs, Outputs
from roundscope.tools.identify import search
from roundscope.tools.identify.backwards import Backwards, has_parts
from roundscope.tools.identify.candidates import Candidate, emulated, options_of

TOKENS, WIDTH, HEADS, TILE = 160, 16, 2, 32


def drawn(*shape):
    x = np.random.default_rng(sum(shape)).standard_normal(shape)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def call(keys=TOKENS, **options):
    """A call of two query heads on one key head."""
    shapes = {"q": (TOKENS, HEADS), "k": (keys, 1), "v": (keys, 1), "do": (TOKENS, HEADS)}
    arrays = {n: drawn(1, *rows, WIDTH) for n, rows in shapes.items()}
    return Inputs(**arrays, **{"scale": 0.25, "is_causal": False, **options})


def of_twin(name):
    return Candidate(plan=TWINS[name].plan, block_q=TILE, block_k=2 * TILE)


@pytest.mark.parametrize(
    "name", ["fa2", "flex", "sdpa-efficient", "fa4-hopper", "tokamax-mosaic", "cudnn-fp8"]
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"is_causal": True, "window": 40},
        {"is_causal": True, "keys": TOKENS + 64, "alignment": "bottom-right"},
        {"mask": np.random.default_rng(1).random((1, HEADS, TOKENS, TOKENS)) < 0.9},
    ],
    ids=["full", "causal", "window", "bottom-right", "mask"],
)
def test_a_part_of_a_backward_has_the_numbers_of_the_whole(name, options):
    """The queries of one head, and some keys, stand where they stood, in the order of tiles."""
    x, c = call(**options), of_twin(name)
    want = emulated(c, x.q, x.k, x.v, x.do, **x.options)
    of = Backwards(x)
    for part, got in of.gradients(c).items():
        assert np.array_equal(got, getattr(want, part)), part
    assert has_parts(c.plan) == (True, True)
    rows = of.gradients(c, head=1, rows=slice(64, 96))["dq"]
    assert np.array_equal(rows, want.dq[:, 64:96, 1:])
    keys = of.gradients(c, keys=slice(64, 128))
    for part in ("dk", "dv"):
        assert np.array_equal(keys[part], getattr(want, part)[:, 64:128]), part


def test_keys_that_come_first_are_those_of_tiles_of_the_backward(monkeypatch):
    """Tiles of 48 keys where the forward's have 64: query tiles that are masked in one of them, and
    come first, are not masked in another.
    """
    monkeypatch.setattr(search, "PIECE", TILE)
    x, c = call(is_causal=True, window=100), of_twin("flex")
    c = replace(c, plan=c.plan.changed("backward_keys=48 DK_OUT=fp32 DV_OUT=fp32"))
    want = emulated(c, x.q, x.k, x.v, x.do, **x.options)
    gradients = search._Gradients(x, Outputs(out=want.out, dk=want.dk, dv=want.dv))
    for key in range(0, TOKENS, TILE):
        one = np.zeros(want.dk.shape, bool)
        one[0, key, 0, 0] = True
        # a single number of the best differs, so a plan is nearer if none of its numbers does
        assert gradients._of_keys({"dk": one, "dv": np.zeros_like(one)})(c), key


def scaled_call(**scales):
    """A call whose q, k and v are multiplied by these scales, each of one key head."""
    return call(scales={n: np.full((1, 1), x, np.float32) for n, x in scales.items()})


@pytest.mark.parametrize("name", ["fa2", "cudnn-fp8"])
def test_gradients_of_a_call_whose_probabilities_have_a_scale(name):
    """P is multiplied by 2^8 before its rounding."""
    x, c = replace(call(), scales={"scale_s": np.float32(256.0)}), of_twin(name)
    want = emulated(c, x.q, x.k, x.v, x.do, **options_of(x))
    offset = replace(c, plan=c.plan.changed("offset=8"))
    assert np.array_equal(want.out, emulated(offset, x.q, x.k, x.v, x.do, **x.options).out)
    for part, got in Backwards(x).gradients(c).items():
        assert np.array_equal(got, getattr(want, part)), part


def test_scales_in_the_products_have_no_backward():
    """Of a plan that reads operands times their scales there is one, of one that does not, none."""
    x, c = scaled_call(descale_q=0.5, descale_k=2.0, descale_v=4.0), of_twin("fa2")
    want = emulated(c, x.q, x.k, x.v, x.do, **x.options)
    for part, got in Backwards(x).gradients(c).items():
        assert np.array_equal(got, getattr(want, part)), part
    of_products = replace(c, plan=c.plan.changed("descales=products"))
    for given, plan in ((x, of_products), (scaled_call(scale_o=2.0), c)):
        with pytest.raises(ValueError, match="scales: there is no backward"):
            Backwards(given).gradients(plan)
        with pytest.raises(ValueError, match="scales: there is no backward"):
            emulated(plan, given.q, given.k, given.v, given.do, **options_of(given))


def test_plans_that_share_a_forward_compute_it_once(monkeypatch):
    """Another backward needs no other forward; another forward, another L, or m and l, does."""
    x, c = call(is_causal=True), of_twin("fa2")
    backwards = ["DS=bf16:to-odd", "DK.sum=exact", "gradient_scale=register"]
    changes = [[], backwards, ["O=bf16"], ["LSE=bf16"], ["exponent_again=state"]]
    moved = [replace(c, plan=c.plan.changed(*words)) for words in changes]
    wanted = [emulated(m, x.q, x.k, x.v, x.do, **x.options) for m in moved]
    runs, forward = [], engine.forward
    monkeypatch.setattr(engine, "forward", lambda *given: runs.append(given) or forward(*given))
    of = Backwards(x)
    for m, want, count in zip(moved, wanted, (1, 1, 2, 3, 4), strict=True):
        got = of.gradients(m)
        assert len(runs) == count
        assert all(np.array_equal(got[n], getattr(want, n)) for n in got)


def test_a_plan_that_is_no_nearer_in_a_part_is_not_compared_further(monkeypatch):
    """Of a kernel with one other event in its backward, all but the plan that has it are worse."""
    monkeypatch.setattr(search, "PIECE", TILE)
    x, c = call(is_causal=True), of_twin("fa2")
    truth = replace(c, plan=c.plan.changed("DS=bf16:toward-zero"))
    got = emulated(truth, x.q, x.k, x.v, x.do, **x.options)
    gradients = search._Gradients(x, Outputs(out=got.out, dq=got.dq, dk=got.dk, dv=got.dv))
    nearer = gradients.nearer_than(c)
    assert nearer(truth).equal == 1.0
    assert nearer(c) is search.WORSE
    assert nearer(replace(c, plan=c.plan.changed("P_B=bf16:toward-zero"))) is search.WORSE


def test_so_few_numbers_explain_nothing():
    """One number of 100,000 proves no other plan; a hundred may."""
    near = search.Nearness
    assert not search._is_open(near(1 - 1e-5, -1.0))
    assert search._is_open(near(1 - 1e-3, -1.0))
