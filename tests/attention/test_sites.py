"""Sites: what each says of itself, and the number of its random stream, which is part of every
stochastic result.
"""

import numpy as np
import pytest

from roundscope.attention import Record, Site
from roundscope.attention.plans.plan import Plan
from roundscope.attention.sites import PRODUCTS, site_named
from roundscope.emu.roundings.random import event_bits
from tests.attention.small import B, H, N, S, T, run

STREAMS = {
    "Q": 0,
    "K": 1,
    "V": 2,
    "DO": 3,
    "S": 4,
    "SCALED": 5,
    "M": 6,
    "X": 7,
    "EXP": 8,
    "P": 9,
    "DM": 10,
    "ALPHA": 11,
    "AL": 12,
    "ROWSUM": 13,
    "L": 14,
    "AO": 15,
    "PV": 16,
    "O": 17,
    "INV": 18,
    "OUT": 19,
    "LSE": 20,
    "OD": 21,
    "DELTA": 22,
    "S_B": 23,
    "SCALED_B": 24,
    "X_B": 25,
    "EXP_B": 26,
    "P_B": 27,
    "DV": 28,
    "DP": 29,
    "DPD": 30,
    "DS": 31,
    "LS": 37,
    "CM": 38,
    "DX": 39,
    "LANES": 40,
    "LN": 41,
    "LS_B": 42,
    "LSE2": 43,
    "OI": 44,
    "PD": 45,
    "SDQ": 46,
    "SDK": 47,
    "EI": 48,
    "PDP": 49,
    "SDS": 50,
    "DQP": 51,
    "DOO": 52,
    "MS": 53,
    "DKP": 54,
    "DVP": 55,
    "QS": 56,
    "KS": 57,
    "DPQ": 58,
    "PDQ": 59,
    "SDSQ": 60,
    "DSQ": 61,
    "SW": 62,
    "SO": 63,
    "SS": 70,
    "CAP": 71,
    "TANH": 72,
    "SINK": 73,
    "SX": 74,
    "SE": 75,
    "SL": 76,
    "SS_B": 77,
    "CAP_B": 78,
    "TANH_B": 79,
    "DTANH": 80,
    "DSC": 81,
    "PSINK": 82,
    "DSINK": 83,
    "MO": 84,
    "LL": 85,
    "INV2": 86,
    "DPL2": 87,
    "DPL": 88,
    "DCT": 89,
    "DCAP": 90,
    "DCQ": 91,
    "TT": 92,
    "DMAX": 93,
    "DSM": 94,
    "KC": 95,
    "BETA": 96,
    "OA": 97,
    "OT": 98,
    "SDKH": 99,
    "DKH": 100,
    "DVH": 101,
    "DSR": 102,
    "KM": 103,
    "CT": 104,
    "CT_B": 105,
    "IA": 106,
    "IO": 107,
    "BIAS": 108,
    "BIASED": 109,
    "BIASED_B": 110,
    "DBIAS": 111,
    "QB": 117,
    "KB": 118,
    "VB": 119,
    "DOV": 120,
    "DQ": 32,
    "DK": 33,
    "DQ_OUT": 34,
    "DK_OUT": 35,
    "DV_OUT": 36,
}


def test_every_site_has_its_formula_and_place():
    """A site that `roundscope sites` could not print, or a plan could not find."""
    for place, site in enumerate(Site):
        assert site.formula
        assert site.axes
        assert site.stage in ("inputs", "forward", "backward")
        assert site_named(site.lower()) is site
        assert site.ordinal == place
    assert set(PRODUCTS) <= set(Site)


def test_random_streams_are_the_published_ones():
    """A site inserted or moved that takes the random bits of another; two sites with the same
    bits.
    """
    assert {str(site): site.stream for site in Site} == STREAMS
    assert len({site.stream for site in Site}) == len(Site)
    assert all(0 <= site.stream < 128 for site in Site)  # a head has 128 streams


def rounded_by(before, bits):
    """Numbers rounded to bf16 by the bits R: away from zero where the fraction of an ulp is above R
    2^-31.
    """
    ulp = 2.0 ** (np.frexp(before)[1] - 8.0)
    low = np.floor(np.abs(before) / ulp)
    away = (np.abs(before) / ulp - low) * 2.0**31 > bits
    return np.sign(before) * (low + away) * ulp


def bits_of_stream(number, columns):
    """The bits that stream `number` of every head gives at these columns, (B, N, T, columns)."""
    stream = np.arange(B * N) * 64 + number % 64
    step = 2**30 * (number // 64)
    rows = np.arange(T)[:, None]
    return np.stack([event_bits(np, 5, s, rows, columns, step) for s in stream]).reshape(
        B, N, T, len(columns)
    )


def recorded(site):
    """(before, after) of the events of a site that rounds to bf16 by random bits of seed 5."""
    plan = Plan.preset("fp32").at(site, "bf16", mode="stochastic", seed=5)
    return run(plan, record=Record(events=(site,))).trace.events[str(site)]


@pytest.mark.parametrize("number", [STREAMS["OUT"], 57, 64 + STREAMS["OUT"]])
def test_an_event_draws_from_its_own_stream(monkeypatch, number):
    """Random bits that depend on the place of a site among the others."""
    monkeypatch.setattr(Site.OUT, "stream", number)
    before, after = recorded(Site.OUT)
    assert np.array_equal(after, rounded_by(before, bits_of_stream(number, np.arange(H))))


def test_a_repeated_event_draws_anew_at_every_tile():
    """Events of one row that round in the same direction at every key tile, since the tile is left
    out of the coordinates of their random bits.
    """
    before, after = recorded(Site.O)  # (B, N, key tiles, T, H)
    for tile in range(S // 8):
        bits = bits_of_stream(STREAMS["O"], tile * 65536 + np.arange(H))
        assert np.array_equal(after[:, :, tile], rounded_by(before[:, :, tile], bits)), tile
