"""A row sum that divides in the last key tile, against fractions; engines, refusals."""

from fractions import Fraction

import numpy as np
import pytest

from roundscope.attention import Plan, Record, examine
from roundscope.tools.identify.candidates import structures
from tests.some import some

T, KEYS, WIDTH, TILE = 24, 40, 8, 16
F = np.float32
PLAN = Plan.preset("fp32").changed("normalized_last=true")


def inputs(keys=KEYS):
    rng = np.random.default_rng(3)
    return [rng.normal(size=(1, n, 2, WIDTH)).astype(F) for n in (T, keys, keys, T)]


def returned(*arrays, plan=PLAN, engine="numpy", **more):
    return examine(*arrays, plan=plan, block_q=TILE, block_k=TILE, engine=engine, **more)


def test_the_last_tile_is_one_multiply_add():
    """O divided after its sum; INV O multiplied before alpha; a product with P V that is rounded;
    parts of another tile than the last.
    """
    names = ("PV", "O", "ALPHA", "INV", "IA", "IO", "OUT")
    found = returned(*inputs()[:3], record=Record(events=names)).trace.events
    pv, o, alpha, inv, ia, io, out = (np.asarray(found[n][1], F)[0] for n in names)
    before, last = KEYS // TILE - 1, -(-KEYS // TILE) - 1
    assert np.array_equal(ia, inv * alpha[:, last])
    assert np.array_equal(io, ia[..., None] * o[:, before])
    for at in np.ndindex(*out.shape):
        exact = Fraction(float(inv[at[:2]])) * Fraction(float(pv[:, last][at])) + Fraction(
            float(io[at])
        )
        assert (
            abs(exact - Fraction(float(out[at]))) <= abs(Fraction(float(np.spacing(out[at])))) / 2
        )
    assert not np.array_equal(out, o[:, last] * inv[..., None])


def test_a_single_tile_has_nothing_to_rescale():
    """Anything but INV P V in a row that is one key tile."""
    arrays = inputs(keys=TILE)
    plain = returned(*arrays, plan=Plan.preset("fp32"), record=None)
    assert np.array_equal(returned(*arrays, record=None).out, plain.out)


@pytest.mark.parametrize(
    "more", some([{"is_causal": True}, {"window": 5}]), ids=["causal", "window"]
)
def test_engines_agree(more):
    """A bit in which NumPy and XLA differ; a state of a tile that is skipped."""
    a, b = (returned(*inputs(), engine=engine, **more) for engine in ("numpy", "xla"))
    for part in ("out", "lse", "dq", "dk", "dv"):
        one, other = (np.asarray(getattr(x, part), F).view(np.int32) for x in (a, b))
        assert np.array_equal(one, other), part


@pytest.mark.parametrize(("width", "wide"), [(128, False), (256, True)])
def test_a_search_tries_it_above_128_features(width, wide):
    """A structure that no single change leads to, since without it O is almost right."""
    plans = [c.plan for c in structures(width, 384, True) if c.plan.name == "sdpa-efficient"]
    assert [p.normalized_last for p in plans] == [False, True][: 1 + wide]


@pytest.mark.parametrize("words", ["pv_into_o=true", "flushed_tiles=2", "split_tiles=1"])
def test_what_has_no_last_tile_of_its_own_is_refused(words):
    """A word that has no effect."""
    with pytest.raises(ValueError, match=r"normalized_last=True: .*needs pv_into_o=false"):
        PLAN.changed(words)
