"""Points to cells: defaults, the plan built in its order, injections, files.

Plans are compared with ones edited by hand.
"""

import hashlib
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from roundscope.attention import AddUlps, Injection, Noise, Plan, Site
from roundscope.attention.sites import PRODUCTS
from roundscope.emu.roundings.modes import BF16, BINARY64, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.tools.errors import UsageError
from roundscope.tools.sweep.conditions.cell import DEFAULTS
from roundscope.tools.sweep.conditions.condition import cell_of
from roundscope.tools.tensors.layers import sample_path

EXACT = Plan.preset("exact")


def plan(**point):
    """The plan of a point, its name aside; double underscores in names stand for dots."""
    return replace(cell_of({k.replace("__", "."): v for k, v in point.items()}).plan, name="")


def test_a_cell_has_every_parameter_and_its_sites():
    """Catches a parameter that is lost, out of order, or left as it was written."""
    cell = cell_of({"mode.O": "Toward_Zero", "format.out": "fp16", "format.P": "bf16", "T": "32"})
    names = [name for name, _ in cell.parameters]
    assert names == [*DEFAULTS, "format.P", "format.OUT", "mode.O"]
    assert (cell["T"], cell["S"], cell["mode.O"], cell["seed"], cell.content) == (
        32,
        32,
        "toward-zero",
        0,
        "",
    )


def test_defaults_are_the_preset():
    """Catches a default that changes the plan."""
    for name in ("fa2", "qiu-yao", "fa3-fp8", "baseline-bf16", "all:bf16"):
        assert cell_of({"preset": name}).plan == Plan.preset(name)


def test_a_key_names_the_preset_that_was_left_out():
    """Catches a cell of the default preset under the key of another one, such as the default of an
    older version, whose rows would pass for its results.
    """
    left_out = cell_of({"T": 32})
    assert left_out["preset"] == "fa2" and left_out == cell_of({"T": 32, "preset": "fa2"})
    keys = {cell_of({"T": 32, "preset": name}).key for name in ("fa2", "fa2-bf16", "qiu-yao")}
    assert left_out.key in keys and len(keys) == 3


def test_s_follows_t_and_tile_sets_both():
    """Catches keys that stay at their default under a swept T, and a tile that sets one side."""
    cell = cell_of({"T": 96, "tile": 16})
    assert (cell["S"], cell["block_q"], cell["block_k"], cell["tile"]) == (96, 16, 16, None)
    assert (cell_of({"S": 96})["T"], cell_of({"T": 8, "S": 96})["S"]) == (256, 96)


def test_equal_conditions_have_equal_keys():
    """Catches keys that depend on spelling: such cells would be computed twice."""
    q = {"preset": "qiu-yao"}
    one = cell_of({"only": "o+PV", "stabiliser": 2, "tile": 32} | q)
    two = cell_of({"stabiliser": "2.0", "only": "PV+O+PV", "block_k": 32, "block_q": "32"} | q)
    assert one.key == two.key != cell_of({"only": "O", "stabiliser": 2, "tile": 32} | q).key


def test_format_and_mode_change_events_and_no_steps():
    """Catches a format that reaches the steps of sums, or undoes a mode; and the order: one site
    beats all.
    """
    p = plan(preset="fp32", format="bf16", format__O="fp16", mode="toward-zero", mode__P="to-odd")
    expected = {
        s: rounding("fp16" if s is Site.O else "bf16", "to-odd" if s is Site.P else "toward-zero")
        for s in Site
    }
    assert {s: p[s] for s in Site} == expected and p.accumulators == Plan.preset(
        "fp32"
    ).accumulators


def test_a_format_without_infinity_saturates_as_in_the_preset():
    """Catches format.P=e4m3fn that overflows to NaN, while fa3-fp8 saturates."""
    fp8 = ["Q", "K", "V", "P"]
    assert plan(preset="fa2-bf16", **{f"format__{s}": "e4m3fn" for s in fp8}) == replace(
        Plan.preset("fa3-fp8"), name=""
    )


def test_accumulators_of_all_sums_and_of_one():
    """Catches one sum's accumulator overwritten by that of all, whatever the order of the words."""
    p = plan(accumulator__S="pairwise:fp16", accumulator="chunked8:bf16")
    assert p.accumulator(Site.S) == Accumulator(order=Order.PAIRWISE, step=rounding("fp16"))
    assert all(
        p.accumulator(s) == Accumulator(order=Order.CHUNKED, chunk=8, step=BF16)
        for s in PRODUCTS
        if s is not Site.S
    )


def test_only_and_but():
    """Catches sites that are not widened, steps taken for events, and orders that have no binary64
    steps.
    """
    base, of = Plan.preset("qiu-yao"), partial(plan, preset="qiu-yao")
    assert of(only="O") == replace(EXACT.at("O", BF16), name="")
    assert of(only="PV.step", accumulator="pairwise") == replace(
        EXACT.adding("PV", Accumulator(order=Order.PAIRWISE)), name=""
    )
    assert of(accumulator="exact", only="P").accumulators == EXACT.accumulators
    assert of(but="S.step+M") == replace(
        base.adding("S", Accumulator(step=BINARY64)).at("M", BINARY64), name=""
    )
    assert of(only="PV+O", but="O") == of(only="PV")


def test_unfused():
    """Catches P V that stays part of O."""
    p = plan(preset="fa2-bf16", unfused=True)
    assert (p.normalise_first, p.pv_into_o) == (True, False) and p[Site.P] == BF16


def test_exp_stabiliser_and_key_order():
    """Catches choices that do not reach the plan, also with a preset that normalises first."""
    p = plan(preset="baseline-bf16", exp="base2", stabiliser=3, key_order="descending")
    assert (p.exp, p.stabiliser.beta, p.key_order) == ("base2", 3.0, "descending")
    assert plan(stabiliser="none").stabiliser is None


def test_one_seed_for_stochastic_roundings_steps_and_noise():
    """Catches random bits that do not change with the seed, or deterministic roundings that do
    (their plans should be shared).
    """
    cell = cell_of(
        {
            "mode.O": "stochastic",
            "accumulator.S": "ascending:bf16:stochastic",
            "injection": "P:noise=0.5",
            "seed": 7,
        }
    )
    assert (cell.plan[Site.O].seed, cell.plan.accumulator(Site.S).step.seed) == (7, 7)
    assert cell.inject == (Injection(site=Site.P, what=Noise(ulps=0.5, seed=7)),)
    assert cell.plan[Site.P].seed == 0 and cell_of({"seed": 7}).plan is cell_of({"seed": 8}).plan


def test_a_mode_leaves_binary64_alone():
    """Catches events of the golden kind that would draw random bits for nothing."""
    assert plan(preset="exact", mode="stochastic") == replace(EXACT, name="")


def test_an_injection():
    """Catches places that are lost."""
    assert cell_of({"injection": "O:ulps=0.5:rows=0-3:heads=1"}).inject == (
        Injection(site=Site.O, what=AddUlps(ulps=0.5), rows=range(4), heads=range(1, 2)),
    )


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (
            {"only": "PV", "preset": "fa2-bf16"},
            "only 'PV': fa2-bf16; only=PV accumulates P V into O",
        ),
        (
            {"but": "ALPHA", "unfused": True, "preset": "qiu-yao"},
            "normalises before P V and never rescales",
        ),
        (
            {"unfused": True},
            "preset=fa2 unfused=True: row_sum=lanes: its lanes are kept from tile to tile, and a"
            " softmax of whole rows has one; use row_sum=plain before unfused=true; preset=fa2 is"
            " the default, and preset=fa2-bf16 can have that",
        ),
        ({"stabiliser": 2}, "; preset=fa2 is the default, and preset=fa2-bf16 can have that"),
        (
            {"format.PV": "bf16", "preset": "fa2-bf16"},
            "format.PV 'bf16': fa2-bf16; PV=bf16 accumulates P V into O",
        ),
        ({"only": "DQ"}, "only 'DQ': DQ belongs to the backward, which does not run"),
        ({"accumulator.DK": "exact"}, "accumulator.DK 'exact': DK belongs to the backward"),
        ({"injection": "O:ulsp=1"}, "injection 'O:ulsp=1': unknown change 'ulsp=1'"),
        ({"injection": "5"}, "one with commas goes into a .toml file"),
        (
            {"injection": "O:ulps=1:rows=0-256"},
            "injection O:rows=256: the cell has 256, numbered from 0 to 255",
        ),
        ({"injection": "O:ulps=1:heads=4"}, "injection O:heads=4: the cell has 4"),
        ({"injection": "O:ulps=1:tiles=4"}, "injection O:tiles=4: the cell has 4"),
        (
            {"injection": "P:ulps=1:tiles=1", "preset": "baseline-bf16"},
            "injection P:tiles=1: the cell has 1",
        ),
        ({"injection": "P:ulps=1:columns=256"}, "injection P:columns=256"),
        ({"injection": "O:ulps=1:features=64"}, "injection O:features=64: the cell has 64"),
        (
            {"injection": "DQ:exact"},
            "DQ belongs to the backward, which does not run; give --backward",
        ),
        ({"injection": "AO:exact", "preset": "baseline-bf16"}, "never rescales"),
        ({"injection": "OUT:flip=16"}, "bits 0 to 15"),
        ({"injection": "O:flip=3", "engine": "xla"}, "cannot flip bits; use engine=numpy"),
        ({"injection": "INV:flip=3", "preset": "qiu-yao"}, "INV is fp64"),
        ({"input": "gausian"}, "unknown input 'gausian'; did you mean 'gaussian'?"),
        ({"input": "none/such.npz"}, "input 'none/such.npz': no such file"),
        ({"input": "sample:layer9"}, "input 'sample:layer9': unknown layer 'layer9'"),
        ({"input": "sample", "T": 513}, "T 513: input sample has 512"),
        ({"input": "sample", "N": 13}, "N 13: input sample has 12"),
        ({"input": "sample", "H": 64}, "H 64: input sample has 32 features"),
        ({"tile": 8, "block_q": 8}, "tile 8: sets block_q and block_k"),
        ({"tiel": 8}, "unknown axis 'tiel'; did you mean 'tile'?"),
    ],
)
def test_errors_name_parameter_value_and_repair(point, said):
    """Catches conditions that would run and do nothing, or fail one by one in the middle of a
    sweep.
    """
    with pytest.raises(UsageError) as error:
        cell_of(point)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_occurs_elsewhere_is_fine():
    """Catches a check that rejects steps of P V where they add into O, backward sites in a
    backward, or 'preset' for no change.
    """
    assert (
        cell_of({"only": "PV.step", "preset": "fa2-bf16"})
        .plan.accumulator(Site.PV)
        .step.format.name
        == "fp32"
    )
    assert cell_of({"only": "DQ+DO", "backward": True}).plan[Site.DO] == BF16
    assert cell_of({"format.PV": "preset", "preset": "fa2-bf16"}).plan == Plan.preset("fa2-bf16")


def test_the_sample_is_a_file():
    """Catches sizes that are not the file's, a crop of one side only, and a digest that is not of
    the bytes.
    """
    cell = cell_of({"input": "sample"})
    assert [cell[n] for n in ("T", "S", "N", "H")] == [512, 512, 12, 32]
    assert cell.content == hashlib.sha256(sample_path().read_bytes()).hexdigest()
    cropped = cell_of({"input": "sample:layer4", "T": 100, "N": 3, "backward": True})
    assert [cropped[n] for n in ("T", "S", "N", "H")] == [100, 100, 3, 32]


@pytest.fixture
def crossed(tmp_path):
    """A file of cross-attention: 6 queries, 10 keys, 4 heads over 2 key heads, no do, layout in its
    metadata.
    """
    path = tmp_path / "cross.npz"
    rng = np.random.default_rng(0)
    arrays = {"q": (1, 6, 4, 8), "k": (1, 10, 2, 8), "v": (1, 10, 2, 8)}
    np.savez(
        path,
        layout="BTNH",
        **{n: rng.standard_normal(s, dtype=np.float32) for n, s in arrays.items()},
    )
    return str(path)


def test_a_file_of_cross_attention(crossed):
    """Catches keys that follow T where the file has its own, and injections beyond the key
    heads.
    """
    assert [cell_of({"input": crossed, "T": 5})[n] for n in ("T", "S", "N", "H")] == [5, 10, 4, 8]
    assert cell_of({"input": crossed, "S": 7})["T"] == 6
    with pytest.raises(UsageError, match=r"K:heads=2: the cell has 2"):
        cell_of({"input": crossed, "injection": "K:exact:heads=2"})
    with pytest.raises(UsageError, match=r"N 3: .* 2 query heads per key head"):
        cell_of({"input": crossed, "N": 3})
    with pytest.raises(UsageError, match="has no do"):
        cell_of({"input": crossed, "backward": True})


def test_a_file_without_layout(tmp_path):
    """Catches advice that `roundscope sweep` cannot follow: it has no --layout."""
    path = tmp_path / "bare.npz"
    np.savez(path, **{n: np.ones((1, 2, 2, 2), np.float32) for n in "qkv"})
    with pytest.raises(UsageError, match=r"add an entry layout=BNTH .* has none") as error:
        cell_of({"input": str(path)})
    assert "--layout" not in str(error.value)


def test_a_thousand_cells_are_quick():
    """Catches plans that are built anew for every cell (35 roundings each).

    Best of three in time of the processor, since the machine is shared.
    """
    took = []
    for trial in range(3):
        start = time.process_time()
        for seed in range(1000):
            cell_of(
                {
                    "preset": "fa3-fp8",
                    "mode.O": "toward-zero",
                    "only": "O+P",
                    "T": 16 + trial,
                    "seed": seed,
                }
            )
        took.append(time.process_time() - start)
    assert min(took) < 0.5
