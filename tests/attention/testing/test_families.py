"""Families of inputs: the draws of sweeps, independent of each other, with the mechanism they name
in every head, grouped or not.
"""

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan
from roundscope.attention.testing.families import FAMILIES, draw
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell
from roundscope.tools.sweep.conditions.inputs import draw as draw_cell

ROLES = ("q", "k", "v", "do")
families = pytest.mark.parametrize("family", FAMILIES)
GROUPED = {"batch": 2, "tokens": 96, "heads": 6, "key_heads": 2, "features": 16}


def scores(x):
    """The scores of all heads in binary64, (B, N, T, S)."""
    k = x.k.repeat(x.q.shape[2] // x.k.shape[2], axis=2)
    return x.scale * np.einsum("btnh,bsnh->bnts", x.q.astype(float), k.astype(float))


@families
def test_draws_are_those_of_sweeps(family):
    """A family whose numbers are not those that sweeps measured."""
    sizes = {"T": 80, "S": 90, "N": 3, "H": 16, "input": family, "seed": 5}
    cell = Cell(parameters=tuple((DEFAULTS | sizes).items()), plan=Plan.preset("qiu-yao"))
    want = draw_cell(cell)
    x = draw(family, seed=5, batch=1, tokens=80, keys=90, heads=3, features=16)
    for role in ROLES:
        np.testing.assert_array_equal(getattr(x, role), getattr(want, role), err_msg=role)


@families
def test_numbers_are_fixed(family):
    """Other numbers at a second call, or the numbers of another seed or family."""
    x = draw(family, seed=3, tokens=8, features=8)
    again = draw(family, seed=3, tokens=8, features=8)
    assert all(np.array_equal(getattr(x, r), getattr(again, r)) for r in ROLES)
    others = [draw(family, seed=4, tokens=8, features=8)]
    others += [draw(f, seed=3, tokens=8, features=8) for f in FAMILIES if f != family]
    for other in others:
        assert not np.array_equal(x.q, other.q)
        assert not np.array_equal(x.do, other.do)


def test_heads_entries_and_seeds_are_independent():
    """Heads that are copies of each other, for which evidence is counted several times."""
    rows = []
    for seed in range(3):
        x = draw("gaussian", seed=seed, batch=3, tokens=64, heads=4, features=32)
        for tensor in (x.q, x.k, x.v, x.do):
            rows += list(tensor.transpose(0, 2, 1, 3).reshape(12, -1))
    apart = np.corrcoef(np.array(rows)) - np.eye(len(rows))
    assert np.abs(apart).max() < 6 / np.sqrt(64 * 32)


@families
def test_more_tokens_only_add_rows(family):
    """Comparisons of lengths that differ in all numbers."""
    short, long = (draw(family, batch=2, tokens=t, heads=2, features=16) for t in (70, 130))
    for role in ROLES:
        np.testing.assert_array_equal(getattr(short, role), getattr(long, role)[:, :70])


@families
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_numbers_are_of_the_type(family, dtype):
    """Inputs that the kernel's own cast changes, of which the plan knows nothing."""
    x = draw(family, dtype=dtype, **GROUPED)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for role in ROLES:
        a = getattr(x, role)
        assert a.dtype == np.float32 and a.flags.c_contiguous
        np.testing.assert_array_equal(a, a.astype(kind).astype(np.float32))


def test_shapes_and_the_scale():
    """A size that is ignored."""
    x = draw("sink", batch=3, tokens=5, keys=7, heads=6, key_heads=3, features=4, is_causal=True)
    shapes = [(3, 5, 6, 4), (3, 7, 3, 4), (3, 7, 3, 4), (3, 5, 6, 4)]
    assert [getattr(x, role).shape for role in ROLES] == shapes
    assert x.is_causal and x.scale == 0.5
    assert draw("sink", scale=0.3).scale == 0.3


def test_query_heads_of_a_group_differ():
    """Heads of a group that are copies, which a kernel with wrong groups would pass."""
    x = draw("gaussian", **GROUPED)
    heads = x.q.transpose(0, 2, 1, 3).reshape(12, -1)
    assert np.abs(np.corrcoef(heads) - np.eye(12)).max() < 0.2


def test_the_first_keys_of_sinks_stand_out_in_every_head():
    """A sink of another group's key head, which takes no mass."""
    s = scores(draw("sink", **GROUPED))
    apart = s[..., 0].mean(-1) - s[..., 1:].mean((-1, -2))
    np.testing.assert_allclose(apart, 10.0, atol=1.0)
    assert (s.argmax(-1) == 0).mean() > 0.99


def test_maxima_are_repeated_in_every_head():
    """Pairs of keys that do not have the same score, or not the largest."""
    x = draw("repeated-maximum", **GROUPED)
    s = scores(x)
    np.testing.assert_array_equal(s[..., [0, 1, 64, 65]], s[..., [0]].repeat(4, -1))
    assert (s[..., 0] == s.max(-1)).mean() > 0.99
    assert x.v.max() <= 0 and x.do.max() <= 0
    assert (x.v[:, [0, 1, 64, 65]] <= -2).all() and (x.v[:, [0, 1, 64, 65]] >= -4).all()


def test_one_channel_of_every_head_is_large():
    """An outlier in a channel that queries and keys of a group do not share."""
    x = draw("outlier-channel", **GROUPED)
    means = x.k.mean(1)
    assert ((means > 15).sum(-1) == 1).all()
    channel = means.argmax(-1).repeat(3, axis=1)
    assert (x.q.std(1).argmax(-1) == channel).all()


def test_signs_logits_and_ties():
    """A family without the mechanism that it names."""
    assert draw("one-signed-v", **GROUPED).v.max() <= 0
    assert 10 < scores(draw("large-logits", **GROUPED)).std() < 14
    x = draw("ties", **GROUPED)
    assert not x.q.reshape(2, 96, 6, 16)[:, 1::2].any(axis=(1, 3)).all()
    for role, grid in {"q": 4, "k": 8, "v": 32, "do": 32}.items():
        scaled = getattr(x, role) * np.float32(grid)
        # numbers above 4 have a coarser grid in BF16
        assert (scaled == np.rint(scaled)).mean() > 0.99, role


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "gausian"}, "unknown family 'gausian'; did you mean 'gaussian'"),
        ({"tokens": 0}, "tokens=0: must be 1 or more"),
        ({"keys": 0}, "keys=0: must be 1 or more"),
        ({"batch": -1}, "batch=-1: must be 1 or more"),
        ({"heads": 4, "key_heads": 3}, "key_heads=3: must divide heads=4"),
        ({"key_heads": 0}, "key_heads=0: must be 1 or more"),
    ],
)
def test_wrong_sizes_end_in_one_line(arguments, message):
    """A traceback of NumPy for a size that cannot be."""
    with pytest.raises(ValueError) as error:
        draw(**arguments)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
