"""`Plan.changed`: words against plans edited by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundscope.attention import PRESETS, DeltaFrom, Plan, Site, Stabilizer
from roundscope.attention.grammar.differences import differences
from roundscope.attention.grammar.roundings import accumulator_of, accumulator_words, event_of
from roundscope.attention.grammar.roundings import spelled as event_words
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import Exponential, KeyOrder
from roundscope.attention.sites import BLOCK_AXIS, PRODUCTS
from roundscope.emu.blocks.format import BLOCK_NAMED, block_format
from roundscope.emu.blocks.names import ScaleRule
from roundscope.emu.roundings.modes import BINARY64, E4M3, E5M2, RoundingMode, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import ARCHITECTURES

BASE, EXACT = Plan.preset("fp32"), Plan.preset("exact")
BF16 = rounding("bf16")


def unnamed(plan):
    return replace(plan, name="")


BY_HAND = [
    ("O=bf16", BASE.at("O", BF16)),
    ("o=bf16:stochastic", BASE.at("O", "bf16", "stochastic", seed=7)),
    ("O=fp16:toward-zero:saturate", BASE.at("O", "fp16", "toward-zero", overflow="saturate")),
    ("O=fp16:SATURATE:Toward_Zero", BASE.at("O", "fp16", "toward-zero", overflow="saturate")),
    ("O=e4m3fn:nan", BASE.at("O", "e4m3fn", overflow="nan")),
    ("O=e4m3fn", BASE.at("O", E4M3)),
    ("O=e5m2:toward-zero", BASE.at("O", E5M2, "toward-zero")),
    ("O=e5m2:inf", BASE.at("O", "e5m2", overflow="inf")),
    ("O=e4m3fnuz", BASE.at("O", "e4m3fnuz", overflow="nan")),
    ("P=mxfp8_e4m3:rceil", BASE.at("P", block_format("mxfp8_e4m3", rule="rceil"))),
    (
        "P=mxfp4:stochastic:even",
        BASE.at("P", block_format("mxfp4", "stochastic", rule="even", seed=7)),
    ),
    ("inputs=bf16", BASE.rounded(dict.fromkeys((Site.Q, Site.K, Site.V, Site.DO), BF16))),
    ("O=bf16 P=fp16", BASE.at("O", BF16).at("P", "fp16")),
    ("O=bf16;P=fp16 ; O=fp32", BASE.at("P", "fp16")),
    ("site=O,P -> bf16", BASE.at("O", BF16).at("P", BF16)),
    ("-> bf16", BASE.rounded(dict.fromkeys(Site, BF16))),
    ("format=bf16", BASE.rounded(dict.fromkeys(Site, BF16))),
    ("format.O=bf16 mode.O=to-odd", BASE.at("O", "bf16", "to-odd")),
    ("O.mode=to-odd", BASE.at("O", "fp32", "to-odd")),
    ("mode=toward-zero", BASE.rounded(dict.fromkeys(Site, rounding("fp32", "toward-zero")))),
    (
        "O=bf16 DS=e4m3fn Q=bf16 casts=toward-zero",
        BASE.at("O", "bf16", "toward-zero").at("DS", "e4m3fn", "toward-zero").at("Q", BF16),
    ),
    ("PV.sum=ascending:bf16", BASE.adding("PV", Accumulator(step=BF16))),
    (
        "accumulator.PV=chunked8:bf16",
        BASE.adding("PV", Accumulator(order=Order.CHUNKED, chunk=8, step=BF16)),
    ),
    (
        "site=PV,S -> sum=exact",
        BASE.adding("PV", Accumulator(order=Order.EXACT)).adding(
            "S", Accumulator(order=Order.EXACT)
        ),
    ),
    (
        "sum=pairwise",
        replace(BASE, accumulators=(Accumulator(order=Order.PAIRWISE),) * len(PRODUCTS)),
    ),
    ("PV.sum=hopper:bf16", BASE.adding("PV", Accumulator.tensor_core("hopper", "bf16"))),
    ("delta_from=P_DP", replace(BASE, delta_from=DeltaFrom.P_DP)),
    ("exp=base2", replace(BASE, exp=Exponential.BASE2)),
    ("EXP=bf16", BASE.at("EXP", BF16)),
    ("key_order=descending", replace(BASE, key_order=KeyOrder.DESCENDING)),
    ("stabiliser=2", replace(BASE, stabiliser=Stabilizer(beta=2.0))),
    ("stabilizer=2.5 stabiliser=none", BASE),
    ("unfused=true", replace(BASE, normalise_first=True, pv_into_o=False)),
    ("plan=qiu-yao O=fp32", Plan.preset("qiu-yao").at("O", "fp32")),
    ("only=O+PV.step", EXACT.at("O", "fp32").adding("PV", BASE.accumulator(Site.PV))),
    ("but=O", BASE.at("O", BINARY64)),
]


@pytest.mark.parametrize(("text", "wanted"), BY_HAND, ids=[text for text, _ in BY_HAND])
def test_words_are_the_plan_made_by_hand(text, wanted):
    """A word that reaches another site, loses its mode, or is another kind of change than it
    says.
    """
    assert unnamed(BASE.changed(text, seed=7)) == unnamed(wanted)


def test_changes_apply_in_turn_and_the_name_says_that_there_were_some():
    assert (
        BASE.changed("O=bf16", "O=fp16") == BASE.at("O", "fp16")
        and BASE.changed("O=bf16").name == "fp32; O=bf16"
    )
    assert (
        BASE.changed() == BASE
        and BASE.changed("") == BASE
        and BASE.changed("plan=qiu-yao") == Plan.preset("qiu-yao")
    )


def test_seeds_are_those_of_stochastic_roundings_only():
    """A seed that tells apart plans which draw nothing, or that misses the steps of sums."""
    plan = BASE.changed("O=bf16:stochastic", "PV.sum=ascending:bf16:stochastic", seed=5)
    assert (plan[Site.O].seed, plan.accumulator(Site.PV).step.seed, plan[Site.P].seed) == (5, 5, 0)
    assert plan.changed("P=bf16")[Site.O].seed == 5 and BASE.changed(
        "O=bf16", seed=5
    ) == BASE.changed("O=bf16", seed=6)


SUMS = [
    "exact:bf16",
    "chunked3:bf16:toward-zero",
    "halves",
    "native",
    "ada:e5m2",
    "volta:fp16:fp16",
]
OF_PLANS = [
    "delta_from=CENTRED",
    "delta_from=O",
    "exp=base2",
    "stabiliser=3.25",
    "unfused=true",
    "key_order=descending",
    "only=O",
    "but=P+PV.step",
]


def texts(*parts):
    """Words joined of one of each of several lists."""
    return st.tuples(*map(st.sampled_from, parts)).map(lambda p: "{}={}:{}".format(*p))


SOME = st.one_of(
    texts(list(Site), ["bf16", "e5m2", "e4m3fn", "e3m4"], list(RoundingMode)),
    texts(list(BLOCK_AXIS), ["mxfp8_e4m3", "mxfp4", "mxint8"], ["floor", "rceil", "even"]),
    st.tuples(st.sampled_from(PRODUCTS), st.sampled_from(SUMS)).map(lambda p: f"{p[0]}.sum={p[1]}"),
    st.sampled_from(OF_PLANS),
)


@given(st.sampled_from(sorted(PRESETS)), st.lists(SOME, max_size=4))
def test_a_plan_is_the_other_one_changed_by_their_differences(preset, texts):
    """A report whose words make another plan than the one that ran."""
    base = Plan.preset(preset)
    try:
        plan = base.changed(*texts)
    except ValueError:  # a site that the plan never reaches
        return
    words = differences(plan, base)
    reached = plan.rounded({site: base.event(site) for site in Site if absent(plan, site)})
    assert unnamed(base.changed(*words)) == unnamed(reached)


def test_every_block_format_and_sum_is_spelled_as_it_is_read():
    for name in BLOCK_NAMED:
        for rule in ScaleRule:
            try:
                made = block_format(name, "stochastic", rule=rule)
            except ValueError:
                continue
            assert event_of(event_words(made)) == made
    for arch, core in ARCHITECTURES.items():
        for operand in core.operands:
            made = Accumulator.tensor_core(arch, operand)
            assert accumulator_of(accumulator_words(made)) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("O", "write SITE=FORMAT[:MODE], as in O=bf16:stochastic"),
        ("=bf16", "write SITE=FORMAT"),
        ("O=", "write SITE=FORMAT"),
        ("site=O bf16", "WHERE -> WHAT"),
        ("site=O ->", "WHERE -> WHAT"),
        ("site=O site=P -> bf16", "each once"),
        ("OO=bf16", "unknown site 'OO'; did you mean 'O'"),
        ("delta_form=O", "did you mean 'delta_from'"),
        ("O=bf61", "unknown format 'bf61'; did you mean 'bf16'"),
        ("O=mxfp9", "in blocks: mxfp8_e4m3"),
        ("O=bf16:stochastik", "did you mean 'stochastic'"),
        ("O=bf16:stochastic:to-odd", "stochastic and to-odd both set the mode"),
        ("O=bf16:saturate:inf", "both set the overflow"),
        ("O=bf16:rceil", "has no scale"),
        ("O=e8m0fnu", "scale format"),
        ("P=mxfp4:ceil:floor", "both set the rule"),
        ("O=mxfp4", "the operands of products are"),
        ("O=e4m3fn:inf", "has no infinity"),
        ("PV.sum=exactly", "did you mean 'exact'"),
        ("P.sum=exact", "P is no sum of products"),
        ("PV.sum=hopper", "hopper:bf16"),
        ("PV.sum=ascending:mxfp4", "is of blocks"),
        ("PV.sum=native:bf16", "leave the format out"),
        ("PV.step=bf16", "write PV.sum=ORDER:FORMAT"),
        ("PV.sums=exact", "did you mean 'PV.sum'?"),
        ("exp=bf16", "the event is EXP"),
        ("delta_from=PDP", "did you mean 'P_DP'"),
        ("stabiliser=1", "above 1"),
        ("unfused=1", "true or false"),
        ("plan=qiu", "unknown preset 'qiu'"),
        ("site=O -> plan=fp32", "leave site= out"),
        ("site=O -> P=bf16", "leave site= out"),
        ("layer=1 -> O=bf16", "there is no layer= here"),
        ("laier=1 -> O=bf16", "unknown place"),
        ("plan=fa2-bf16 PV=bf16", "use O"),
        ("unfused=true AO=bf16", "never rescales"),
        ("only=PW", "unknown site 'PW'"),
    ],
)
def test_errors_name_the_word_and_the_repair(text, said):
    """A word that is silently ignored, or a traceback."""
    with pytest.raises(ValueError) as error:
        BASE.changed(text)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_an_unknown_event_lists_those_of_the_plan():
    """ROWSUM and PV, which fa2 lacks, and neither CM nor LANES, which it has."""
    with pytest.raises(ValueError, match="unknown site 'ZZZ'") as said:
        Plan.preset("fa2").changed("ZZZ=bf16")
    known = str(said.value).partition("Known: ")[2].split()
    assert {"CM", "DX", "LANES", "OI"} <= {*known} and not {"ROWSUM", "PV"} & {*known}
