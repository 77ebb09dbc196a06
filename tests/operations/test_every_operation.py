"""What holds for every operation of the catalogue and every plan that it publishes."""

from dataclasses import replace

import numpy as np
import pytest

from roundscope.emu.stats.classify import COUNTS
from roundscope.events.injection import InjectionBase, SetTo
from roundscope.events.recorder import RecordBase
from roundscope.operations import OPERATIONS, run
from roundscope.operations.operation import Shape
from roundscope.operations.run import plan_of
from tests.operations.examples import FORMULAS, inputs_of

WITH_GRADIENTS = [name for name, own in OPERATIONS.items() if own.backward]
PLANS = [(name, plan) for name, own in OPERATIONS.items() for plan in own.published]
every_operation = pytest.mark.parametrize("name", OPERATIONS)
every_plan = pytest.mark.parametrize(("name", "plan"), PLANS)
every_plan_some_in_ci = pytest.mark.parametrize(
    ("name", "plan"),
    [
        pytest.param(*each, marks=[] if each == found[-1] else [pytest.mark.thorough])
        for name in OPERATIONS
        if (found := [each for each in PLANS if each[0] == name])
        for each in found
    ],
)


def but_in_ci(names, *longer):
    """Parametrize by these operations, of which some run with the thorough tests alone."""
    marks = {name: [pytest.mark.thorough] if name in longer else [] for name in names}
    return pytest.mark.parametrize("name", [pytest.param(n, marks=m) for n, m in marks.items()])


SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-45, 3e38, -60000.0, 1e-7)


def same(a, b):
    return np.array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64), equal_nan=True)


def assert_same_run(own, plan, given):
    """NumPy and XLA return the same outputs and record the same counts."""
    one, two = (
        run(own, plan, given, record=RecordBase(), engine=engine) for engine in ("numpy", "xla")
    )
    assert list(one.outputs) == list(two.outputs)
    for name, x in one.outputs.items():
        assert x.dtype == two.outputs[name].dtype and same(x, two.outputs[name]), name
    assert list(one.stats) == list(two.stats)
    for site, stats in one.stats.items():
        for name in COUNTS:
            assert same(getattr(stats, name), getattr(two.stats[site], name)), (site, name)


@every_plan_some_in_ci
def test_numpy_and_xla_agree(name, plan):
    """A sum that XLA reorders, a product that it fuses, an event that one engine leaves out."""
    assert_same_run(name, plan, inputs_of(name))


@but_in_ci(OPERATIONS, "layer_norm", "gelu_tanh")
def test_numpy_and_xla_agree_on_special_values(name):
    """A subnormal number that XLA flushes; NaN that a maximum drops."""
    rng = np.random.default_rng(9)
    given = inputs_of(name, (12,))
    for x in given.values():
        if np.issubdtype(x.dtype, np.floating):
            flat = x.reshape(-1)
            flat[rng.permutation(flat.size)[: len(SPECIAL)]] = SPECIAL[: flat.size]
    for plan in (list(OPERATIONS[name].published)[-1], "fp32"):
        assert_same_run(name, plan, given)


@every_operation
def test_exact_is_the_formula(name):
    """A sign, an axis, a mean over the wrong count."""
    given = {
        n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in inputs_of(name).items()
    }
    found = run(name, "exact", given).outputs
    first = next(iter(found.values()))
    wanted = FORMULAS[name](**given)
    assert first.shape == wanted.shape and first.dtype == np.float64
    np.testing.assert_allclose(first, wanted, rtol=1e-13, atol=1e-14)


@every_plan
def test_every_plan_computes_the_operation(name, plan):
    """A step that a narrow plan leaves out."""
    if plan == "transformers-gptj":
        pytest.skip("rotates other features: tests/operations/test_rope.py")
    given = inputs_of(name)
    found, exact = (next(iter(run(name, p, given).outputs.values())) for p in (plan, "exact"))
    if (
        "unit_offset" in OPERATIONS[name].plan.choices()
        and plan_of(OPERATIONS[name], plan).unit_offset
    ):
        exact = exact / given["weight"] * (1.0 + given["weight"])
    if "pairs" in OPERATIONS[name].plan.choices() and plan_of(OPERATIONS[name], plan).pairs:
        return  # another function: its features are in another order (tests/operations/test_rope)
    # operands of 4 bits, or of 2, each of which is off by a quarter at most; results of up to 40
    bits = {"e4m3": 1.5, "mxfp8": 1.5, "mxfp4": 10.0, "nvfp4": 10.0}
    size = max([0.05, *(most for word, most in bits.items() if word in plan)])
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0.05, atol=size)


@every_plan
def test_an_injection_at_every_site_does_something_or_is_refused(name, plan):
    """An event that the equations do not call; an error that is dropped in silence."""
    given = inputs_of(name)
    own = OPERATIONS[name]
    before = run(name, plan, given, record=RecordBase())
    assert len(before.stats) > 2
    for site in own.plan.SITES:
        error = InjectionBase(site=site, what=SetTo(value=3.0))
        if site not in before.stats:
            with pytest.raises(ValueError, match=f"no event {site};"):
                run(name, plan, given, inject=[error])
            continue
        after = run(name, plan, given, inject=[error]).outputs
        assert not all(same(before.outputs[n], x) for n, x in after.items()), site


def gradients_of(name, given):
    """Gradients of all outputs of a call."""
    outputs = run(name, "exact", given).outputs
    rng = np.random.default_rng(8)
    return {n: rng.normal(size=x.shape).astype(np.float32) for n, x in outputs.items()}


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_are_slopes(name):
    """A sign or a factor in a gradient, or one that forgets a path to the output."""
    given = {
        n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in inputs_of(name).items()
    }
    after = gradients_of(name, given)

    def scalar(**changed):
        found = run(name, "exact", given | changed).outputs
        return sum(float((after[n] * x).sum()) for n, x in found.items())

    found = run(name, "exact", given, gradients=after).gradients
    constants = {"cos", "sin"}
    assert set(found) | constants >= {n for n, x in given.items() if x.dtype.kind == "f"}
    for n, gradient in found.items():
        assert gradient.shape == given[n].shape
        for place in (0, 3, given[n].size - 1):
            step = np.zeros(given[n].size)
            step[place] = 1e-5
            step = step.reshape(given[n].shape)
            slope = scalar(**{n: given[n] + step}) - scalar(**{n: given[n] - step})
            assert slope / 2e-5 == pytest.approx(gradient.flat[place], rel=1e-5, abs=1e-6), n


@but_in_ci(WITH_GRADIENTS, "gelu", "gelu_tanh")
def test_gradients_are_the_same_under_xla(name):
    """A backward that XLA fuses; an injection at a backward event that is lost."""
    given = inputs_of(name)
    after = gradients_of(name, given)
    for plan in list(OPERATIONS[name].published)[1:3]:
        one, two = (
            run(name, plan, given, gradients=after, engine=engine, record=RecordBase())
            for engine in ("numpy", "xla")
        )
        assert all(same(x, two.gradients[n]) for n, x in one.gradients.items())
        assert list(one.stats) == list(two.stats)
    for site in (s for s in OPERATIONS[name].plan.SITES if s.stage == "backward"):
        error = InjectionBase(site=site, what=SetTo(value=3.0))
        if site in one.stats:
            hit = run(name, plan, given, gradients=after, inject=[error]).gradients
            assert not all(same(one.gradients[n], x) for n, x in hit.items()), site


@but_in_ci(OPERATIONS, "layer_norm", "gelu", "gelu_tanh")
def test_rows_do_not_depend_on_each_other(name):
    """A coordinate that is counted from the first row of a part; random bits of columns alone."""
    own = OPERATIONS[name]
    given = inputs_of(name, (9,))
    plan = plan_of(own, "fp32")
    for site in own.plan.SITES:
        plan = plan.at(site, "bf16", "stochastic", seed=7)
    parts = {
        v.name: given[v.name] if v.shape is Shape.SHARED else given[v.name][:4]
        for v in own.inputs
        if v.name in given
    }
    settings = {"reduction": "none"} if name == "cross_entropy" else {}
    for engine in ("numpy", "xla"):
        whole, part = (
            next(iter(run(own, plan, x, settings=settings, engine=engine).outputs.values()))
            for x in (given, parts)
        )
        assert same(whole[:4], part)


@every_operation
def test_an_operation_is_said_completely(name):
    """A number or a stream that two have; a site without a formula; a plan under another name."""
    own = OPERATIONS[name]
    assert 0 < own.number < 256
    assert [o.name for o in OPERATIONS.values() if o.number == own.number] == [name]
    streams = [site.stream for site in own.plan.SITES]
    assert len(set(streams)) == len(streams) and max(streams) < 64
    assert all(site.formula for site in own.plan.SITES)
    assert all(plan_of(own, n).name == n for n in own.published)
    for choice in own.plan.choices().values():
        assert choice.doc and choice.words


@every_operation
def test_every_word_of_a_plan_is_read(name):
    """A choice, a sum or a stage that the grammar takes for one of attention."""
    own = OPERATIONS[name]
    plan = plan_of(own, "fp32")
    for choice in own.plan.choices().values():
        for word in choice.words:
            made = plan.changed(f"{choice.name}={word}")
            assert str(getattr(made, choice.name)).lower() == word
            assert made.name == f"fp32; {choice.name}={word}"
    for site in own.plan.SITES:
        made = plan_of(own, f"fp32; {site}=bf16:toward-zero; {site}.mode=stochastic")
        assert str(made[site]) == "bf16:stochastic"
        alone = plan.changed(f"only={site}")
        assert [s for s in own.plan.SITES if str(alone[s]) == "fp32"] == [site]
    for site in own.plan.PRODUCTS:
        made = plan.changed(f"{site}.sum=pairwise:bf16")
        assert made.accumulator(site) == replace(made.accumulator(site), order="pairwise")
        assert str(made.accumulator(site)) == "pairwise bf16"
    assert str(plan.changed("inputs=bf16")[next(iter(own.plan.SITES))]) == "bf16"
    for wrong in ("softcap=1", "PV=bf16", "plan=fp32", "PV.sum=ascending", "only=PV"):
        with pytest.raises(ValueError, match=r"unknown|no sum"):
            plan.changed(wrong)
