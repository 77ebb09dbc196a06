"""One rounding in bits: the paper's numbers, hand-derived cases, and laws over every format and
mode.
"""

import math
import random
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from roundscope.emu.explanation.encoding import code_of, fields_of
from roundscope.emu.explanation.one_rounding import add, explain, parse
from roundscope.emu.formats.format import NAMED, format_named
from roundscope.emu.roundings.modes import RoundingMode, rounding

# arXiv 2510.04212: -2.40625 and its residual, plus -2.296875
A, B = "-2.407115459442139", "-2.296875"
PAPER = "-4.703990459442139"


def test_paper_example():
    e = explain(PAPER, "bf16")
    assert (e.kept, e.round_bit, "1" in e.sticky) == ("10010110", "1", True)
    assert (e.exponent, e.tie, e.up, e.flips, e.grows) == (2, False, True, 1, False)
    assert e.fields == ("1", "10000001", "0010111") and e.code == 0xC097
    assert e.result == -4.71875 and e.error == -0.014759540557861328
    assert e.ulps == pytest.approx(-0.014759540557861328 / 2**-5, rel=0, abs=0)


def test_paper_example_without_its_residual_is_a_tie_to_even():
    e = explain("-4.703125", "bf16")
    assert e.tie and not e.up and e.sticky == "" and e.result == -4.6875


def test_paper_addition_carries_out():
    s = add(A, B, format_named("bf16"))
    (a0, a), (b0, b), (c0, c) = s.rows
    assert (a0, a[:7]) == ("1", "0011010") and (b0, b) == ("1", "0010011")
    assert (c0, c[:7]) == ("10", "0101101") and "1" in c[7:]
    assert s.total == -4.703990459442139 and s.shift == 1 and s.exponent == 1


@pytest.mark.parametrize(
    ("a", "b", "rows", "shift"),
    [
        ("1.5", "0.5", (("1", "1"), ("0", "1"), ("10", "")), 1),
        ("1.5", "0.25", (("1", "1"), ("0", "01"), ("1", "11")), 0),
        ("1.25", "-1", (("1", "01"), ("1", ""), ("0", "01")), -2),
    ],
)
def test_addition_by_hand(a, b, rows, shift):
    s = add(a, b, format_named("bf16"))
    assert (s.rows, s.shift, s.exact) == (rows, shift, True)


@pytest.mark.parametrize("b", ["0", "inf", "nan", "-1"])
def test_addition_that_cannot_be_drawn(b):
    with pytest.raises(ValueError, match="--plus"):
        add("1", b, format_named("bf16"))


CASES = [  # value, format, mode, result, kept, round, sticky, tie, up, flips, grows
    ("255.5", "bf16", "ties-to-even", 256.0, "11111111", "1", "", True, True, 8, True),
    ("254.5", "bf16", "ties-to-even", 254.0, "11111110", "1", "", True, False, 0, False),
    ("254.5", "bf16", "ties-to-away", 255.0, "11111110", "1", "", True, True, 1, False),
    ("-254.5", "bf16", "toward-negative", -255.0, "11111110", "1", "", True, True, 1, False),
    ("-254.5", "bf16", "toward-positive", -254.0, "11111110", "1", "", True, False, 0, False),
    ("254.25", "bf16", "away-from-zero", 255.0, "11111110", "0", "1", False, True, 1, False),
    ("-254.25", "bf16", "away-from-zero", -255.0, "11111110", "0", "1", False, True, 1, False),
    ("254", "bf16", "away-from-zero", 254.0, "11111110", "0", "", False, False, 0, False),
    ("254.25", "bf16", "to-odd", 255.0, "11111110", "0", "1", False, True, 1, False),
    ("255.25", "bf16", "to-odd", 255.0, "11111111", "0", "1", False, False, 0, False),
    ("0x1.8p3", "e4m3fn", "ties-to-even", 12.0, "1100", "0", "", False, False, 0, False),
    ("0x1.fp-7", "e4m3fn", "ties-to-even", 2.0**-6, "0111", "1", "1", False, True, 4, False),
    ("0x1p-10", "e4m3fn", "ties-to-even", 0.0, "0000", "1", "", True, False, 0, False),
    ("0x1.8p-10", "e4m3fn", "ties-to-even", 2.0**-9, "0000", "1", "1", False, True, 1, False),
    ("3", "e8m0fnu", "ties-to-even", 4.0, "1", "1", "", True, True, 1, True),
    (
        "1.9999999",
        "bf16",
        "ties-to-even",
        2.0,
        "11111111",
        "1",
        None,
        False,
        True,
        15,
        True,
    ),  # 0x3fff -> 0x4000
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2]}")
def test_by_hand(case):
    value, name, mode, result, kept, first, sticky, tie, up, flips, grows = case
    e = explain(value, rounding(name, mode))
    assert (e.result, e.kept, e.round_bit, e.tie, e.up, e.flips, e.grows) == (
        result,
        kept,
        first,
        tie,
        up,
        flips,
        grows,
    )
    assert sticky is None or e.sticky == sticky


@pytest.mark.parametrize(
    ("value", "name", "changes", "result"),
    [
        ("500", "e4m3fn", {"overflow": "nan"}, math.nan),
        ("500", "e4m3fn", {}, 448.0),
        ("1e6", "fp16", {}, math.inf),
        ("-1e6", "fp16", {"mode": "toward-zero"}, -65504.0),
        ("-1e6", "fp16", {"mode": "toward-negative"}, -math.inf),
        ("-65504.01", "fp16", {"mode": "away-from-zero"}, -math.inf),
        ("449", "e4m3fn", {"mode": "away-from-zero", "overflow": "saturate"}, 448.0),
        ("65519.999", "fp16", {}, 65504.0),
        ("inf", "fp16", {}, math.inf),
        ("-inf", "e2m1fn", {}, -6.0),
        ("nan", "e4m3fn", {}, math.nan),
        ("nan", "e2m1fn", {}, math.nan),
        ("nan", "e2m1fn", {"nan": "zero"}, 0.0),
        ("-1", "e8m0fnu", {}, math.nan),
        ("0", "e8m0fnu", {}, math.nan),
        ("1e-300", "e8m0fnu", {}, 2.0**-127),
        ("-0", "bf16", {}, -0.0),
        ("-0", "e4m3fnuz", {}, 0.0),
    ],
)
def test_edges_of_the_range(value, name, changes, result):
    e = explain(value, rounding(name, **changes))
    assert np.array_equal([e.result], [result], equal_nan=True)
    assert math.isnan(result) or math.copysign(1, e.result) == math.copysign(1, result)


@pytest.mark.parametrize("mode", RoundingMode)
@pytest.mark.parametrize("name", [*NAMED, "e5m10", "e3m4"])
def test_agrees_with_the_rule_and_with_its_own_parts(name, mode):
    """explain() raises if the rule disagrees; here its fields must add up to value and result as
    well.
    """
    f, g = format_named(name), random.Random(name + mode)
    for _ in range(60):
        x = math.ldexp(
            1 + g.getrandbits(20) / 2**20,
            g.randint(max(f.emin - f.precision - 2, -1074), min(f.emax + 1, 1022)),
        )
        e = explain(x * g.choice((-1, 1)), rounding(name, mode, seed=g.getrandbits(32)))
        if e.exponent is None:
            continue
        unit = Fraction(2) ** (e.exponent - f.precision + 1)
        rest = Fraction(int(e.round_bit + e.sticky, 2), 2 ** len(e.round_bit + e.sticky))
        assert (int(e.kept, 2) + rest) * unit == abs(Fraction(e.value))
        if math.isfinite(e.result) and not e.overflows and f.zero:
            assert (int(e.kept, 2) + e.up) * unit == abs(Fraction(e.result))
            assert -1 < e.ulps < 1


DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", DTYPES)
def test_codes_of_every_number(name):
    """Every code of the format, decoded by ml_dtypes, is encoded back; NaN becomes one NaN code."""
    f = format_named(name)
    word = np.uint16 if f.bits == 16 else np.uint8
    codes = np.arange(1 << f.bits, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = codes.astype(word).view(DTYPES[name]).astype(np.float64)
    for code, value in zip(codes, values, strict=True):
        back = code_of(float(value), f)
        if math.isnan(value):
            assert math.isnan(
                np.array([back]).astype(word).view(DTYPES[name]).astype(np.float64)[0]
            )
        else:
            assert back == code and "".join(fields_of(back, f)) == f"{code:0{f.bits}b}"


def test_codes_that_do_not_exist():
    assert code_of(math.nan, format_named("e2m1fn")) is None
    assert code_of(math.inf, format_named("e4m3fn")) is None
    with pytest.raises(ValueError, match="not a number of bf16"):
        code_of(0.1, format_named("bf16"))


@pytest.mark.parametrize(
    ("text", "value", "exact"),
    [
        ("0.1", 0.1, False),
        ("0.5", 0.5, True),
        ("1/3", 1 / 3, False),
        ("-3/4", -0.75, True),
        ("0x1.8p3", 12.0, True),
        ("-0X1P-2", -0.25, True),
        ("0x1.00000000000001p0", 1.0, False),
        ("inf", math.inf, True),
        ("-Infinity", -math.inf, True),
        ("1e-400", 0.0, False),
        ("1e-999999999999999999999", 0.0, False),
        ("5e-324", 5e-324, False),
        (0.1, 0.1, True),
    ],
)
def test_numbers_as_people_write_them(text, value, exact):
    assert parse(text) == (value, exact)


@pytest.mark.parametrize(
    "text", ["", "four", "1/0", "0x", "1e400", "0x1p5000", "1,5", "--1", "9" * 400]
)
def test_no_number(text):
    with pytest.raises(ValueError, match="VALUE"):
        parse(text)
