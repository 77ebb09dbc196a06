"""Quantizers behind a Hadamard transform, which are written here with SciPy's matrix."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest
from scipy.linalg import hadamard as sylvester

from roundscope.emu.testing.casts import Hadamard, block_probes, examine_cast
from roundscope.emu.testing.casts.hadamard import hadamard
from tests.emu.testing.casts.cast_planted import F32, mx, nvfp4

SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    """A few blocks, so that a test takes half a second."""
    monkeypatch.setattr(block_probes, "BUDGET", 1 << 14)


def turned(x, *, n=16, signs=None, after=None, kind=F32, out=None, root=True):
    """The transform in float32, or of numbers of another type, with a float32 sum."""
    h = (sylvester(n) / (np.sqrt(n) if root else 1)).astype(F32)
    lines = x.astype(kind).astype(F32).reshape(-1, n)
    y = (lines * (1 if signs is None else signs)).astype(F32) @ h
    y = (y * (1 if after is None else after)).astype(F32)
    return y.astype(out or kind).astype(F32).reshape(x.shape)


def behind(x, *, quantizer=nvfp4, **of):
    return quantizer(turned(x, **of))


@pytest.mark.parametrize(("n", "root"), [(4, True), (16, True), (8, False), (64, True)])
def test_the_transform_is_that_of_scipy(n, root):
    """Rows in another order, another factor, or a transform of columns."""
    x = np.random.default_rng(1).integers(-99, 99, (3, 128)).astype(F32)
    own = Hadamard(size=n, is_normalized=root)(x)
    assert (own == turned(x, n=n, root=root)).all()


def test_what_is_asked_about_comes_out_of_the_transform():
    """Ties that a transform moves, so that nobody asks about them."""
    front = Hadamard(size=16, signs=tuple(SIGNS.tolist()))
    y = np.tile(np.array([6.0, 5.0, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25], F32), (4, 8))
    assert (front(front.inputs(y)) == y).all()


@pytest.mark.parametrize(
    ("words", "asked", "of"),
    [
        ("16", "nvfp4", {}),
        ("16:bf16", "nvfp4", {"kind": ml_dtypes.bfloat16, "signs": SIGNS}),
        ("64:bf16:fp32", "nvfp4", {"n": 64, "kind": ml_dtypes.bfloat16, "out": F32}),
        ("16:unnormalized", "mxfp8_e4m3", {"root": False, "quantizer": mx}),
    ],
)
def test_a_right_quantizer_passes(words, asked, of):
    """A quantizer behind a transform that cannot be told, or whose ties are called wrong."""
    report = examine_cast(partial(behind, **of), asked, hadamard=words, signs=of.get("signs"))
    assert report.passed, [(r.name, r.examples[:1]) for r in report.failed]
    assert report.sentence.startswith(f"Hadamard {words.partition(':')[0]}")


@pytest.mark.parametrize(
    ("words", "of", "found"),
    [
        ("16", None, "without the transform"),
        pytest.param("16", {"root": False}, "not normalized", marks=pytest.mark.thorough),
        pytest.param(
            "16",
            {"kind": ml_dtypes.bfloat16},
            "the transform in bf16",
            marks=pytest.mark.thorough,
        ),
        pytest.param("16", {"n": 32}, "transform of 32 numbers", marks=pytest.mark.thorough),
        pytest.param("signs", {"after": SIGNS}, "the signs after", marks=pytest.mark.thorough),
    ],
)
def test_another_transform_is_named(words, of, found):
    """A wrong transform for which the quantizer is blamed."""
    signs = SIGNS if words == "signs" else None
    function = nvfp4 if of is None else partial(behind, **of)
    report = examine_cast(function, "nvfp4", hadamard="16", signs=signs)
    nearest = report.instead or report.behaviors[0].name
    assert not report.passed and nearest.startswith("rule nearest"), nearest
    assert found in nearest.rpartition(", ")[2], nearest


def test_a_transform_that_nobody_told_is_named():
    """A quantizer of which nothing is known because it transforms first."""
    report = examine_cast(behind, "nvfp4")
    assert report.behaviors[0].name.endswith("after Hadamard 16"), report.behaviors[:2]


@pytest.mark.parametrize(
    ("words", "signs", "found"),
    [
        ("15", None, "a power of two from 2 to 1024"),
        ("16:fp8", None, "give SIZE"),
        ("16", [1, -1], "give 16 numbers that are 1 or -1"),
        ("16", [0.5] * 16, "give 16 numbers that are 1 or -1"),
    ],
)
def test_other_words_are_refused(words, signs, found):
    """A transform that is not the one that was meant."""
    with pytest.raises(ValueError, match=found):
        hadamard(words, signs)


@pytest.mark.parametrize("asked", ["e4m3fn", "fp8_128x128", "int8[channel]"])
def test_a_transform_of_other_than_blocks_of_a_row_is_refused(asked):
    """A transform that is left out without a word."""
    with pytest.raises(ValueError, match="hadamard=16"):
        examine_cast(lambda x: x, asked, hadamard="16")
