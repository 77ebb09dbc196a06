"""Checkpoints: whole or absent, exact, and one line for what is wrong with one."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from roundscope.experiments.train import checkpoint
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step
from roundscope.experiments.train.settings import plain
from roundscope.tools.errors import StorageError, UsageError
from tests.checks.hostile.verdict import fault_of_message

CONFIG = Config(layers=1, heads=1, width=4, context=4, vocab=8, mlp_ratio=1)
ARM = {"name": "run", "changes": [], "lr": 1e-3, "seed": 0}
META = {"config": plain(CONFIG), "arms": [ARM], "at": [], "data": {}, "watch": []}


@pytest.fixture(scope="module")
def state():
    return jax.device_get(step.start(CONFIG, 1))


def changed(state, number):
    """Other numbers, of the same shapes."""
    return jax.tree.map(lambda x: x + np.asarray(number, x.dtype), state)


def same(a, b):
    def bits(x):
        return (x.dtype, x.shape, np.ascontiguousarray(x).tobytes())

    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        bits(x) == bits(y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_every_bit_comes_back(tmp_path, state):
    """Values that pass through text or another type: -0, subnormals, infinities, NaN with a
    payload, the optimiser's counter.
    """
    odd = np.array([0x80000000, 1, 0x7F800000, 0x7FC12345, 0xFFC00001], np.uint32).view(np.float32)
    params = state.params | {"norm": np.resize(odd, state.params["norm"].shape)}
    wanted = step.State(params=params, opt_state=changed(state.opt_state, 3), step=state.step + 7)
    checkpoint.save(tmp_path, 7, wanted, META | {"note": "é"})
    found, meta = checkpoint.load(tmp_path)
    assert same(found, wanted) and (meta["step"], meta["note"]) == (7, "é")


def test_the_ring_keeps_the_last_and_the_pinned(tmp_path, state):
    """A disk that fills, or the state before a spike that is gone."""
    checkpoint.save(tmp_path, 0, state, META, keep=2)
    checkpoint.pin(tmp_path, 0, "the beginning", most=1)
    for number in (10, 20, 30, 40):
        checkpoint.save(tmp_path, number, changed(state, number), META, keep=2)
        if number == 20:
            checkpoint.pin(tmp_path, 10, "before a spike", most=2)
            checkpoint.pin(tmp_path, 20, "one too many", most=2)
    assert checkpoint.steps(tmp_path) == [0, 10, 30, 40]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 8
    assert same(checkpoint.load(tmp_path, 10)[0], changed(state, 10))
    with pytest.raises(UsageError, match="steps 0 10 30 40"):
        checkpoint.load(tmp_path, 20)


def test_a_step_that_is_saved_again_stays_pinned(tmp_path, state):
    """A beginning that is lost later, since the run was stopped before its first step."""
    checkpoint.save(tmp_path, 0, state, META, keep=1)
    checkpoint.pin(tmp_path, 0, "the beginning", most=1)
    for number in (0, 10, 20):
        checkpoint.save(tmp_path, number, changed(state, number), META, keep=1)
    assert checkpoint.steps(tmp_path) == [0, 20]
    assert checkpoint.load(tmp_path, 0)[1]["pinned"] == "the beginning"
    damaged = tmp_path / "checkpoints" / "00000020.json"
    damaged.write_text("{")
    checkpoint.save(tmp_path, 20, state, META, keep=1)
    assert "pinned" not in checkpoint.load(tmp_path)[1]


class Killed(BaseException):
    """An end at this moment: nothing catches it but the test."""


def test_an_end_at_any_moment_leaves_whole_checkpoints(tmp_path, state, monkeypatch):
    """A half-written file under a final name.

    Every system call that changes the folder is, in turn, the last one.
    """
    calls = {"n": 0, "last": 10**9}

    def counted(function):
        def call(*args, **kwargs):
            calls["n"] += 1
            if calls["n"] > calls["last"]:
                raise Killed
            return function(*args, **kwargs)

        return call

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    seen = set()
    for last in range(60):
        folder = tmp_path / str(last)
        calls["last"] = 10**9
        checkpoint.save(folder, 10, state, META, keep=1)
        calls["n"], calls["last"] = 0, last
        try:
            checkpoint.save(folder, 20, changed(state, 1), META, keep=1)
            break
        except Killed:
            pass
        calls["last"] = 10**9
        known = checkpoint.steps(folder)
        assert known and all(
            same(checkpoint.load(folder, s)[0], changed(state, int(s == 20))) for s in known
        )
        seen |= {tuple(known)}
        checkpoint.save(
            folder, 20, changed(state, 1), META, keep=1
        )  # the resumed run comes by again
        assert (
            checkpoint.steps(folder) == [20] and len(list((folder / "checkpoints").iterdir())) == 2
        )
    else:
        pytest.fail("the save never came to its end")
    assert seen >= {(10,), (10, 20)}


def damage(place, how):
    """Damages the only checkpoint."""
    tensors, about = place / "00000010.safetensors", place / "00000010.json"
    content = tensors.read_bytes()
    match how:
        case "cut":
            tensors.write_bytes(content[:-9])
        case "bit":
            tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "gone":
            tensors.unlink()
        case "json":
            about.write_text(about.read_text()[:40])
        case "foreign":
            about.write_text('{"step": 10}')
        case "list":
            about.write_text("[1]")
        case "config":
            about.write_text(json.dumps(json.loads(about.read_text()) | {"config": {"layer": 3}}))
        case "sizes":
            about.write_text(
                json.dumps(json.loads(about.read_text()) | {"config": plain(CONFIG) | {"vocab": 9}})
            )
        case "arms":
            about.write_text(json.dumps(json.loads(about.read_text()) | {"arms": [ARM, ARM]}))
        case "seed":
            changes = {"arms": [ARM | {"seed": -1}]}
            about.write_text(json.dumps(json.loads(about.read_text()) | changes))
        case "schedule":
            changes = {"config": plain(CONFIG) | {"decay_steps": 10**30}}
            about.write_text(json.dumps(json.loads(about.read_text()) | changes))
        case "watch":
            changes = {"watch": [{"risen": ["x"]}]}
            about.write_text(json.dumps(json.loads(about.read_text()) | changes))


@pytest.mark.parametrize(
    "how",
    [
        *("cut", "bit", "gone", "json", "foreign", "list", "config", "sizes", "arms"),
        *("seed", "schedule", "watch"),
    ],
)
def test_a_damaged_or_foreign_checkpoint_is_one_line(tmp_path, state, how):
    """A traceback, or a run that goes on from other numbers than were saved."""
    checkpoint.save(tmp_path, 10, state, META)
    damage(tmp_path / "checkpoints", how)
    with pytest.raises(UsageError) as error:
        checkpoint.load(tmp_path)
    assert "00000010" in str(error.value) and fault_of_message(str(error.value)) == ""


def test_what_is_wrong_with_a_checkpoint_and_how_to_go_on(tmp_path, state):
    """'410216 bytes, not the 410216 that were written', and a repair that the command then
    refuses.
    """
    for number in (4, 10):
        checkpoint.save(tmp_path, number, state, META)
    damage(tmp_path / "checkpoints", "bit")
    with pytest.raises(
        UsageError,
        match=rf"SHA-256 differs.*there are steps 4\).*--resume {tmp_path} --from 4 --out NEW",
    ):
        checkpoint.load(tmp_path)
    damage(tmp_path / "checkpoints", "cut")
    with pytest.raises(UsageError, match="bytes, not the"):
        checkpoint.load(tmp_path)


def test_a_full_disk_keeps_what_is_there(tmp_path, state, monkeypatch):
    """The last good checkpoint deleted to make room for one that fails."""
    checkpoint.save(tmp_path, 10, state, META, keep=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"step 20 cannot be written \(No space left on device\)"
    ):
        checkpoint.save(tmp_path, 20, state, META, keep=1)
    monkeypatch.undo()
    assert checkpoint.steps(tmp_path) == [10] and same(checkpoint.load(tmp_path)[0], state)
    assert not list((tmp_path / "checkpoints").glob(".*.unfinished"))


def test_no_checkpoint_says_how_to_make_one(tmp_path):
    """A folder that is empty or not there."""
    with pytest.raises(UsageError, match="roundscope train --out"):
        checkpoint.load(tmp_path / "none")
