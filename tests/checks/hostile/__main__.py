"""Ask hostile cases, area by area, and count: python -m tests.checks.hostile [AREA ...] [--show].

Exit code 1 if a case is faulty. --show prints every faulty case; --only TEXT asks the cases whose
name has the text.
"""

import argparse
import importlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.checks.hostile.verdict import Verdict

# each area is a module of this package, whose `verdicts(only)` yields Verdicts
AREAS = ("words", "grammar", "calls", "files", "results")


def area(name: str) -> Callable[[str], Iterator[Verdict]]:
    """Return the function that asks the cases of an area."""
    found: Callable[[str], Iterator[Verdict]]
    found = importlib.import_module(f"tests.checks.hostile.{name}").verdicts
    return found


def main() -> int:
    """Ask, print the table of counts, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*", default=AREAS, metavar="AREA")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    rows, faults = [], 0
    for name in asked.areas:
        start, kinds, tried = time.monotonic(), Counter[str](), 0
        for verdict in area(name)(asked.only):
            tried += 1
            if verdict.fault:
                kinds[verdict.fault] += 1
                if asked.show:
                    print(f"{verdict.fault:12} {verdict.case}\n    {verdict.answer}", flush=True)
        faulty = kinds.total()
        faults += faulty
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        rows.append(
            (name, tried, tried - faulty, faulty, f"{time.monotonic() - start:.0f} s", said)
        )
    print(f"{'area':10} {'tried':>6} {'clean':>6} {'faulty':>6} {'time':>6}  of which")
    for name, tried, clean, faulty, seconds, said in rows:
        print(f"{name:10} {tried:6} {clean:6} {faulty:6} {seconds:>6}  {said}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
