"""Training with `engine=pallas`: the derivative, which plan a step has, what is refused. On a GPU: tests.gpu_train."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.errors import UsageError
from experiments.train import fused, groups, model, plans, step
from experiments.train.config import Config
from experiments.train.interventions import plans_of
from experiments.train.settings import settings

CONFIG = Config(
    layers=2, heads=2, width=32, context=24, vocab=16, batch=2, block=16, plan="fa2-bf16", sums="preset", engine="pallas", matmul="fp32"
)  # fmt: skip
WORDS = ("layers=2", "heads=2", "width=32", "context=24", "block=16", "plan=fa2-bf16", "sums=preset", "engine=pallas", "data=repeat")


@pytest.fixture
def on_gpu(monkeypatch):
    """A machine that says it has a GPU; nothing is compiled for it."""
    fused.fused_plan.cache_clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield
    fused.fused_plan.cache_clear()


def test_one_plan_in_fused_kernels_is_that_plan_for_every_head():
    """Arms, layers or heads that the kernels mix up, a tile that ends beyond the context, a gradient that is not the kernels'."""
    config = replace(CONFIG, layers=1)
    with jax.enable_x64(True):  # interpreted
        params = jax.tree.map(lambda *x: jnp.stack(x), *(model.init(config, jax.random.key(seed)) for seed in (0, 1)))
        tokens = np.random.default_rng(3).integers(0, config.vocab, (2, config.context + 1)).astype(np.int32)
        ours, theirs = (
            jax.jit(jax.vmap(jax.value_and_grad(lambda p, own=own: model.loss(p, tokens, own, config))))(params)
            for own in (plans.base(config), plans.uniform(config))
        )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), ours, theirs))
    assert float(ours[0][0]) != float(ours[0][1])


def test_a_step_has_the_plan_of_its_arm_and_time(on_gpu):
    """Arms of other plans that share an executable, a change from a step on that the kernels do not see."""
    asked = settings(WORDS, arms=["a=", "b=site=O -> fp16", "c=lr=1"], at=["5: site=P -> fp16"])
    assert groups.numbers(asked) == [[0, 2], [1]]
    found = [groups.fused_at(asked, asked.arms[arm], number) for arm, number in ((0, 0), (1, 0), (0, 5), (1, 5))]
    base = plans.base(asked.config)
    assert found == [base, base.at("O", "fp16"), base.at("P", "fp16"), base.at("O", "fp16").at("P", "fp16")]
    group = groups.Group(asked, [0, 2], step.start(asked.config, 2))
    assert group._advance(0) is group._advance(4) is not group._advance(5)


@pytest.mark.parametrize(
    ("change", "changes", "said"),
    [
        ("layer=1 site=O -> bf16", {}, "layers or heads differ"),
        ("head=1 site=O -> bf16", {}, "layers or heads differ"),
        ("site=O -> bf16:stochastic", {}, "same at every step"),
        ("-> fp32", {"block": 24}, "powers of two from 16 on"),
        ("-> plan=baseline-bf16", {}, "softmax before P V"),
        ("-> mx=mxfp8_e4m3", {}, ""),
    ],
)
def test_what_the_kernels_do_not_do_is_refused(on_gpu, change, changes, said):
    """A plan of one layer used for all, a seed that never changes, an error from inside a compilation."""
    config = replace(CONFIG, **changes)
    own = plans_of(config, (change,))
    if not said:
        assert fused.fused_plan(config, own, None) == plans.base(config)  # of the linear layers
        return
    with pytest.raises(UsageError, match=said):
        fused.fused_plan(config, own, None)


def test_an_offset_is_refused(on_gpu):
    """An error that is asked for and not made."""
    asked = settings(WORDS, arms=["a=-> offset=16:bias"])
    with pytest.raises(UsageError, match="give engine=xla"):
        groups.numbers(asked)
