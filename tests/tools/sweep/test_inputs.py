"""Inputs of a sweep: each family shows the mechanism that it names, draws are reproducible, files
are cropped as they are.
"""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from roundscope.attention import Plan, Record, Site, examine
from roundscope.attention.testing.families import FAMILIES
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.cell import DEFAULTS, Cell
from roundscope.tools.sweep.conditions.inputs import draw, file_of
from roundscope.tools.tensors.layers import read_layers, sample_path

ROLES = ("q", "k", "v", "do")


def cell(content="", **parameters):
    sizes = {"T": 128, "S": 128, "N": 2, "H": 64}
    return Cell(
        parameters=tuple((DEFAULTS | sizes | parameters).items()),
        plan=Plan.preset("qiu-yao"),
        content=content,
    )


def seen(family, plan="qiu-yao", block_k=64, events=(), **more):
    """`examine` of a family, and of each site its totals."""
    x = draw(cell(input=family, **more))
    found = examine(
        x.q, x.k, x.v, plan=plan, block_q=64, block_k=block_k, record=Record(events=events)
    )
    return found, {name: s.total() for name, s in found.trace.stats.items()}


def scores(x):
    """(N, T, S), in binary64."""
    return np.einsum("tnh,snh->nts", x.q[0], x.k[0]) / np.sqrt(x.q.shape[-1])


def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_bf16_numbers_of_the_asked_shape(family):
    """Catches an input whose own rounding would be mistaken for arithmetic, and swapped T and S."""
    x = draw(cell(input=family, T=24, S=40, N=3, H=8))
    assert [getattr(x, r).shape for r in ROLES] == [
        (1, 24, 3, 8),
        (1, 40, 3, 8),
        (1, 40, 3, 8),
        (1, 24, 3, 8),
    ]
    for role in ROLES:
        tensor = getattr(x, role)
        assert (
            tensor.dtype == np.float64 and not tensor.flags.writeable and np.isfinite(tensor).all()
        )
        assert np.array_equal(tensor, tensor.astype(ml_dtypes.bfloat16).astype(np.float64))
    assert x.scale is None


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_repeat_differ_by_seed_and_grow_by_rows(family):
    """Catches hidden state, a seed that is not used, and streams that depend on the length."""
    x, again, other = (draw(cell(input=family, seed=seed)) for seed in (1, 1, 2))
    longer = draw(cell(input=family, seed=1, T=200, S=160))
    for role in ROLES:
        a = getattr(x, role)
        assert np.array_equal(a, getattr(again, role))
        assert (
            np.mean(a == getattr(other, role)) < 0.6
        )  # ties: half the queries are 0 in every draw
        assert np.array_equal(a, getattr(longer, role)[:, : a.shape[1]])


def test_draws_do_not_depend_on_the_process():
    """Catches keys from Python's own hash, which differs between processes."""
    code = (
        "from tests.tools.sweep.test_inputs import cell, draw;"
        " print(repr(float(draw(cell(seed=5)).v.sum())))"
    )

    def run(seed):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "."}
        return subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, check=True
        ).stdout

    assert run("1") == run("2") == f"{float(draw(cell(seed=5)).v.sum())!r}\n".encode()


def test_gaussian_is_standard_normal_and_its_tensors_independent():
    """Catches one stream used for two roles, seeds or families, and a wrong scale."""
    x = draw(cell(T=256, S=256))
    flat = [getattr(x, r).reshape(-1) for r in ROLES] + [
        draw(cell(T=256, S=256, seed=1)).q.reshape(-1)
    ]
    flat.append(draw(cell(T=256, S=256, input="one-signed-v")).q.reshape(-1))
    n = flat[0].size
    assert max(abs(f.mean()) for f in flat) < 5 / np.sqrt(n)
    assert max(abs(f.var() - 1.0) for f in flat) < 5 * np.sqrt(2 / n)
    assert np.abs(np.corrcoef(flat) - np.eye(len(flat))).max() < 5 / np.sqrt(n)


def test_repeated_maximum_has_several_ones_in_a_tile_and_across():
    """Catches a maximum that is not repeated: P = 1 twice in every tile of most rows, which
    gaussian does not have.
    """
    found, _ = seen("repeated-maximum", events=(Site.P,))
    ones = found.trace.events["P"][1] == 1.0
    assert np.mean((ones[..., :64].sum(-1) >= 2) & (ones[..., 64:].sum(-1) >= 2)) > 0.9
    whole, _ = seen("gaussian", block_k=128, events=(Site.P,))
    assert np.mean((whole.trace.events["P"][1] == 1.0).sum(-1) >= 2) < 0.1


def test_repeated_maximum_shows_the_published_bias():
    """PAPERS oracle 3: two unit weights and a residual of the same sign give 7/32 ulp away from
    zero, here downwards.
    """
    _, biased = seen("repeated-maximum", T=256, S=256)
    _, control = seen("gaussian", T=256, S=256)
    assert biased["PV"].mean_ulps == pytest.approx(-7 / 32, abs=0.04)
    assert abs(control["PV"].mean_ulps) < 0.01


def test_sink_takes_the_mass_and_other_p_underflow_in_fp8():
    """Catches a sink that is none: first key over half of every row, no rescaling, P of the others
    below FP8.
    """
    assert softmax(scores(draw(cell(input="sink"))))[..., 0].min() > 0.5
    found, sites = seen("sink", "fa3-fp8", events=(Site.ALPHA,))
    assert (
        found.trace.events["ALPHA"][1][:, :, 1:] == 1.0
    ).all()  # in the first tile it is no event
    assert sites["P"].underflow > 0.8 * sites["P"].n
    assert seen("gaussian", "fa3-fp8")[1]["P"].underflow < 0.1 * sites["P"].n


def test_outlier_channel_costs_bits_of_scores():
    """Catches an outlier that averages out: one feature 10 to 30 times the others, and S in BF16
    (not in FP32) suffers.
    """
    x = draw(cell(input="outlier-channel"))
    for tensor in (x.q, x.k):
        size = np.sort(np.sqrt((tensor**2).mean((0, 1))), axis=-1)
        assert (
            (size[:, -1] / np.median(size, axis=-1) > 9) & (size[:, -1] < 31) & (size[:, -2] < 1.5)
        ).all()

    def error(family, plan):
        x, found = draw(cell(input=family)), seen(family, plan)[0]
        return (
            np.abs(found.out - examine(x.q, x.k, x.v, plan="exact").out).mean()
            / np.abs(found.out).mean()
        )

    assert error("outlier-channel", "qiu-yao") > 4 * error("gaussian", "qiu-yao")
    assert error("outlier-channel", "fa2-bf16") < 2 * error("gaussian", "fa2-bf16")


def test_one_signed_v_never_cancels():
    """Catches a V of two signs: then |sum P v| would fall short of sum P |v|."""
    x = draw(cell(input="one-signed-v"))
    assert x.v.max() < 0.0 and x.q.min() < 0.0 < x.q.max() and x.do.min() < 0.0 < x.do.max()


def test_large_logits_are_wide_and_the_softmax_near_one_hot():
    """Catches a scale that is lost."""
    s = scores(draw(cell(input="large-logits")))
    assert 8.0 < s.std() < 16.0 and np.median(softmax(s).max(-1)) > 0.5 > np.median(
        softmax(scores(draw(cell()))).max(-1)
    )


def test_ties_land_on_ties():
    """Catches grids too fine or too coarse: scores, sums of V and outputs lie half way between BF16
    numbers, gaussian's do not.
    """
    for plan, site in (("qiu-yao", "S"), ("qiu-yao", "PV"), ("fa2-bf16", "OUT")):
        tied, control = (seen(family, plan)[1][site] for family in ("ties", "gaussian"))
        assert tied.ties > 0.05 * tied.n, site
        assert control.ties < 0.002 * control.n, site


def test_every_family_says_its_mechanism():
    """Catches a family without a docstring: the reports quote its first line."""
    assert all(f.__doc__ and f.__doc__.splitlines()[0].strip() for f in FAMILIES.values())


# ---- files


@pytest.mark.parametrize(("name", "layer"), [("sample", "layer1"), ("sample:layer4", "layer4")])
def test_sample_is_cropped_as_in_the_file(name, layer):
    """Catches the wrong layer, axis or end of a crop, and a lost scale."""
    (whole,) = read_layers(sample_path(), layer=layer)
    x = draw(cell(input=name, T=20, S=30, N=5, H=32))
    for role, tokens in (("q", 20), ("k", 30), ("v", 30), ("do", 20)):
        assert np.array_equal(getattr(x, role), getattr(whole, role)[:1, :tokens, :5]), role
    assert x.scale == whole.scale


@pytest.fixture
def grouped(tmp_path):
    """A file of two sequences, 4 query heads on 2 key heads, without do."""
    random = np.random.default_rng(2)
    shapes = {"q": (2, 6, 4, 8), "k": (2, 6, 2, 8), "v": (2, 6, 2, 8)}
    arrays = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    path = tmp_path / "a:b.npz"
    np.savez(path, **arrays, layout="BTNH")
    return path, arrays


def test_grouped_heads_keep_their_keys(grouped):
    """Catches query heads that meet the keys of another group; and a colon in a path taken for a
    layer.
    """
    path, arrays = grouped
    one, two, four = (draw(cell(input=str(path), T=6, S=6, N=n, H=8)) for n in (1, 2, 4))
    assert [x.k.shape[2] for x in (one, two, four)] == [1, 1, 2]
    assert (
        np.array_equal(four.k, arrays["k"][:1])
        and np.array_equal(two.v, arrays["v"][:1, :, :1])
        and two.do is None
    )
    assert file_of(f"{path}:attention") == (path, "attention")
    assert np.array_equal(
        draw(cell(input=f"{path}:attention", T=6, S=6, N=4, H=8)).q,
        arrays["q"][:1].astype(np.float64),
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"T": 7}, "T 7: .* has 6"),
        ({"S": 9}, "S 9: .* has 6"),
        ({"N": 5}, "N 5: .* has 4"),
        ({"H": 16}, "H 16: .* has 8"),
        ({"N": 3}, "N 3: .* 2 query heads per key head"),
        ({"backward": True}, "backward .* no do"),
    ],
)
def test_more_than_the_file_has(grouped, sizes, message):
    """Catches a silent crop to something else than was asked."""
    with pytest.raises(UsageError, match=message):
        draw(cell(input=str(grouped[0]), **({"T": 6, "S": 6, "N": 4, "H": 8} | sizes)))


def test_file_that_changed(grouped):
    """Catches numbers of another file under the key of the planned one, here or on a remote
    worker.
    """
    with pytest.raises(UsageError, match=r"SHA-256 .* planned with 00000000"):
        draw(cell(content="0" * 64, input=str(grouped[0]), T=6, S=6, N=4, H=8))
