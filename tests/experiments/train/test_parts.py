"""A batch in parts: the order in which gradients are added, what each part reads, and the same bits
on one device and on several. Devices are parts of one processor, in programs of their own.
"""

import json
import operator
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from roundscope.experiments.options import TrainOptions
from roundscope.experiments.train import devices, groups, origins
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import model, step
from roundscope.experiments.train.gpt.step import InParts, total
from roundscope.experiments.train.settings import settings
from roundscope.experiments.train.step import compiled, fresh, stacked, updated
from roundscope.tools.errors import UsageError

# one number of each part; added from left to right they make 1, by halves 0
NUMBERS = np.float32([1e8, 1.0, -1e8, 1.0])
CONFIG = Config(
    layers=1, heads=1, width=8, context=8, vocab=16, batch=4, plan="jax", clip=None, parts=4
)


def taken(loss, arms=1, config=CONFIG):
    """Losses and norms of gradients after two steps of weights that are all zero."""
    own = [fresh(config, {"w": jnp.zeros(3)}) for _ in range(arms)]
    now, run = stacked(own), InParts(config, None, loss)
    for _ in range(2):
        now, losses, norms = run(now, np.arange(8).reshape(4, 2), np.full(arms, 1e-3, "f4"), ())
    return np.asarray(losses), np.asarray(norms)


def test_parts_are_added_by_halves():
    """An order of devices, or another that a compiler chooses; a sum in place of a mean."""
    assert total(NUMBERS, operator.add) == np.float32(0.0) != sum(NUMBERS)
    words = total("01234567", lambda a, b: f"({a}{b})")
    assert words == "(((01)(23))((45)(67)))"

    def loss(params, tokens, number):
        return (params["w"] * jnp.asarray(NUMBERS)[tokens[0, 0] // 2]).sum()

    assert taken(loss)[1] == [0.0]

    def steady(params, tokens, number):
        return params["w"].sum() * tokens[0, 0].astype(jnp.float32)

    assert taken(steady)[1] == pytest.approx(3.0 * np.sqrt(3.0))  # of 0, 2, 4 and 6


def test_every_part_of_a_run_has_its_number():
    """Two parts, or a part and a step, that draw the same random bits."""
    seen = []

    def loss(params, tokens, number):
        jax.debug.callback(lambda n: seen.append(int(n)), number)
        return params["w"].sum()

    taken(loss)
    jax.effects_barrier()
    assert sorted(seen) == list(range(8))


def test_a_step_in_parts_is_one_of_mean_gradients():
    """A part that is left out or counts twice, a loss that is that of one part, an arm's batch."""
    tokens = np.random.default_rng(0).integers(0, 16, (2, 4, 9)).astype(np.int32)
    first, lr = step.start(CONFIG, 2), np.float32([1e-2, 1e-3])
    ours = step.advance(CONFIG)(first, tokens, None, lr)

    def arm(own, tokens, lr):
        run = jax.value_and_grad(lambda p, t: model.loss(p, t, None, CONFIG))
        found = [run(own.params, tokens[n : n + 1]) for n in range(4)]
        mean = jax.tree.map(lambda *x: total(x, operator.add) * jnp.float32(0.25), *found)
        return updated(CONFIG, own, lr, *mean)

    theirs = compiled(jax.vmap(arm))(first, tokens, lr)
    for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    whole = step.advance(Config(**{**plain(CONFIG), "parts": 1}))(first, tokens, None, lr)
    np.testing.assert_allclose(ours[1], whole[1], rtol=1e-6)


def plain(config):
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["parts=3"], "parts 3: give a power of two, such as 2"),
        (["parts=0"], "parts 0: give a power of two"),
        (["parts=8", "batch=12"], "parts 8: must divide the batch of 12; 4 does"),
        (["parts=two"], "parts 'two': give a whole number, or none"),
    ],
)
def test_parts_that_cannot_be_are_named(words, said):
    """A traceback, or a run that rounds the number silently."""
    with pytest.raises(UsageError) as error:
        settings(words)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_new_run_has_a_part_for_each_device(monkeypatch):
    """A run that leaves devices idle, or that has other bits when it goes on elsewhere."""

    def parts(count, *words, arms=("run=",)):
        monkeypatch.setattr(jax, "devices", lambda: [None] * count)
        asked = settings(["data=repeat", "plan=jax", *words], arms=arms)
        return devices.parts_here(asked.config, groups.numbers(asked))

    two = ("a=", "b=lr=1e-2")
    assert [parts(n) for n in (1, 2, 3, 4, 8)] == [1, 2, 2, 4, 8]
    assert [parts(8, f"batch={n}") for n in (7, 12, 64)] == [1, 4, 8]
    assert (parts(2, arms=two), parts(4, arms=two)) == (1, 4)
    monkeypatch.undo()
    new = origins.new(TrainOptions(words=["data=repeat", "plan=jax"]))
    assert new.settings.config.parts == 1
    given = origins.new(TrainOptions(words=["data=repeat", "plan=jax", "parts=4"]))
    assert given.settings.config.parts == 4


PROGRAM = """
import hashlib, json, sys
import jax, numpy as np
from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.groups import Group
from roundscope.experiments.train.groups import batches_of
from roundscope.experiments.train.settings import settings

def run(count, words, **more):
    asked = settings(["data=repeat", "steps=9", "warmup=1", "lr=1e-2", *words], **more)
    arms = list(range(len(asked.arms)))
    first = step.start(asked.config, len(arms), [arm.seed for arm in asked.arms])
    group = Group(asked, arms, first, there=jax.devices()[:count])
    batches = batches_of(asked)
    for number in range(3):
        seen = group.advance(number, {seed: b.batch(number) for seed, b in batches.items()})
    leaves = [np.asarray(x) for x in jax.device_get(jax.tree.leaves((group.state, *seen)))]
    bits = hashlib.sha256(b"".join(x.tobytes() for x in leaves)).hexdigest()
    kept = jax.tree.leaves(group.place.alone(group.state))
    return bits, group.place.words, len(jax.tree.leaves(group.state)[0].sharding.device_set), all(
        len(x.sharding.device_set) == 1 for x in kept
    )

asked = json.loads(sys.argv[1])
print(json.dumps([[run(n, words, **more) for n in counts] for words, more, counts in asked]))
"""
SMALL = ["layers=1", "heads=1", "width=8", "context=8", "batch=8"]


def on_devices(*asked):
    """Return, for each run and each number of devices: a hash of its final arrays, where they are
    in words, on how many devices, and whether one device's copy of the state is on that one alone.

    asked: (words of the configuration, arms and seeds, numbers of devices) of each run.
    """
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("parts", "arms", "counts"),
    [
        (4, {}, [1, 4]),
        pytest.param(4, {}, [1, 2, 4], marks=pytest.mark.thorough),
        pytest.param(
            2,
            {"arms": ["a=", "b=lr=1e-3"], "seeds": "0,3"},
            [1, 2, 4],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_devices_change_no_bit(parts, arms, counts):
    """A program of several devices that fuses otherwise, a sum in the order of messages, a state
    that is not on every device.
    """
    (rows,) = on_devices(([*SMALL, "plan=jax", f"parts={parts}"], arms, counts))
    assert len({bits for bits, *_ in rows}) == 1
    used = [min(n, parts) for n in counts]
    places = ["one device" if n == 1 else f"{n} devices" for n in used]
    assert [words for _, words, *_ in rows] == [
        f"batch in {parts} parts over {place}" for place in places
    ]
    assert [count for _, _, count, _ in rows] == used
    assert all(alone for *_, alone in rows)


@pytest.mark.thorough
def test_devices_change_no_bit_of_emulated_attention():
    """Random bits that a device's place decides; plans, offsets or formats of another part."""
    words = ["layers=2", "heads=1", "width=32", "context=32", "batch=4", "plan=qiu-yao", "parts=2"]
    changes = "layer=0 -> O=bf16:stochastic offset=8:noise; layer=1 -> plan=fa2-bf16; mx=mxfp8_e4m3"
    (rows,) = on_devices(([*words, f"changes={changes}"], {}, [1, 2]))
    assert len({bits for bits, *_ in rows}) == 1
