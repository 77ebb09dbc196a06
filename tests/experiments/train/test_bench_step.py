"""`roundscope bench step`: its rows, and that it sees two runs that differ."""

import json

import pytest

from roundscope.experiments.train import bench_step
from roundscope.experiments.train.config import Config
from roundscope.experiments.train.gpt import step

TINY = Config(layers=1, heads=1, width=8, context=8, batch=2, data="repeat")


@pytest.fixture
def bench(roundscope, monkeypatch):
    """(exit code, rows, stderr) of the command at a size that compiles in seconds, plain JAX
    alone.
    """
    monkeypatch.setattr(bench_step, "_sizes", lambda: [(TINY, 1), (TINY, 2)])
    monkeypatch.setattr(
        bench_step,
        "_contenders",
        lambda arms, context: [("jax.nn", {"plan": "jax"}), ("again", {"plan": "jax"})],
    )

    def run():
        code, out, err = roundscope("bench", "step", "--json")
        return code, json.loads(out), err

    return run


def test_rows_are_compared_within_a_size(bench):
    """A ratio to another size's plain JAX, monitors that cost nothing or are taken off, equal runs
    called different.
    """
    code, rows, _ = bench()
    assert code == 0 and len({row["size"] for row in rows}) == 2
    for plain, other in (rows[:2], rows[2:]):
        assert plain["against_jax"] == 1.0 and other["against_jax"] == pytest.approx(
            other["step"] / plain["step"]
        )
        assert other["monitored_against_jax"] == pytest.approx(other["monitored"] / plain["step"])
    assert all(row["monitored"] > row["step"] > 0.0 and row["same_bits"] for row in rows)


def test_runs_that_differ_fail(bench, monkeypatch):
    """A check of bits that compares a run with itself, or that nobody hears of."""
    start, calls = step.start, []
    monkeypatch.setattr(
        step,
        "start",
        lambda config, arms: start(config, arms, [calls.append(arms) or len(calls)] * arms),
    )
    code, rows, err = bench()
    assert (
        code == 1 and "differ in bits: jax.nn" in err and not any(row["same_bits"] for row in rows)
    )
