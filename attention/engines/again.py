"""L of the backward, where a plan takes it from the scores that the backward computes again."""

from dataclasses import replace

from roundscope.attention.engines.protocol import Engine, Plans
from roundscope.attention.tiles.loops import Setup
from roundscope.attention.tiles.records import Residuals


def with_own_lse(engine: Engine, setup: Setup, given: Residuals, plans: Plans = None) -> Residuals:
    """Return what a backward reads; in plans with `lse_again` L is that of its own inputs.

    The events of that L are those of a forward; nothing is injected into them or recorded.
    """
    if not setup.plan.lse_again:
        return given
    quiet = replace(setup, inject=(), record=None)
    own, _ = engine.forward(quiet, given.inputs, plans)
    return given._replace(results=given.results._replace(lse=own.lse, kept=own.kept))
