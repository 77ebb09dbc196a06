"""Plans of real kernels in words: `Plan.changed` and `differences`."""

import hashlib
import itertools
import pickle
from dataclasses import replace

import pytest

from roundscope.attention import Plan, Site
from roundscope.attention.grammar.differences import count_of_differences, differences
from roundscope.attention.grammar.roundings import accumulator_of, accumulator_words
from roundscope.attention.grammar.text import plan_of
from roundscope.attention.places import absent
from roundscope.attention.plans.choices import Exponential, Log2E, Polynomial, RowSum, Sinks
from roundscope.attention.plans.hopper import EIGHTS, HOPPER
from roundscope.attention.plans.presets import PRESETS
from roundscope.attention.plans.record import CHOICES, OF_KERNEL
from roundscope.attention.plans.twins import TWINS
from roundscope.emu.formats.format import Format
from roundscope.emu.roundings.modes import Rounding, rounding
from roundscope.emu.sums.accumulator import Accumulator, Order
from roundscope.emu.sums.tensor_cores import ARCHITECTURES

BASE = Plan.preset("fa2-bf16")


def unnamed(plan):
    return replace(plan, name="")


@pytest.mark.parametrize("twin", TWINS)
def test_a_twin_is_a_preset_changed_by_their_differences(twin):
    """A field or a sum of a kernel's plan that has no words, or words that make another plan."""
    plan = TWINS[twin].plan
    words = differences(plan, BASE)
    plan = plan.rounded({site: BASE.event(site) for site in Site if absent(plan, site)})
    assert unnamed(BASE.changed(*words)) == unnamed(plan)
    assert unnamed(BASE.changed(" ".join(words))) == unnamed(plan)
    assert differences(plan, plan) == []
    named = BASE.changed(*words)
    assert plan_of(named.name) == named == eval(repr(named), {"Plan": Plan})


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("preset", ["qiu-yao", "fp32"])
def test_other_presets_reach_the_twins_too(twin, preset):
    """Words that hold from one preset only; P V into O, which had no word."""
    plan, base = TWINS[twin].plan, Plan.preset(preset)
    reached = plan.rounded({site: base.event(site) for site in Site if absent(plan, site)})
    assert unnamed(base.changed(*differences(plan, base))) == unnamed(reached)


NUMBERS = {
    int: (0, 1, 3),
    float: (0.0, 2.5, 4.0),
    Polynomial | None: (None, Polynomial(10, 4, 1)),
}


def test_every_field_of_kernels_has_its_word_and_every_value():
    """A new field, or value of one, that the grammar does not know."""
    for name in OF_KERNEL:
        before = CHOICES[name].example.rpartition(" ")[0]
        old = getattr(BASE.changed(before), name)
        values = CHOICES[name].values or NUMBERS[CHOICES[name].kind]
        for value in values:
            base = BASE.changed("unfused=true" if value is Sinks.KEY else before)
            word = str(value).lower() if isinstance(value, bool) or value is None else value
            made = base.changed(f"{name}={word}")
            assert getattr(made, name) == value and type(getattr(made, name)) is type(value)
            assert unnamed(replace(made, **{name: old})) == unnamed(base)
            assert unnamed(base.changed(*differences(made, base))) == unnamed(made)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("strided32", Accumulator(order=Order.STRIDED, chunk=32)),
        ("octets8", Accumulator(order=Order.OCTETS, chunk=8)),
        ("octet-pairs16", Accumulator(order=Order.OCTET_PAIRS, chunk=16)),
        ("octets2:bf16", Accumulator(order=Order.OCTETS, chunk=2, step=rounding("bf16"))),
        ("warps4", Accumulator(order=Order.WARPS, chunk=4)),
        ("quad-warps128", Accumulator(order=Order.QUAD_WARPS, chunk=128)),
        ("octet-warps256", Accumulator(order=Order.OCTET_WARPS, chunk=256)),
        ("block32", Accumulator(order=Order.BLOCK, chunk=32)),
        ("cascade8", Accumulator(order=Order.CASCADE, chunk=8)),
        (
            "warps8:fp16:toward-zero",
            Accumulator(order=Order.WARPS, chunk=8, step=rounding("fp16", "toward-zero")),
        ),
        ("hopper:bf16", HOPPER),
        ("hopper:e4m3fn*e5m2", Accumulator.tensor_core("hopper", "e4m3fn*e5m2")),
        ("hopper-8:bf16", EIGHTS),
        ("volta-2:fp16:fp16", replace(Accumulator.tensor_core("volta", "fp16", "fp16"), chunk=2)),
    ],
)
def test_a_sum_s_word_is_the_sum(word, wanted):
    """The order warps, and a tensor core's shorter instruction, that were in plans but not in
    words.
    """
    assert accumulator_of(word) == wanted and accumulator_words(wanted) == word
    assert BASE.changed(f"S.sum={word}").accumulator(Site.S) == wanted


def test_every_shorter_tensor_core_is_spelled_as_it_is_read():
    """The chunk of one architecture under the name of another."""
    for arch, core in ARCHITECTURES.items():
        for operand in core.operands:
            whole = Accumulator.tensor_core(arch, operand)
            for chunk in range(1, whole.chunk + 1):
                made = replace(whole, chunk=chunk)
                assert accumulator_of(accumulator_words(made)) == made
                assert accumulator_of(f"{arch}-{chunk}:{operand}") == made


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("hopper-m64n256k16:bf16", "hopper:bf16"),
        ("hopper-m16n8k8:bf16", "hopper-8:bf16"),
        ("ampere-m16n8k4:tf32", "ampere:tf32"),
        ("ampere-m16n8k8:tf32", "ampere:tf32"),
        ("blackwell-m128n8k64:nvfp4", "blackwell:nvfp4"),
        ("rtx_blackwell-m16n8k16:e4m3fn", "rtx_blackwell-16:e4m3fn"),
        ("cdna3-32x32x8:bf16", "cdna3:bf16"),
        ("cdna3-16x16x4:bf16", "cdna3-4:bf16"),
        ("cdna1-4x4x2:bf16", "cdna1:bf16"),
    ],
)
def test_an_instruction_s_shape_is_its_number_of_products(word, same):
    """k of another type, and a chunk larger than the unit adds at once."""
    assert accumulator_of(word) == accumulator_of(same)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("S.sum=hopper-m64n12k16:bf16", "instruction of hopper for bf16 'm64n12k16'"),
        ("S.sum=cdna3-32x32x9:bf16", "did you mean '32x32x"),
        ("S.sum=hopper-m16n8k32:e4m3fn", "instruction of hopper for e4m3fn"),
        ("S.sum=hopper-17:bf16", "1 to 16 products"),
        ("S.sum=hopper-0:bf16", "1 to 16 products"),
        ("S.sum=hopper-:bf16", "1 to 16 products"),
        ("S.sum=hopper-x:bf16", "1 to 16 products"),
        ("S.sum=hopper-8", "hopper-8:bf16"),
        ("S.sum=hoper-8:bf16", "unknown accumulator 'hoper-8'"),
        ("S.sum=strided", "strided32"),
        ("S.sum=octets", "octets8"),
        ("S.sum=octets0", "chunk=0"),
        ("S.sum=octet-pairs", "octet-pairs16"),
        ("S.sum=warp", "did you mean 'warps4'"),
        ("S.sum=warps12", "a power of two"),
        ("S.sum=warps:bf16:stochastic", "no random bits"),
        ("S.sum=strided32:bf16:stochastic", "no random bits"),
        ("exp=ex3", "did you mean 'ex2'"),
        ("log2_e=scale", "exp=base2 or exp=ex2"),
        ("exp=cuda log2_e=scale", "exp=base2 or exp=ex2"),
        ("log2_e=scales", "did you mean 'scale"),
        ("fused_exponent=1", "true or false"),
        ("saved_p=true", "normalise_first"),
        ("score_gradient=quotient", "saved_p and delta_from=P_DP"),
        ("row_sum=lane", "did you mean 'lanes'"),
        ("reciprocal=rpc", "did you mean 'rcp'"),
        ("log=lg", "did you mean 'lg2'"),
        ("exponent_again=later", "unknown exponent of the backward 'later'"),
        ("score_gradient=difernce", "did you mean 'difference'"),
        ("registers=yes", "true or false"),
        ("gradient_scale=registers", "did you mean 'register'"),
        ("query_order=down", "unknown order of queries"),
        ("exp=ex2 log2_e=scale stabiliser=2", "log2_e=none"),
        ("site=O -> registers=true", "leave site= out"),
        ("LS=bf16", "use SCALED"),
        ("OI=bf16", "use OUT"),
        ("row_sum=lanes ROWSUM=bf16", "use L"),
        ("unfused=true saved_p=true S_B=bf16", "use S, X or EXP"),
    ],
)
def test_errors_name_the_word_and_the_repair(text, said):
    """A word that is silently ignored, or a traceback."""
    with pytest.raises(ValueError) as error:
        BASE.changed(text)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_words_lead_back_from_a_twin_too():
    """exp=correct while log2_e still needs 2^x: words in an order in which no plan takes them."""
    made = BASE.changed("exp=ex2 log2_e=maximum fused_exponent=true row_sum=lanes")
    assert (made.exp, made.log2_e, made.row_sum) == (Exponential.EX2, Log2E.MAXIMUM, RowSum.LANES)
    assert unnamed(made.changed(*differences(BASE, made))) == unnamed(BASE)
    for plan in (twin.plan for twin in TWINS.values() if not twin.plan.normalise_first):
        reached = BASE.rounded({site: plan.event(site) for site in Site if absent(BASE, site)})
        assert unnamed(plan.changed(*differences(BASE, plan))) == unnamed(reached)


def test_the_older_word_for_warps():
    """A plan written before threads of eight were known."""
    assert BASE.changed("S.sum=warps") == BASE.changed("S.sum=warps4")


PLANS = {
    **{name: Plan.preset(name) for name in (*PRESETS, *TWINS)},
    "an edit": BASE.at("O", "bf16"),
    "a seed": BASE.changed("O=bf16:stochastic", "PV.sum=exact", seed=7),
    "a name": BASE.rounded({}, "mine"),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_repr_is_an_expression_that_makes_the_plan(name):
    """30 kB in an error message, in a notebook, in a debugger."""
    plan = PLANS[name]
    text = repr(plan)
    assert len(text) < 200
    assert eval(text, {"Plan": Plan, "replace": replace}) == plan


FORMAT = Format(name="mine", precision=6, emin=-9, max_finite=500.0, inf=False, nan=True)


def test_a_plan_without_words_has_all_its_fields_in_its_repr():
    own = BASE.rounded({Site.P: Rounding(format=FORMAT)})
    assert repr(own) == own.in_full()


def test_keys_of_stored_trials_have_the_old_repr():
    """Replays of a version before, which would be done again."""
    old = {"fa2-bf16": "ef58cba555ef45a7", "cudnn": "9731585ab4237d1b"}  # by that version
    for name, digest in old.items():
        full = replace(Plan.preset(name), rounded_heads=False).in_full()  # cudnn has it since
        assert hashlib.sha256(full.encode()).hexdigest().startswith(digest)
    assert "rounded_heads=True" in Plan.preset("cudnn").in_full()


def test_every_field_says_what_it_is():
    """A field whose number another has, or whose example its words or plans do not take."""
    numbers = sorted(own.number for own in CHOICES.values())
    assert len(set(numbers)) == len(numbers) and not {0, 1, 2, 10} & set(numbers)
    for name, own in CHOICES.items():
        assert f"{name}: " in Plan.__doc__ and own.doc.endswith((".", ".)")) and own.group
        if own.words:
            made = BASE.changed(own.example)
            assert getattr(made, name) != own.default and own.example.split()[-1].startswith(name)


def test_pickles_have_the_order_of_stored_fields():
    """A pickle of a version before, in which the fields stood in another order."""
    state = BASE.__getstate__()
    assert state[:4] == [BASE.name, BASE.roundings, BASE.accumulators, BASE.pv_into_o]
    assert state[10] == BASE.blocks and pickle.loads(pickle.dumps(BASE)) == BASE


def test_differences_are_counted_as_they_are_named():
    """A plan that is named by a base from which it has more changes than from another."""
    plans = [BASE, BASE.changed("V=mxfp8_e4m3"), *(t.plan for t in TWINS.values())]
    for plan, base in itertools.product(plans, plans[::5]):
        own = replace(plan, name=base.name)
        assert count_of_differences(plan, base) == len(differences(own, base))
