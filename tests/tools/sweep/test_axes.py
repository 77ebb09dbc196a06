"""Axes: words and TOML to points. Expectations are written out by hand."""

import pytest

from roundscope.attention.grammar.roundings import accumulator_of, places_of
from roundscope.emu import Accumulator, Order, rounding
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.axes import each_point, spec_of, typed


def of(*words, zips=(), backward=False):
    return list(each_point(spec_of(words, zips, backward)))


def test_axes_cross_and_the_last_is_fastest():
    """Catches a product that loses an axis, or the order in which cells are shown and run."""
    assert of("preset=qiu-yao,fa2-bf16", "T=128,256") == [
        {"preset": "qiu-yao", "T": 128},
        {"preset": "qiu-yao", "T": 256},
        {"preset": "fa2-bf16", "T": 128},
        {"preset": "fa2-bf16", "T": 256},
    ]


def test_zipped_axes_advance_together():
    """Catches zip that crosses, and a group that moves behind the axes given after it."""
    found = of("block_q=16,32", "seed=0,1", "block_k=64,128", zips=["block_q,block_k"])
    assert [(p["block_q"], p["block_k"], p["seed"]) for p in found] == [
        (16, 64, 0),
        (16, 64, 1),
        (32, 128, 0),
        (32, 128, 1),
    ]


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("seed=0:3", [0, 1, 2]),
        ("T=128:512:128", [128, 256, 384]),
        ("N=8:2:-3", [8, 5]),
        ("T=64,128:130,7", [64, 128, 129, 7]),
        ("causal=true,False", [True, False]),
        ("stabiliser=none,2.0,2.5", ["none", "2", "2.5"]),
        ("mode=TOWARD_ZERO", ["toward-zero"]),
        ("only=o+pv.step+O", ["PV.step+O"]),
        ("format.o=bf16,preset", ["bf16", "preset"]),
    ],
)
def test_values(word, values):
    """Catches a stop that is included, wrong types, and two spellings of one condition that would
    be two cells.
    """
    (axis,) = spec_of([word]).axes
    assert list(axis[1]) == values and [type(v) for v in axis[1]] == [type(v) for v in values]


def test_an_axis_given_twice_is_joined():
    """Catches a second word that replaces the first, also where the site is spelt otherwise."""
    assert [p["format.O"] for p in of("format.O=bf16", "format.o=fp32")] == ["bf16", "fp32"]


def test_ranges_are_for_whole_numbers_only():
    """Catches a preset or an accumulator with a colon taken for a range."""
    assert of("preset=all:bf16", "accumulator=chunked16:bf16") == [
        {"preset": "all:bf16", "accumulator": "chunked16:bf16"}
    ]


def test_backward_is_an_axis():
    """Catches a flag that is lost, added twice, or silently beaten by a word."""
    assert (
        of("T=8", backward=True)
        == [{"T": 8, "backward": True}]
        == of("T=8", "backward=true", backward=True)
    )
    with pytest.raises(UsageError, match="--backward: the axis backward is given too"):
        of("backward=true,false", backward=True)


TOML = """
backward = true
zip = [["block_q", "block_k"]]
[axes]
preset = ["qiu-yao", "fa2-bf16"]
seed = "0:4:2"
causal = false
injection = "O:ulps=0.5:rows=1,3"
block_q = [16, 32]
block_k = [32, 64]
format.O = ["bf16"]
"mode.P" = "toward-zero"
"""


def test_a_file(tmp_path):
    """Catches each form a TOML value can have: list, range, scalar, text with commas, dotted and
    quoted sites.
    """
    path = tmp_path / "plan.toml"
    path.write_text(TOML)
    found = of(str(path))
    assert len(found) == 2 * 2 * 2
    assert found[-1] == {
        "preset": "fa2-bf16",
        "seed": 2,
        "causal": False,
        "injection": "O:ulps=0.5:rows=1,3",
        "block_q": 32,
        "block_k": 64,
        "format.O": "bf16",
        "mode.P": "toward-zero",
        "backward": True,
    }


def test_words_replace_the_axes_of_a_file(tmp_path):
    """Catches words that are joined to the file's values, or that lose its other axes."""
    path = tmp_path / "plan.toml"
    path.write_text("backward = true\n[axes]\nT = [1, 2]\nseed = [1, 2]\n")
    assert of(str(path), "T=5", "backward=false") == [
        {"T": 5, "seed": s, "backward": False} for s in (1, 2)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "AXES is missing"),
        (("preset",), "AXES 'preset': write AXIS=VALUE"),
        (("presett=qiu-yao",), "unknown axis 'presett'; did you mean 'preset'?"),
        (("t=8",), "unknown axis 't'; did you mean 'T'?"),
        (("exp.O=base2",), "unknown axis 'exp.O'"),
        (("format.OUTT=bf16",), "unknown site 'OUTT'; did you mean 'OUT'?"),
        (("accumulator.P=exact",), "axis 'accumulator.P': P is no sum of products"),
        (("preset=qiu-yo",), "unknown preset 'qiu-yo'; did you mean 'qiu-yao'?"),
        (("T=abc",), "T 'abc': give a whole number from 1"),
        (("T=0",), "T '0': give a whole number from 1"),
        (("T=1.5",), "T '1.5': give a whole number"),
        (("T=²",), "T '²': give a whole number"),
        (("block_q=-1",), "block_q '-1': give a whole number from 1"),
        (("seed=4294967296",), "seed '4294967296': give a whole number from 0"),
        (("T=",), "T: no value"),
        (("T=1,,2",), "T '': give a whole number"),
        (("seed=0:10:0",), "seed '0:10:0': the step is 0"),
        (("seed=3:3",), "seed '3:3': is empty"),
        (("seed=0:x",), "seed '0:x': write a range as a:b"),
        (("seed=0:9999999",), "seed '0:9999999': has 9999999 values"),
        (("seed=0:2000", "T=1:1000"), "AXES: 1998000 points"),
        (("causal=1",), "causal '1': give true or false"),
        (("stabiliser=1",), "stabiliser '1': give none, or the factor beta"),
        (("format=bf61",), "unknown format 'bf61'; did you mean 'bf16'?"),
        (("format=e8m0fnu",), "e8m0fnu is a scale format"),
        (("mode=stochastc",), "did you mean 'stochastic'?"),
        (("accumulator=chunked",), "did you mean 'chunked16'?"),
        (("accumulator=chunked0",), "accumulator 'chunked0': chunk=0"),
        (("accumulator=native:bf16",), "native adds as the device does"),
        (("accumulator=exact:fp64",), "accumulator 'exact:fp64': step=fp64"),
        (("only=PV.stop",), "only 'PV.stop': 'PV.stop': write SITE"),
        (("only=O.step",), "only 'O.step': O is no sum of products"),
        (("only=PW",), "only 'PW': unknown site 'PW'"),
        (("engine=jax",), "unknown engine 'jax'. Known: numpy xla"),
        (("exp=base10",), "unknown exponential 'base10'; did you mean 'base2'?"),
        (("tile=64", "block_q=8"), "tile: sets block_q and block_k"),
        (("a.toml", "b.toml"), "AXES 'b.toml': a.toml is given already"),
        (("none/such.toml",), "AXES 'none/such.toml': does not exist"),
    ],
)
def test_errors_name_argument_value_and_repair(words, said):
    """Catches bad usage that passes, or is explained in other words than its own."""
    with pytest.raises(UsageError) as error:
        of(*words)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("zips", "said"),
    [
        (["T,S"], "--zip 'T,S': T has 2 values and S has 3"),
        (["T,N", "N,seed"], "--zip 'N,seed': the axis N is zipped twice"),
        (["T,T"], "--zip 'T,T': the axis T is zipped twice"),
        (["T"], "--zip 'T': name two axes"),
        (["T,H"], "--zip 'T,H': the axis H has no values"),
        (["T,Z"], "unknown axis 'Z'"),
    ],
)
def test_zips_that_cannot_be(zips, said):
    """Catches groups cut to the shorter axis, as zip in Python does."""
    with pytest.raises(UsageError) as error:
        of("T=1,2", "S=1,2,3", "N=1,2", "seed=1,2", zips=zips)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("T = [", "is no TOML"),
        ("axis = 3", "unknown entry 'axis'; did you mean 'axes'?"),
        ("axes = 3", "axes 3: write a table"),
        ("zip = ['T,S']\n[axes]\nT = 1", "write a list of lists"),
        ("[axes]\nT = []", "T: no value"),
        ("[axes]\nT = [1.5]", "T 1.5: give a whole number"),
        ("[axes]\nT = [true]", "T true: give a whole number"),
        ("[axes]\nT = [[1]]", "T [1]: a value is text"),
        ("[axes]\npreset = 3", "preset 3: give text"),
        ("[axes]\nexp.O = 3", "exp {'O': 3}: a value is text"),
        ("backward = 3", "backward 3: give true or false"),
        ("backward = true\n[axes]\nbackward = true", "given both above and under [axes]"),
    ],
)
def test_files_that_cannot_be(tmp_path, text, said):
    """Catches a damaged plan that is half read."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        of(str(path))
    assert said in str(error.value) and "plan.toml" in str(error.value)


def test_true_is_not_one():
    """Catches a cache of values that takes True, 1 and 1.0 for the same."""
    assert typed("T", 1) == 1
    for value in (True, 1.0):
        with pytest.raises(UsageError):
            typed("T", value)


def test_accumulators():
    """Catches a step that loses its format or mode, and a chunk that is not the one named."""
    made = accumulator_of("chunked8:bf16:toward-zero")
    assert (made.order, made.chunk, made.step.format.name, made.step.mode) == (
        "chunked",
        8,
        "bf16",
        "toward-zero",
    )
    assert accumulator_of("pairwise").step.format.name == "fp32"
    assert accumulator_of("halves:bf16") == Accumulator(order=Order.HALVES, step=rounding("bf16"))
    assert accumulator_of("ascending:e4m3fn").step.overflow == "saturate"


def test_places_are_in_the_algorithm_s_order():
    """Catches places in the order of writing, which would make two keys of one condition."""
    assert [(str(s), step) for s, step in places_of("OUT+S.step+S")] == [
        ("S", False),
        ("S", True),
        ("OUT", False),
    ]
