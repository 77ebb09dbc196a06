"""Faults in our search for a kernel's arithmetic: sentences that claim more than was compared."""

from tests.checks.mutants.faults import Fault

TESTS = ("tests/tools/identify/test_meanings.py",)

FAULTS = (
    Fault(
        name="one-head-stands-for-all",
        kind="claims",
        imitates="A search compares the first key head, and its verdict is about the file.",
        file="tools/identify/compare.py",
        old="for entry, group in np.ndindex(batch, groups):",
        new="for entry, group in np.ndindex(1, 1):",
        tests=TESTS,
    ),
    Fault(
        name="nearly-all-is-all",
        kind="claims",
        imitates="A verdict calls numbers the same of which a few differ.",
        file="tools/identify/identify.py",
        old='    if not every.counts["out"].differ:\n',
        new="    if share >= 0.9999:\n",
        tests=TESTS,
    ),
    Fault(
        name="meaning-of-a-right-call",
        kind="claims",
        imitates="A search invents another meaning for a call whose roundings explain its output.",
        file="tools/identify/trial.py",
        old="return self.given <= ROUNDED * self.cast",
        new="return self.given <= 1e-9 * self.cast",
        tests=TESTS,
    ),
    Fault(
        name="structures-without-their-events",
        kind="search",
        imitates="A search changes one thing at a time, and never an event that a change unlocks.",
        file="tools/identify/candidates.py",
        old="    yield from unlocked\n",
        new="    yield from unlocked[:0]\n",
        tests=TESTS,
    ),
)
