"""Injections in words. A colon separates words and stands in ranges: both at once is where a parser
goes wrong.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundscope.attention import AddUlps, Bias, Exact, FlipBit, Injection, Noise, Plan, SetTo, Site
from roundscope.attention.grammar.injections import check_injection, injection_of, injection_words
from roundscope.attention.sites import Axes

NUMBER = st.integers(0, 99)
PART = st.one_of(
    NUMBER.map(lambda a: (str(a), [a])),
    st.tuples(NUMBER, st.integers(1, 9)).map(
        lambda p: (f"{p[0]}:{sum(p)}", list(range(p[0], sum(p))))
    ),
    st.tuples(NUMBER, st.integers(1, 9), st.integers(1, 3)).map(
        lambda p: (f"{p[0]}:{p[0] + p[1]}:{p[2]}", list(range(p[0], p[0] + p[1], p[2])))
    ),
    st.tuples(NUMBER, st.integers(0, 9)).map(
        lambda p: (f"{p[0]}-{sum(p)}", list(range(p[0], sum(p) + 1)))
    ),
    st.integers(1, 9).map(lambda b: (f":{b}", list(range(b)))),
)
WHERE = st.lists(PART, min_size=1, max_size=3).map(
    lambda parts: (",".join(p[0] for p in parts), [i for p in parts for i in p[1]])
)
WHATS = [
    ("exact", Exact()),
    ("ulps=0.5", AddUlps(ulps=0.5)),
    ("ulps=-1e-3", AddUlps(ulps=-1e-3)),
    ("bias=1e+2", Bias(value=100.0)),
    ("set=-1", SetTo(value=-1.0)),
    ("flip=3", FlipBit(bit=3)),
    ("noise=.25", Noise(ulps=0.25, seed=9)),
]


@given(
    st.sampled_from(list(Site)),
    st.sampled_from(WHATS),
    st.dictionaries(st.sampled_from(["batch", "heads", "rows", "tiles"]), WHERE),
    st.booleans(),
)
def test_every_word_is_read_as_it_stands(site, what, where, low):
    """A number of a range taken for the next word, a word for a range's end, a place that is lost
    or that takes another's numbers.
    """
    text = ":".join(
        [
            site.lower() if low else site,
            what[0],
            *(f"{name}={words}" for name, (words, _) in where.items()),
        ]
    )
    made = Injection.parse(text, seed=9)
    assert (made.site, made.what) == (site, what[1])
    for name in ("batch", "heads", "rows", "tiles", "columns", "features"):
        found = getattr(made, name)
        assert (None if found is None else list(found)) == (
            where[name][1] if name in where else None
        )


@given(
    st.sampled_from(list(Site)),
    st.sampled_from(WHATS),
    st.sets(NUMBER, min_size=1),
    st.sets(NUMBER),
)
def test_injections_are_spelled_as_they_are_read(site, what, rows, last):
    """A report that names another injection than the one that was made."""
    name = {Axes.TS: "columns", Axes.TH: "features", Axes.SH: "features"}.get(site.axes, "heads")
    made = Injection(
        site=site,
        what=what[1],
        rows=tuple(sorted(rows)),
        **({name: tuple(sorted(last))} if last else {}),
    )
    again = Injection.parse(injection_words(made), seed=9)
    assert (again.site, again.what, set(again.rows)) == (site, made.what, rows)
    assert set(getattr(again, name) or ()) == last


def test_numbers_that_six_digits_cannot_hold_are_spelled_in_full():
    """A size in the report that is not the one injected."""
    made = Injection.parse("O:ulps=0.123456789012")
    assert Injection.parse(injection_words(made)) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("O", "write SITE:WHAT[:WHERE]"),
        ("O:", "write SITE:WHAT"),
        (":exact", "unknown site ''"),
        ("OO:exact", "did you mean 'O'"),
        ("O:ulsp=1", "did you mean 'ulps'"),
        ("O:exact=1", "unknown change"),
        ("O:ulps", "needs a number: write ulps=1"),
        ("O:ulps=", "'' is no finite"),
        ("O:ulps=nan", "no finite number"),
        ("O:flip=1.5", "a bit is a whole number"),
        ("O:exact:row=1", "did you mean 'rows'"),
        ("O:exact:rows", "unknown place"),
        ("O:exact:rows=", "'': no whole number"),
        ("O:exact:rows=0:64:x", "unknown place 'x'"),
        ("O:exact:0:64", "unknown change 'exact:0:64'"),
        ("O:exact:rows=64:0", "is empty"),
        ("O:exact:rows=1:rows=2", "given twice"),
        ("O:exact:rows=0:64:", "write a range"),
        ("O:exact:columns=1", "use rows or features"),
    ],
)
def test_what_is_wrong_is_named(text, said):
    """A word that is silently ignored, or a traceback."""
    with pytest.raises(ValueError) as error:
        Injection.parse(text)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "plan", "said"),
    [
        ("PV:exact", "fa2-bf16", "inject at O"),
        ("AO:exact", "baseline-bf16", "never rescales"),
        ("O:flip=16", "qiu-yao", "bits 0 to 15"),
        ("P:set=1e6", "fa3-fp8", "largest number is 448"),
        ("O:set=0.3", "qiu-yao", "the nearest number it has is 0.30078125"),
    ],
)
def test_what_a_plan_has_not_is_named(text, plan, said):
    """An injection that does nothing."""
    with pytest.raises(ValueError, match=said):
        check_injection(Injection.parse(text), Plan.preset(plan))


def test_shares_and_masks_in_words(tmp_path, monkeypatch):
    """A share without the seed of the command, a mask that is another one than the file's."""
    share = injection_of("P:ulps=1:rows=0:8:share=0.01", seed=5)
    assert (share.share, share.seed, share.rows) == (0.01, 5, range(8))
    assert injection_words(share) == "P:ulps=1:rows=0:8:share=0.01"
    monkeypatch.chdir(tmp_path)
    mask = np.eye(4, 6, dtype=bool)
    np.save("hits.npy", mask)
    read = injection_of("P:ulps=1:mask=hits.npy")
    assert read == Injection(site="P", what=AddUlps(ulps=1), mask=mask)
    assert injection_words(read) == "P:ulps=1:mask=hits.npy"
    np.save("numbers.npy", np.ones((4, 6)))
    for text, said in (
        ("P:ulps=1:share=0", "share=0.0"),
        ("P:ulps=1:share=some", "'some' is no finite number"),
        ("P:ulps=1:mask=none.npy", "mask=none.npy: no .npy file of an array"),
        ("P:ulps=1:mask=numbers.npy", "mask=numbers.npy: mask: an array of float64"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            injection_of(text)
        assert said in str(error.value)
