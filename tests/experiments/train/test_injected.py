"""`offset=` as a change of a run: which heads it hits, when, beside which arms, and the same bits
after an interruption.
"""

import json
import shutil
from dataclasses import asdict

import jax
import numpy as np
import pytest

from roundscope.experiments.cli.main import main
from roundscope.experiments.train import checkpoint, groups, record
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import monitor, offset, step
from roundscope.experiments.train.gpt.interventions import plans_of
from roundscope.experiments.train.gpt.offset import BIAS, FIXED, NOISE, Wrong
from roundscope.experiments.train.gpt.plans import by_arm, uniform
from roundscope.experiments.train.settings import Arm, Settings
from roundscope.tools.errors import UsageError

# of all that is trained here: one executable, of two arms with a batch each
CONFIG = Config(
    layers=2,
    heads=2,
    width=8,
    context=8,
    batch=2,
    vocab=16,
    plan="fp32",
    matmul="fp32",
    steps=12,
    decay_steps=12,
    warmup=2,
    lr=1e-2,
    clip=None,
    data="repeat",
    checkpoint_every=4,
    monitor_every=100,
    keep=9,
)
SIXTEEN = Wrong(c=16.0, kind=BIAS)


def settings(*arms, at=()):
    """Arms with these changes each, seeds 0, 1, ..."""
    named = tuple(Arm(name=str(i), changes=(text,), lr=1e-2, seed=i) for i, text in enumerate(arms))
    return Settings(config=CONFIG, arms=named, at=tuple(at))


def test_where_and_what():
    """An error in another head or layer, one that a later change does not replace, or one that a
    change of the plan ends.
    """
    assert offset.wrongs_of(CONFIG, ["layer=1 head=0 -> offset=16:bias"]) == (
        (None, None),
        (SIXTEEN, None),
    )
    texts = [
        "-> offset=16:bias; head=1 -> offset=-0.5:noise:all",
        "layer=0 -> plan=qiu-yao; layer=1 -> offset=none",
    ]
    assert offset.wrongs_of(CONFIG, texts) == (
        (SIXTEEN, Wrong(c=-0.5, kind=NOISE, everywhere=True)),
        (None, None),
    )
    assert (
        offset.wrongs_of(CONFIG, ["-> fp32 offset=0:fixed"])
        == ((Wrong(c=0.0, kind=FIXED),) * 2,) * 2
    )  # of size 0, and there
    assert offset.wrongs_of(CONFIG, ["-> offset=1:bias; -> offset=none"]) is None
    assert offset.wrongs_of(CONFIG, ["", "site=O -> bf16"]) is None


def test_plans_do_not_know_of_it():
    """A plan that takes another name or executable because of an error that is no part of it."""
    assert plans_of(CONFIG, ["head=1 -> offset=16:bias"]) == plans_of(CONFIG)
    assert plans_of(CONFIG, ["-> offset=16:bias bf16"]) == plans_of(CONFIG, ["-> bf16"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-> offset=16", "with a number C"),
        ("-> offset=16:bais", "did you mean 'bias'"),
        ("-> offset=lots:bias", "with a number C"),
        ("-> offset=nan:bias", "with a number C"),
        ("-> offset=1e39:bias", "with a number C"),
        ("-> offset=16:bias:every", "C:KIND:all"),
        ("site=O -> offset=16:bias", "leave site= out"),
        ("layer=2 -> offset=16:bias", "numbered from 0 to 1"),
        ("-> offest=16:bias", "did you mean 'offset'"),
        ("-> offset=0:bias delta_from=P_DP", "use delta_from=OUT or O"),
        ("-> offset=16:bias; -> plan=baseline-bf16", "use delta_from=OUT or O"),
    ],
)
def test_errors_quote_the_change_and_say_the_repair(text, said):
    """A traceback in the first step, or an error that is asked for and not there."""
    with pytest.raises(UsageError) as error:
        groups.numbers(settings(text))
    assert (
        said in str(error.value)
        and text.split(";")[0] in str(error.value)
        and "\n" not in str(error.value)
    )


def test_arms_with_and_without_are_apart():
    """One executable for both, two for sizes, kinds and heads that are data, or an error that comes
    later and is not looked for.
    """
    arms = [
        "",
        "-> offset=0:bias",
        "head=1 -> offset=16:noise:all",
        "-> offset=1:bias; -> offset=none",
    ]
    assert groups.numbers(settings(*arms)) == [[0, 3], [1, 2]]
    assert groups.numbers(settings(*arms, at=[(3, "-> offset=2:bias")])) == [
        [0, 3],
        [1, 2],
    ]  # together from step 3 on only
    with pytest.raises(UsageError, match="P_DP"):
        groups.numbers(settings("-> delta_from=P_DP", at=[(3, "-> offset=2:bias")]))


def test_a_plan_whose_delta_reads_no_output_has_none():
    """A replay with a repair that stops, since the run that is repaired has an error in what the
    repair no longer reads.
    """
    state = step.start(CONFIG, 1)
    texts = (
        "-> offset=16:bias",
        "-> offset=16:bias delta_from=O",
        "-> offset=16:bias delta_from=P_DP",
    )
    assert [groups.Group(settings(text), [0], state).offset(0) is None for text in texts] == [
        False,
        False,
        True,
    ]
    with pytest.raises(ValueError, match="run them separately"):
        groups.Group(settings("-> offset=16:bias", ""), [0, 1], step.start(CONFIG, 2)).offset(0)


def test_a_head_s_error_stays_in_its_head():
    """An error that the mask does not hold in: at another head of the last layer, or in any layer
    above.
    """
    plans, tokens = by_arm([uniform(CONFIG)] * 2), np.random.default_rng(3).integers(0, 4, (2, 9))

    def hit(text):
        """Layers, q k v, heads where the gradient is another one than without the error; the first
        moment after a step is 0.1 of it.
        """
        own = offset.offsets(
            [offset.wrongs_of(CONFIG, [t]) for t in ("-> offset=0:bias", text)], [0, 0]
        )
        state, _, _ = step.advance(CONFIG)(
            step.start(CONFIG, 2), np.stack([tokens] * 2), plans, np.float32([1e-2] * 2), own
        )
        names = jax.tree_util.tree_leaves_with_path(state.opt_state)
        [mu] = [
            np.asarray(leaf)
            for path, leaf in names
            if "mu" in jax.tree_util.keystr(path) and "qkv" in jax.tree_util.keystr(path)
        ]
        return (mu[1] != mu[0]).any(axis=(1, 4)).tolist()

    assert hit("layer=1 head=0 -> offset=64:bias")[1] == [
        [True, False],
        [True, False],
        [False, False],
    ]
    assert hit("layer=0 -> offset=64:bias") == [
        [[True, True], [True, True], [False, False]],
        [[False, False]] * 3,
    ]


def test_a_group_has_what_its_words_say():
    """Sizes, kinds or seeds that change on the way from the words to the step, one arm's for
    another, and a stage that comes at another step: against tables made by hand.
    """
    asked = settings(
        "-> offset=64:bias",
        "-> offset=0:bias; layer=1 head=0 -> offset=32:noise",
        at=[(2, "head=1 -> offset=8:fixed")],
    )
    group = groups.Group(asked, [0, 1], step.start(CONFIG, 2, [0, 1]))
    none, eight = Wrong(c=0.0, kind=BIAS), Wrong(c=8.0, kind=FIXED)
    whole, noise = Wrong(c=64.0, kind=BIAS), Wrong(c=32.0, kind=NOISE)
    before = (((whole, whole), (whole, whole)), ((none, none), (noise, none)))
    after = tuple(tuple((first, eight) for first, _ in arm) for arm in before)
    state = step.start(CONFIG, 2, [0, 1])
    plans = by_arm([uniform(CONFIG)] * 2)
    lr = np.float32([1e-2] * 2)
    rng = np.random.default_rng(4)
    for number, wrongs in enumerate((before, before, after, after)):
        batches = {seed: rng.integers(0, 4, (2, 9)) for seed in (0, 1)}
        losses, norms = group.advance(number, batches)
        both = np.stack([batches[0], batches[1]])
        state, own, wanted = step.advance(CONFIG)(
            state, both, plans, lr, offset.offsets(wrongs, [0, 1])
        )
        np.testing.assert_array_equal(losses, own)
        np.testing.assert_array_equal(norms, wanted)
        assert (offset.offsets(after, [0, 1]).c == np.asarray(group.offset(number).c)).all() == (
            number >= 2
        )


def trained(*asked):
    with pytest.raises(SystemExit, match="0"):
        main(["train", *map(str, asked), "--json"])


def bits(folder, at):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(checkpoint.load(folder, at)[0])]


def recorded(folder):
    return json.loads(record.rows(folder, "runs")[-1]["arms"])


def test_it_comes_at_its_step_and_again_after_an_interruption(tmp_path, monkeypatch):
    """An error from the first step on, one that a run that goes on or a branch has forgotten, and a
    record that does not show it.
    """
    monkeypatch.setattr(
        monitor, "look", lambda config, params, *rest: ({"w_q_norm": np.zeros((2, 2, 2))}, None)
    )  # compiles slowly
    fields = {
        name: "none" if value is None else value
        for name, value in asdict(CONFIG).items()
        if value != getattr(Config(), name)
    }
    words = [
        *(f"{name}={value}" for name, value in fields.items()),
        "--seeds",
        "0,1",
        "--arm",
        "a=head=0 -> offset=0:bias",
    ]
    late = ["--at", 6, "head=1 -> offset=500:bias"]
    whole, parts, branch, never = (
        tmp_path / name for name in ("whole", "parts", "branch", "never")
    )
    trained(*words, "--out", whole, *late)
    shutil.copytree(whole, parts)
    for file in (parts / "checkpoints").glob("00000012.*"):  # as if it had died in step 11
        file.unlink()
    trained("--resume", parts)
    trained("--resume", whole, "--from", 7, "--out", branch)
    trained(*words, "--out", never)
    assert bits(parts, 12) == bits(whole, 12) == bits(branch, 12)
    own, other = (
        [row["gradient_norm"] for row in record.rows(folder, "steps", "a/0")]
        for folder in (whole, never)
    )
    assert [a == b for a, b in zip(own, other, strict=True)][:7] == [True] * 6 + [False]
    assert recorded(whole)["at"] == [[6, "head=1 -> offset=500:bias"]]
    assert recorded(whole)["arms"][0]["offsets"] == [
        {"offset": "0:bias", "layers_heads": [[0, 0], [1, 0]]}
    ]
    assert {"offset": "500:bias", "layers_heads": [[0, 1], [1, 1]]} in recorded(branch)["arms"][1][
        "offsets"
    ]
