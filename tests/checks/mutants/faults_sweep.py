"""Faults in what sweeps and watched trainings report, and in plans asked by the name of a site."""

from tests.checks.mutants.faults import Fault

FAULTS = (
    Fault(
        name="name-of-a-site-without-blocks",
        kind="block scale",
        imitates="A plan asked by the name of a site forgets that the site rounds in blocks.",
        file="attention/plans/plan.py",
        old="""        site = site_named(site)
        return next((block for""",
        new="""        return next((block for""",
        tests=("tests/attention/test_plan.py",),
    ),
)
