"""The table of real kernels: planted kernels whose bias is known, the feature that tells row sums
of dS, and the record.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from roundscope.attention.testing.calls import Outputs
from roundscope.attention.testing.exact import RESULTS
from roundscope.experiments.questions.kernels import study
from roundscope.experiments.questions.kernels.study import (
    Mean,
    exact_of,
    mean_of,
    measured,
    twin_outputs,
)

HEADS, TOKENS = 8, 32
RECORD = Path(__file__).parents[4] / "docs" / "runs" / "kernels-h200.json"


@pytest.fixture(scope="module")
def given():
    x, heads = study.inputs("Gaussian", HEADS, TOKENS)
    return x, heads, exact_of(x, heads)


def kernel_of(exact, change):
    """A kernel that returns the exact results, changed."""

    def run(x):
        whole = {
            n: change(a).astype(np.float32)[None].transpose(0, 2, 1, 3)
            for n, a in exact.results.items()
        }
        return Outputs(**whole)

    return run


def row(given, change):
    x, _, exact = given
    return measured("planted", "Gaussian", kernel_of(exact, change), x, exact)


def test_the_feature_of_ones_tells_row_sums(given):
    """A feature that reaches a score or an output, or a dQ whose last feature is no row sum of
    dS.
    """
    x, _, exact = given
    assert (x.k[..., -1] == 1).all() and not any(
        getattr(x, n)[..., -1].any() for n in ("q", "v", "do")
    )
    assert (
        np.abs(exact.results["dq"][..., -1]).max() < 1e-14 < exact.rows[:, 1:].min()
    )  # a row with one key has dS = 0
    found = row(given, lambda a: a)
    assert found.drift < 1e-6

    def leaning(a):  # every row sum of dS is 0.01
        return np.concatenate([a[..., :-1], np.full_like(a[..., :1], 0.01 * x.scale)], -1)

    size = math.sqrt(np.square(exact.rows).mean())
    assert (
        row(given, leaning).drift == pytest.approx(0.01 / size, rel=1e-5)
        and row(given, leaning).signed.mean > 0
    )


def test_a_planted_gain_is_found_and_noise_is_not(given):
    """A gain with the wrong sign or size; noise taken for a bias."""
    short = row(given, lambda a: a * (1 - 1e-3))
    for name in RESULTS:
        assert short.gain[name].mean == pytest.approx(-1e-3, rel=1e-3) and short.gain[name].z < -100
        assert short.error[name] == pytest.approx(1e-3, rel=1e-3)
    assert short.delta.mean == pytest.approx(-1e-3, rel=1e-2)
    rng = np.random.default_rng(1)
    noisy = row(given, lambda a: a * (1 + 1e-2 * rng.standard_normal(a.shape)))
    assert all(abs(noisy.gain[name].z) < study.CLEAR for name in RESULTS) and not noisy.again


def test_a_kernel_that_fails_is_a_row(given):
    """One kernel that ends the table."""
    x, _, exact = given

    def broken(x):
        raise RuntimeError("no such device\nand more")

    found = measured("broken", "Gaussian", broken, x, exact)
    assert found.failed.startswith("RuntimeError at test_bias_of_kernels.py:")
    assert found.failed.endswith(": no such device and more")
    [line] = study.table([found])
    assert line[:3] == ["Gaussian", "broken", "-"] and "no such device" in " ".join(line)


def test_a_twin_is_equal_to_itself(given):
    """Heads of the kernel beside other heads of the twin."""
    x, _, _ = given
    eager, cudnn = (first_head(twin_outputs(name, x)) for name in ("eager", "cudnn"))
    found = measured("eager", "Gaussian", lambda _: eager, x, exact_of(x, 1), "eager", eager)
    assert all(share == 1.0 for share in found.same.values()) and all(
        ratio == 1.0 for ratio in found.over.values()
    )
    found = measured("cudnn", "Gaussian", lambda _: cudnn, x, exact_of(x, 1), "eager", eager)
    assert found.same["out"] < 0.99


def first_head(outputs):
    return replace(outputs, **{n: getattr(outputs, n)[:1] for n in RESULTS})


def test_means_of_heads():
    """A z of one head."""
    assert mean_of(np.array([1.0, 3.0])) == Mean(mean=2.0, z=2.0)
    assert mean_of(np.zeros(3)) == Mean(mean=0.0, z=0.0)


def test_the_record_is_read_and_drawn(tmp_path, roundscope):
    """A record that a later version cannot draw, or a number that changes on the way through
    JSON.
    """
    rows = study.read(RECORD)
    study.write(tmp_path / study.RECORD, rows)
    again = study.read(tmp_path / study.RECORD)
    assert repr(again) == repr(rows) and len(rows) > 90
    assert study.picture(rows) is not None and "kernels" in study.answer(rows)
    code, out, _ = roundscope("kernels", "--draw", "--out", tmp_path)
    assert (
        code == 0
        and "repeated maximum" in " ".join(out.split())
        and (tmp_path / "report.html").is_file()
    )


def test_bad_input_ends_in_one_line(tmp_path, roundscope):
    """A traceback."""
    for words, told in (
        (("--only", "sdpa-flsh"), "sdpa-flash"),
        (("--only", "triton-tutorial"), "needs its path"),
        (("--released", tmp_path), "attention.py"),
        (("--tutorial", tmp_path), "06-fused-attention.py"),
        (("--draw",), "holds no results"),
    ):
        code, _, err = roundscope("kernels", *words, "--out", tmp_path / "none")
        assert code == 2 and told in err and err.count("\n") == 1, err
    with pytest.raises(ValueError, match="family=gauss"):
        study.inputs("gauss", 1)
