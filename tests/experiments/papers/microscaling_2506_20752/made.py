"""Runs that were made up, for tests of what is concluded from runs."""

import math

from roundscope.experiments.train.mx import Site
from roundscope.experiments.train.student.arms import Arm
from roundscope.tools.results.run import Run

STEPS = 1000


def run(name, seed, diverged=None, *, lr=0.1, changes=(), measures=()):
    """One run; where it did not diverge its loss is finite."""
    arm = Arm(name=name, changes=tuple(changes), lr=lr, seed=seed)
    curve = ((25, 1.0, 1.0), (50, 0.5, 1.0))
    loss = 0.05 if diverged is None else math.nan
    extra = {"spikes": 0, "measures": tuple(measures)}
    return Run(condition=arm, steps=STEPS, diverged=diverged, loss=loss, curve=curve, extra=extra)


def of_arm(arm, diverged=None, measures=()):
    """A run of a given arm."""
    return run(arm.name, arm.seed, diverged, lr=arm.lr, changes=arm.changes, measures=measures)


def looks(zeta, apart, every=100, until=500):
    """Measures of every name that the claims read; zeta grows in proportion to the step."""
    fixed = {
        "cosine": 0.9,
        "cosine_apart": 0.5,
        "along": -0.02,
        "x_clipped": 0.01,
        "x_last": 0.02,
        "gamma_last": 0.0,
        "gamma_ratio": 1.1,
        "gamma_distinct": 4.0,
    }
    sites = {f"zeta_{site}": 0.1 for site in Site} | {f"zeta_{Site.X}": 0.8 * zeta}
    names = {"zeta": zeta, "zeta_apart": apart, "zeta_rceil": 0.7 * zeta} | fixed | sites
    return tuple((step, names | {"zeta": zeta * step / every}) for step in range(0, until, every))
