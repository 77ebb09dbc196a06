"""Training with `engine=pallas` and `cudnn`: the derivative, which plan a step has, what is
refused.

On a GPU: tests.checks.gpu_train.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest

from roundscope.attention.engines.kernels import engine as pallas_engine
from roundscope.attention.plans.traced import HeadPlans
from roundscope.experiments.train import devices, groups
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import engines, model, monitor, plans, step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.step import InParts
from roundscope.experiments.train.settings import settings
from roundscope.tools.errors import UsageError
from tests.checks.engines import bits

CONFIG = Config(
    layers=2,
    heads=2,
    width=32,
    context=24,
    vocab=16,
    batch=2,
    block=16,
    plan="fa2-bf16",
    sums="preset",
    engine="pallas",
    matmul="fp32",
)
WORDS = (
    "layers=2",
    "heads=2",
    "width=32",
    "context=24",
    "block=16",
    "plan=fa2-bf16",
    "sums=preset",
    "engine=pallas",
    "data=repeat",
)


@pytest.fixture
def on_gpu(monkeypatch):
    """A machine that says it has a GPU; nothing is compiled for it, and what is traced for it is
    forgotten.
    """
    cached = (
        engines.fused_plan.cache_clear,
        pallas_engine._forward.clear_cache,
        pallas_engine._backward.clear_cache,
    )
    for forget in cached:
        forget()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    for forget in cached:
        forget()


@pytest.mark.thorough
def test_one_plan_in_fused_kernels_is_that_plan_for_every_head():
    """Heads or batch entries that the kernels mix up, tiles that are not the run's, another scale
    or mask, a wrong gradient.
    """
    q, k, v, do = (
        np.random.default_rng(i)
        .standard_normal((2, CONFIG.context, CONFIG.heads, 16))
        .astype(np.float32)
        for i in range(4)
    )
    layers = plans.uniform(CONFIG)
    results = []
    with jax.enable_x64(True):  # interpreted
        for own in (plans.base(CONFIG), HeadPlans(layers.like, layers.table[0])):
            out, pull = jax.vjp(
                jax.jit(lambda q, k, v, own=own: model.attended(q, k, v, own, CONFIG)), q, k, v
            )
            results.append((out, *pull(do)))
    for ours, theirs in zip(*results, strict=True):
        assert np.array_equal(bits(ours), bits(theirs))


def test_a_step_has_the_plan_of_its_arm_and_time(on_gpu):
    """Arms of other plans that share an executable, a change from a step on that the kernels do not
    see.
    """
    asked = settings(WORDS, arms=["a=", "b=site=O -> fp16", "c=lr=1"], at=["5: site=P -> fp16"])
    assert groups.numbers(asked) == [[0, 2], [1]]
    first, second = (
        groups.Group(asked, arms, step.start(asked.config, len(arms))) for arms in ([0, 2], [1])
    )
    base = plans.base(asked.config)
    found = [group.fused(number) for group in (first, second) for number in (0, 4, 5)]
    other = base.at("O", "fp16")
    assert found == [base, base, base.at("P", "fp16"), other, other, other.at("P", "fp16")]


def test_steps_and_monitors_run_kernels(on_gpu):
    """A run in JAX's own attention, or a model that is read by another engine."""
    asked = settings(WORDS)
    group = groups.Group(asked, [0], step.start(asked.config, 1))
    tokens, lr = np.zeros((16, 25), np.int32), np.float32([1e-3])
    advance, table = group._executable(0)[0], group.plans(0)[0]
    read = monitor._reading(step.numbers_only(asked.config), group.fused(0))
    for traced in (
        advance.trace(group.state, tokens, None, lr, None, None),
        read.trace(group.state.params, tokens[:1], table, np.int32(0), None, None),
    ):
        assert str(traced.jaxpr).count("pallas_call") > 1  # forward and backward
    with pytest.raises(ValueError, match="must be given for plan=fa2-bf16"):
        step.advance(asked.config).trace(group.state, tokens, None, lr, None, None)


@pytest.mark.parametrize(
    ("change", "changes", "said"),
    [
        ("head=1 site=O -> bf16", {}, "heads of a layer differ"),
        ("layer=1 head=0 site=O -> bf16", {}, "heads of a layer differ"),
        ("site=O -> bf16:stochastic", {}, "same at every step"),
        ("-> fp32", {"block": None}, "16, 32, 64 or 128 rows, not 24; give block=64"),
        ("-> fp32", {"block": None, "context": 256}, "not 256; give block=64"),
        ("-> fp32", {"heads": 1, "width": 24}, "powers of two from 16 on"),
        ("-> plan=baseline-bf16", {}, "softmax before P V"),
        ("layer=1 -> plan=baseline-bf16", {}, "softmax before P V"),
        ("layer=1 site=O -> bf16:stochastic", {}, "same at every step"),
        ("-> fp32", {"batch": 2**23}, "2.31 elements or more"),
    ],
)
def test_what_the_kernels_do_not_do_is_refused(on_gpu, change, changes, said):
    """A plan of one layer used for all, a seed that never changes, an error from inside a
    compilation.
    """
    config = replace(CONFIG, **changes)
    with pytest.raises(UsageError, match=said):
        engines.fused_plan(config, plans_of(config, (change,)), None)


def test_changes_of_linear_layers_are_none_of_attention(on_gpu):
    """A run that is refused for what is done outside its kernels."""
    assert engines.fused_plan(CONFIG, plans_of(CONFIG, ("-> mx=mxfp8_e4m3",)), None) == plans.base(
        CONFIG
    )


def test_an_offset_is_refused(on_gpu):
    """An error that is asked for and not made."""
    with pytest.raises(UsageError, match="give engine=xla"):
        groups.numbers(settings(WORDS, arms=["a=-> offset=16:bias"]))


def test_cudnn_is_asked_before_a_folder_is_made(on_gpu):
    """An error from inside the first step: of a head that cuDNN does not take, of a machine without
    it.
    """
    with pytest.raises(UsageError, match="engine cudnn: "):
        engines.check_engine(Config(plan="jax", engine="cudnn", heads=4, width=20))


def test_arms_in_kernels_are_not_spread(monkeypatch):
    """Arms that are spread over devices, of which each would do all of the kernels' work."""
    monkeypatch.setattr(jax, "devices", lambda: [None, None])
    assert devices.place(CONFIG, [0, 1]).mesh is None


@pytest.mark.parametrize(
    ("words", "arms", "is_long", "has_one"),
    [
        ((), ("run=",), True, True),
        ((), ("run=",), False, False),
        ((), ("a=lr=1e-3", "b=lr=1e-2"), True, True),
        ((), ("run=layer=1 -> P=fp16",), True, False),
        ((), ("a=-> P=fp16", "b="), True, False),
        ((), ("run=-> P=bf16:stochastic",), True, False),
        ((), ("run=-> offset=64:bias",), True, False),
        (("plan=jax", "sums=native"), ("run=",), True, False),
    ],
)
def test_one_plan_of_all_is_part_of_a_long_run_s_step(words, arms, is_long, has_one):
    """A step for a plan that not all arms, layers and heads have; the same random bits again."""
    small = [word for word in WORDS if not word.startswith("engine=")]
    given = {word.partition("=")[0]: word for word in (*small, *words)}
    own = settings(list(given.values()), arms=arms)
    state = step.start(own.config, len(own.arms))
    for group in groups.groups(own, state, is_long=is_long):
        assert (group.sole(0) is not None) == has_one and group.fused(0) is None


def test_changes_of_all_arms_from_a_step_on_need_plans_as_data():
    """A run that compiles a step anew in its middle."""
    small = [word for word in WORDS if not word.startswith("engine=")]
    own = settings(small, at=["3: -> P=fp16"])
    (group,) = groups.groups(own, step.start(own.config, 1), is_long=True)
    assert group.sole(0) is None


def test_kernels_run_on_each_part_of_a_batch(on_gpu):
    """A part that is computed by another engine, or kernels that get the whole batch."""
    config = settings([*WORDS, "parts=4"]).config
    first, plan = step.start(config, 1), plans.base(config)
    own = InParts(step.numbers_only(config), None, step._loss(config, plan))
    traced = own._gradients.trace(first, np.zeros((4, 25), np.int32), np.int32(0), (None,) * 3)
    text = str(traced.jaxpr)
    assert text.count("pallas_call") > 1
    rows = config.heads * config.batch // 4
    assert f"[{rows},32,16]" in text and f"[{4 * rows},32,16]" not in text  # heads, padded tokens
