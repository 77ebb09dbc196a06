"""Faults in our search for a kernel's arithmetic: sentences that claim more than was compared."""

from tests.checks.mutants.faults import Fault

TESTS = ("tests/tools/identify/test_meanings.py",)
ORDERS = ("tests/tools/identify/test_orders.py",)

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
    Fault(
        name="order-of-tiles-turned",
        kind="order",
        imitates="A probe takes the tile that comes last for the one that comes first.",
        file="tools/identify/probes/softmax.py",
        old="seen.setdefault(edge, [False, False])[a > b]",
        new="seen.setdefault(edge, [False, False])[a < b]",
        tests=ORDERS,
    ),
    Fault(
        name="ones-beyond-the-first-part",
        kind="order",
        imitates="A probe counts more ones than a result of 8 bits can tell, and loses the rest.",
        file="tools/identify/orders.py",
        old="for lo in range(0, max(len(ones), 1), most):",
        new="for lo in range(0, 1, most):",
        tests=ORDERS,
    ),
    Fault(
        name="tiles-that-were-seen-are-forgotten",
        kind="search",
        imitates="A search tries every tile, though probes have seen those of the kernel.",
        file="tools/identify/search.py",
        old="candidates.on_seen_tiles(forms, seen, keys)",
        new="candidates.on_seen_tiles(forms, seen[:0], keys)",
        tests=ORDERS,
    ),
)
